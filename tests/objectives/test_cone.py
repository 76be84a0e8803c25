"""The CoNe objective against a NumPy transcription of the method, sample by sample."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import memory_bank
from cone_jax.models import EncoderOutput
from cone_jax.objectives import MixedLabels, StepInputs
from cone_jax.objectives.cone import Cone
from tests.finite_differences import finite_differences

pytestmark = pytest.mark.optimised

B, K, D, C = 6, 12, 4, 3


def make_inputs(seed=0, *, filled=K, epoch=1, exclude=False, logit_scale=1.0, mixed=False):
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
        step=jnp.asarray(0),
        mixed=MixedLabels(
            jnp.asarray(rng.integers(0, C, B), jnp.int32), jnp.asarray(rng.uniform(size=B))
        )
        if mixed
        else None,
    )


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def smoothed(cone, targets):
    """Class probabilities with some of each taken to the other classes, or to all."""
    eps = cone.label_smoothing
    if cone.smoothing_form == "uniform":
        return np.array([(1 - eps) * t + eps / C for t in targets])
    return np.array([(1 - eps) * t + eps / (C - 1) * (1 - t) for t in targets])


def contrast_term(cone, anchors, label):
    """Of one row; None when it is dropped."""
    if not anchors:
        return None
    share = softmax(np.array([similar for similar, _ in anchors]) / cone.sup_temperature)
    positive = np.array([anchor in (label, "own") for _, anchor in anchors])
    if not positive.any():
        return None
    if cone.contrast == "sup_out":
        return -np.log(share[positive]).mean()
    mass = share[positive].sum()
    return -np.log(mass) if mass > cone.min_positive_prob else None


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
        shares = {int(inputs.labels[i]): 1.0}
        if inputs.mixed is not None:
            weight, second = float(inputs.mixed.weight[i]), int(inputs.mixed.labels[i])
            shares = {int(inputs.labels[i]): weight}
            shares[second] = shares.get(second, 0.0) + 1 - weight
        prediction = softmax(np.asarray(inputs.query.logits[i], np.float64))
        masked = active and cone.conf_mask_eps > 0 and prediction.min() <= cone.conf_mask_eps
        if not masked:
            targets = smoothed(cone, [shares.get(label, 0.0) for label in range(C)])
            ce -= (targets * np.log(prediction)).sum()
        if not active:
            continue
        anchors = [(features[j] @ z, labels[j]) for j in seen]
        anchors.sort(key=lambda anchor: -anchor[0])
        if cone.anchors == "nearest":
            anchors = anchors[: cone.neighbours]
        if cone.contrastive_view == "key":
            other = i if cone.views == "query_key" else (i + 1 if i % 2 == 0 else i - 1)
            own = np.asarray(inputs.key.embedding[other], np.float64)
            anchors.append((own @ z / np.linalg.norm(own), "own"))
        terms = [(share, contrast_term(cone, anchors, label)) for label, share in shares.items()]
        sup += sum(share * term for share, term in terms if term is not None)
        kept_rows += any(term is not None for _, term in terms)
        if not masked and len(seen):
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
        ({}, {"mixed": True, "seed": 9}),
        ({"sup_reduction": "kept", "neighbours": 1}, {"mixed": True, "seed": 10}),
        ({"contrastive_view": "key"}, {"seed": 11}),
        ({"contrastive_view": "key", "views": "rows"}, {"seed": 12}),
        ({"contrastive_view": "key", "contrast": "sup_out"}, {"seed": 13, "mixed": True}),
        ({"contrastive_view": "key", "wait_for_bank": False}, {"filled": 0, "seed": 14}),
        ({"label_smoothing": 0.1}, {"seed": 15}),
        ({"label_smoothing": 0.2, "smoothing_form": "uniform"}, {"seed": 16, "mixed": True}),
    ],
)
def test_loss_and_gradient_are_those_of_the_transcription(changes, situation):
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
    on_host = jax.device_get(inputs)
    for name in ("embedding", "logits"):
        expected = finite_differences(
            lambda value, name=name: reference(
                cone, on_host._replace(query=on_host.query._replace(**{name: value}))
            )[0],
            getattr(on_host.query, name),
            eps=1e-5,
        )
        actual = getattr(gradient, name)
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-4, err_msg=name)


def test_only_cross_entropy_while_waiting():
    inputs = make_inputs(filled=7)
    loss, metrics = Cone(neighbours=4)(inputs)
    assert float(metrics["active"]) == 0
    assert float(loss) == float(metrics["loss_ce"])
    assert float(metrics["masked_fraction"]) == 0


@pytest.mark.parametrize("view", ["none", "key"])
def test_key_and_bank_are_constants(view):
    inputs = make_inputs()
    cone = Cone(neighbours=4, contrastive_view=view)
    to_bank = jax.grad(
        lambda features: cone(inputs._replace(bank=inputs.bank.replace(features=features)))[0]
    )(inputs.bank.features)
    to_key = jax.grad(lambda x: cone(inputs._replace(key=inputs.key._replace(embedding=x)))[0])(
        inputs.key.embedding
    )
    assert not to_bank.any()
    assert not to_key.any()


@pytest.mark.parametrize("gone", ["sup_weight", "dc_weight"])
def test_a_term_of_weight_zero_is_not_computed(gone):
    cone = Cone(neighbours=4, **{gone: 0.0})
    inputs = make_inputs()
    loss, metrics = cone(inputs)
    assert float(loss) == pytest.approx(reference(cone, inputs)[0], rel=1e-4)
    assert ("loss_sup_in" in metrics) == (gone != "sup_weight")
    assert ("loss_dc" in metrics) == (gone != "dc_weight")
    program = str(jax.make_jaxpr(lambda inputs: cone(inputs)[0])(inputs))
    assert ("top_k" in program) == (gone != "sup_weight")
    # Only distributional consistency reads the stored probabilities, [K, C].
    assert cone.needs.bank_probs == (gone != "dc_weight")


def test_without_both_terms_there_is_no_momentum_network():
    needs = Cone(sup_weight=0.0, dc_weight=0.0).needs
    assert not needs.key
    assert not needs.bank
    inputs = make_inputs()._replace(key=None, bank=None)
    loss, _ = Cone(sup_weight=0.0, dc_weight=0.0)(inputs)
    assert float(loss) == pytest.approx(reference(Cone(conf_mask_eps=0), inputs_of(inputs))[1])


def inputs_of(inputs):
    """The same batch with an empty bank, for the reference."""
    return inputs._replace(bank=memory_bank.init(K, D, C), key=inputs.query)


def test_views_say_what_data_they_need():
    assert Cone().needs.views == "any"
    assert Cone(contrastive_view="key").needs.views == "query_key"
    assert Cone(contrastive_view="key", views="rows").needs.views == "rows"
    assert Cone(contrastive_view="bank").needs.bank_first


def test_diagnostics_count_positives():
    inputs = make_inputs()
    _, metrics = Cone(neighbours=K)(inputs)
    counts = [(np.asarray(inputs.bank.labels) == int(label)).sum() for label in inputs.labels]
    assert float(metrics["positives"]) == pytest.approx(np.mean(counts))
    assert float(metrics["purity"]) == pytest.approx(np.mean(counts) / K)
    assert float(metrics["without_positive"]) == np.mean(np.equal(counts, 0))


def test_log_sum_exp_gaps_are_those_of_the_appendix():
    """LSE(x) = max(x) + m over the positive and the negative anchors, averaged over rows."""
    inputs, cone = make_inputs(), Cone(neighbours=5)
    _, metrics = cone(inputs)
    gaps = {"m_p": [], "m_n": []}
    features = np.asarray(inputs.bank.features, np.float64)
    for i in range(B):
        z = np.asarray(inputs.query.embedding[i], np.float64)
        x = features @ z / np.linalg.norm(z) / cone.sup_temperature
        nearest = np.argsort(-x)[:5]
        is_positive = np.asarray(inputs.bank.labels)[nearest] == int(inputs.labels[i])
        for name, part in (("m_p", x[nearest][is_positive]), ("m_n", x[nearest][~is_positive])):
            if len(part):
                gaps[name].append(np.log(np.exp(part).sum()) - part.max())
    for name, values in gaps.items():
        assert float(metrics[name]) == pytest.approx(np.mean(values), rel=1e-4)
        assert float(metrics[f"{name}_times_tau"]) == pytest.approx(np.mean(values) * 0.1, rel=1e-4)
