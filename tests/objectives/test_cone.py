"""The CoNe objective against a NumPy transcription of the method, sample by sample."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import memory_bank
from cone_jax.models import EncoderOutput
from cone_jax.objectives import StepInputs
from cone_jax.objectives.cone import Cone

B, K, D, C = 5, 12, 4, 3


def make_inputs(seed=0, *, filled=K, epoch=1, exclude=False, logit_scale=1.0):
    rng = np.random.default_rng(seed)

    def output(scale=1.0):
        return EncoderOutput(
            features=jnp.zeros((B, 2)),
            embedding=jnp.asarray(rng.normal(size=(B, D)) * 3, jnp.float32),
            logits=jnp.asarray(rng.normal(size=(B, C)) * scale, jnp.float32),
        )

    bank = memory_bank.init(K, D, C)
    if filled:
        rows = rng.normal(size=(filled, D))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        bank = memory_bank.enqueue(
            bank,
            jnp.asarray(rows, jnp.float32),
            jnp.asarray(rng.integers(0, C, filled), jnp.int32),
            jnp.asarray(rng.dirichlet(np.ones(C), size=filled), jnp.float32),
            jnp.arange(filled, dtype=jnp.int32),
        )
    return StepInputs(
        query=output(logit_scale),
        key=output(),
        labels=jnp.asarray(rng.integers(0, C, B), jnp.int32),
        exclude_ids=jnp.arange(B, dtype=jnp.int32) if exclude else None,
        bank=bank,
        epoch=jnp.asarray(epoch),
    )


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def reference(cone, inputs):
    """Total loss and its three terms in float64."""
    filled = int(inputs.bank.filled)
    features = np.asarray(inputs.bank.features, np.float64)[:filled]
    labels = np.asarray(inputs.bank.labels)[:filled]
    probs = np.asarray(inputs.bank.probs, np.float64)[:filled]
    active = int(inputs.epoch) >= cone.start_epochs and (filled == K or not cone.wait_for_bank)
    ce = sup = dc = 0.0
    kept_rows = 0
    for i in range(B):
        z = np.asarray(inputs.query.embedding[i], np.float64)
        z /= np.linalg.norm(z)
        key = np.asarray(inputs.key.embedding[i], np.float64)
        key /= np.linalg.norm(key)
        seen = np.arange(filled)
        if inputs.exclude_ids is not None:
            seen = seen[seen != int(inputs.exclude_ids[i])]
        label = int(inputs.labels[i])
        prediction = softmax(np.asarray(inputs.query.logits[i], np.float64))
        masked = active and cone.conf_mask_eps > 0 and prediction.min() <= cone.conf_mask_eps
        if not masked:
            ce += -np.log(prediction[label])
        if not active or len(seen) == 0:
            continue
        similar = features[seen] @ z
        nearest = np.argsort(-similar)
        if cone.anchors == "nearest":
            nearest = nearest[: cone.neighbours]
        share = softmax(similar[nearest] / cone.sup_temperature)
        positive = labels[seen][nearest] == label
        if positive.any():
            if cone.contrast == "sup_in":
                mass = share[positive].sum()
                if mass > cone.min_positive_prob:
                    sup += -np.log(mass)
                    kept_rows += 1
            else:
                sup += -np.log(share[positive]).mean()
                kept_rows += 1
        if not masked:
            target = softmax(features[seen] @ key / cone.dc_temperature) @ probs[seen]
            dc += (target * np.log(target / prediction)).sum()
    sup /= max(kept_rows, 1) if cone.sup_reduction == "kept" else B
    return ce / B + cone.sup_weight * sup + cone.dc_weight * dc / B, ce / B, sup, dc / B


@pytest.mark.parametrize(
    ("changes", "situation"),
    [
        ({}, {}),
        ({"neighbours": 12}, {"seed": 1}),
        ({"anchors": "bank"}, {"seed": 2}),
        ({"contrast": "sup_out"}, {"seed": 3}),
        ({"sup_reduction": "kept", "neighbours": 2}, {"seed": 4}),
        ({}, {"exclude": True, "seed": 5}),
        ({"min_positive_prob": 0.3}, {"seed": 6}),
        ({"conf_mask_eps": 0.05}, {"logit_scale": 4.0, "seed": 7}),
        ({"conf_mask_eps": 0.0}, {"logit_scale": 30.0, "seed": 8}),
        ({}, {"epoch": 0}),
        ({}, {"filled": 7}),
        ({"wait_for_bank": False}, {"filled": 7}),
        ({"wait_for_bank": False, "start_epochs": 0}, {"filled": 0, "epoch": 0}),
        ({"wait_for_bank": False, "start_epochs": 0}, {"filled": 1, "epoch": 0, "exclude": True}),
    ],
)
def test_loss_equals_the_transcription_and_gradients_are_finite(changes, situation):
    cone = dataclasses.replace(Cone(neighbours=4), **changes)
    inputs = make_inputs(**situation)
    loss, metrics = cone(inputs)
    total, ce, sup, dc = reference(cone, inputs)
    assert float(metrics["loss_ce"]) == pytest.approx(ce, rel=1e-4, abs=1e-5)
    assert float(metrics[f"loss_{cone.contrast}"]) == pytest.approx(sup, rel=1e-4, abs=1e-5)
    assert float(metrics["loss_dc"]) == pytest.approx(dc, rel=1e-3, abs=1e-5)
    assert float(loss) == pytest.approx(total, rel=1e-4)

    def of_query(query):
        return cone(inputs._replace(query=query))[0]

    gradient = jax.grad(of_query)(inputs.query)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_only_cross_entropy_while_waiting():
    inputs = make_inputs(filled=7)
    loss, metrics = Cone(neighbours=4)(inputs)
    assert float(metrics["active"]) == 0
    assert float(loss) == float(metrics["loss_ce"])
    assert float(metrics["masked_fraction"]) == 0


def test_key_and_bank_are_constants():
    inputs = make_inputs()
    cone = Cone(neighbours=4)
    to_bank = jax.grad(
        lambda features: cone(inputs._replace(bank=inputs.bank.replace(features=features)))[0]
    )(inputs.bank.features)
    to_key = jax.grad(lambda x: cone(inputs._replace(key=inputs.key._replace(embedding=x)))[0])(
        inputs.key.embedding
    )
    assert not to_bank.any()
    assert not to_key.any()


def test_diagnostics_count_positives():
    inputs = make_inputs()
    _, metrics = Cone(neighbours=K)(inputs)
    counts = [(np.asarray(inputs.bank.labels) == int(label)).sum() for label in inputs.labels]
    assert float(metrics["positives"]) == pytest.approx(np.mean(counts))
    assert float(metrics["purity"]) == pytest.approx(np.mean(counts) / K)
    assert float(metrics["without_positive"]) == np.mean(np.equal(counts, 0))
