"""Learning rates against the published formula and numbers."""

import math

import numpy as np
import pytest

from cone_jax.training import optimizers

ITERATIONS = 7


def official_rate(step, base, epochs, warmup):
    epoch, iteration = divmod(step, ITERATIONS)
    if epoch < warmup:
        return base * (epoch * ITERATIONS + iteration) / (warmup * ITERATIONS)
    cosine = 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup)))
    return cosine * (base - base / 1000) + base / 1000


@pytest.mark.parametrize("warmup", [0, 5])
def test_epochwise_cosine_is_the_released_codes(warmup):
    epochs = 20
    rate = optimizers.learning_rate(
        0.4,
        total_steps=epochs * ITERATIONS,
        warmup_steps=warmup * ITERATIONS,
        steps_per_unit=ITERATIONS,
    )
    for step in range(epochs * ITERATIONS):
        assert float(rate(step)) == pytest.approx(
            official_rate(step, 0.4, epochs, warmup), abs=1e-7
        )


def test_published_values_at_100_epochs():
    rate = optimizers.learning_rate(
        0.4, total_steps=100 * 1251, warmup_steps=5 * 1251, steps_per_unit=1251
    )
    values = [float(rate(epoch * 1251 + 600)) for epoch in (5, 50, 99)]
    assert values == pytest.approx([0.4, 0.2167, 0.00051], abs=6e-6)
    assert float(rate(0)) == 0.0


def test_linear_and_constant_decay():
    linear = optimizers.learning_rate(
        1.0, total_steps=10, warmup_steps=0, decay="linear", floor=0.0
    )
    np.testing.assert_allclose([linear(t) for t in range(10)], 1 - np.arange(10) / 10, atol=1e-6)
    constant = optimizers.learning_rate(1.0, total_steps=10, warmup_steps=2, decay="constant")
    np.testing.assert_allclose([constant(t) for t in range(4)], [0, 0.5, 1, 1])


def test_fractional_epochs_of_warmup_do_not_jump_back():
    """Holding the rate once an epoch must not hold a warm-up value."""
    rate = optimizers.learning_rate(1.0, total_steps=40, warmup_steps=5, steps_per_unit=4)
    assert float(rate(5)) == float(rate(7)) == 1.0


def test_warmup_may_start_above_zero():
    rate = optimizers.learning_rate(0.5, total_steps=40, warmup_steps=4, warmup_start=0.02)
    np.testing.assert_allclose([rate(t) for t in (0, 2, 4)], [0.01, 0.255, 0.5], rtol=1e-5)


def test_milestones_hold_fractions_of_the_peak():
    rate = optimizers.learning_rate(
        5.0,
        total_steps=100,
        warmup_steps=0,
        decay="steps",
        milestones=((60, 0.2), (75, 0.04), (90, 0.008)),
    )
    values = [float(rate(t)) for t in (0, 59, 60, 74, 75, 90, 99)]
    np.testing.assert_allclose(values, [5, 5, 1, 1, 0.2, 0.04, 0.04], rtol=1e-5)


def test_exponential_decay_goes_in_stairs_from_the_end_of_warmup():
    rate = optimizers.learning_rate(
        1.0, total_steps=50, warmup_steps=2, decay="exponential", exponential=(5, 0.97)
    )
    values = [float(rate(t)) for t in (2, 6, 7, 11, 12)]
    np.testing.assert_allclose(values, [1, 1, 0.97, 0.97, 0.97**2], rtol=1e-5)
