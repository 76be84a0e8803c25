"""Class weights and logit adjustment, against NumPy loops and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import memory_bank, objectives
from cone_jax.models import EncoderOutput
from cone_jax.objectives import StepInputs

PRIOR = np.array([0.7, 0.2, 0.1])
LABELS = np.array([0, 1, 2, 2])
LOGITS = np.random.default_rng(0).normal(size=(4, 3))


def inputs(logits, mixed=None):
    embedding = jnp.asarray(np.random.default_rng(1).normal(size=(4, 5)), jnp.float32)
    out = EncoderOutput(features=embedding, embedding=embedding, logits=logits, prediction=None)
    bank = memory_bank.init(4, 5, 3)
    probs = jnp.full((4, 3), 1 / 3)
    bank = memory_bank.enqueue(bank, embedding, jnp.asarray(LABELS), probs)
    return StepInputs(
        query=out,
        key=out,
        labels=jnp.asarray(LABELS),
        epoch=jnp.asarray(0),
        step=jnp.asarray(0),
        bank=bank,
        class_prior=jnp.asarray(PRIOR, jnp.float32),
        mixed=mixed,
    )


def reference(logits, weights, tau):
    total = 0.0
    for row, label in zip(logits, LABELS, strict=True):
        adjusted = [value + tau * np.log(share) for value, share in zip(row, PRIOR, strict=True)]
        log_sum = np.log(sum(np.exp(value) for value in adjusted))
        total += weights[label] * (log_sum - adjusted[label])
    return total / len(LABELS)


WEIGHTS = {"none": np.ones(3), "balanced": 1 / (3 * PRIOR)}
WEIGHTS["sqrt"] = PRIOR**-0.5 / np.sum(PRIOR**0.5)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("tau", [0.0, 1.0, 1.5])
@pytest.mark.parametrize("name", ["cross_entropy", "cone"])
def test_the_cross_entropy_is_weighted_and_adjusted(name, weights, tau):
    settings = {"class_weights": weights, "logit_adjustment": tau}
    settings |= {"neighbours": 2} if name == "cone" else {}
    objective = objectives.create(name, settings)
    assert objective.needs.class_prior == (weights != "none" or tau > 0)

    def loss_ce(logits):
        return objective(inputs(logits))[1]["loss_ce"]

    found, gradient = jax.value_and_grad(loss_ce)(jnp.asarray(LOGITS, jnp.float32))
    assert found == pytest.approx(reference(LOGITS, WEIGHTS[weights], tau), rel=1e-5)
    for place in ((0, 0), (2, 1)):
        step = np.zeros_like(LOGITS)
        step[place] = 1e-5
        slope = reference(LOGITS + step, WEIGHTS[weights], tau)
        slope -= reference(LOGITS - step, WEIGHTS[weights], tau)
        assert gradient[place] == pytest.approx(slope / 2e-5, rel=1e-3, abs=1e-6)


def test_weights_are_one_on_average():
    for weights in WEIGHTS.values():
        if not np.all(weights == 1):
            assert np.sum(PRIOR * weights) == pytest.approx(1)


def test_a_balanced_set_changes_nothing_but_by_a_constant():
    """The adjustment then adds the same number to every logit."""
    plain = objectives.create("cross_entropy", {})
    adjusted = objectives.create(
        "cross_entropy", {"logit_adjustment": 1.0, "class_weights": "balanced"}
    )
    even = inputs(jnp.asarray(LOGITS, jnp.float32))._replace(class_prior=jnp.full(3, 1 / 3))
    assert adjusted(even)[0] == pytest.approx(float(plain(even)[0]), rel=1e-6)


def test_both_labels_of_a_mixed_picture_count():
    second = objectives.objective.MixedLabels(jnp.asarray([1, 1, 2, 0]), jnp.asarray([0.25] * 4))
    objective = objectives.create("cross_entropy", {"class_weights": "balanced"})
    found, _ = objective(inputs(jnp.asarray(LOGITS, jnp.float32), second))
    expected = 0.0
    for row, first, other in zip(LOGITS, LABELS, [1, 1, 2, 0], strict=True):
        target = np.zeros(3)
        target[first] += 0.25
        target[other] += 0.75
        log_p = row - np.log(np.exp(row).sum())
        expected += (target @ WEIGHTS["balanced"]) * -(target @ log_p) / 4
    assert found == pytest.approx(expected, rel=1e-5)
