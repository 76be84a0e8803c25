"""The moving average and its schedules against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import momentum


def test_update_is_the_weighted_mean_of_every_leaf():
    ema = {"a": jnp.array([1.0, 2.0]), "b": {"c": jnp.array(4.0)}}
    new = {"a": jnp.array([3.0, 0.0]), "b": {"c": jnp.array(8.0)}}
    out = momentum.update(ema, new, 0.75)
    np.testing.assert_allclose(out["a"], [1.5, 1.5])
    assert float(out["b"]["c"]) == 5.0


def test_momentum_of_one_changes_nothing_at_all():
    ema = jnp.asarray(np.random.default_rng(0).normal(size=100), jnp.float32)
    np.testing.assert_array_equal(momentum.update(ema, ema * 3 + 1, jnp.float32(1.0)), ema)


def test_cosine_to_one_has_the_published_values():
    schedule = momentum.cosine_to_one(0.996, 1000)
    values = [float(schedule(step)) for step in (0, 250, 500, 750, 1000)]
    assert values == pytest.approx([0.996, 0.996586, 0.998, 0.999414, 1.0], abs=5e-7)


@pytest.mark.parametrize(
    ("name", "m0", "end"),
    [
        ("official_auto", 0.996, 1.0),
        ("official_auto", 0.999, 0.999),
        ("cosine_to_one", 0.999, 1.0),
        ("constant", 0.9, 0.9),
    ],
)
def test_official_rule_holds_high_momenta_constant(name, m0, end):
    schedule = momentum.schedule(name, m0, 10)
    assert float(schedule(0)) == pytest.approx(m0)
    assert float(schedule(10)) == pytest.approx(end)
