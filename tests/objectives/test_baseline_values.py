"""Every baseline against a NumPy transcription of its definition, and its gradient against
finite differences of that transcription."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import memory_bank
from cone_jax.models import EncoderOutput
from cone_jax.objectives import MixedLabels, StepInputs
from cone_jax.objectives.binary_cross_entropy import BinaryCrossEntropy
from cone_jax.objectives.cmsf import Cmsf
from cone_jax.objectives.cross_entropy import CrossEntropy
from cone_jax.objectives.joint_supcon import JointSupCon
from cone_jax.objectives.linear import Linear
from cone_jax.objectives.nnclr import Nnclr
from cone_jax.objectives.paco import PaCo
from cone_jax.objectives.simclr import SimClr
from cone_jax.objectives.supcon import SupCon
from cone_jax.objectives.supcon_bank import SupConBank
from tests.finite_differences import finite_differences

pytestmark = pytest.mark.optimised

R, K, D, C = 6, 8, 3, 3  # rows (of three samples where views are rows), bank, embedding, classes
PRIOR = (0.5, 0.3, 0.2)
DIFFERENTIATED = ("embedding", "logits", "prediction")


def make_case(seed, samples, filled):
    """Random activations; `samples` are the labels of the three samples."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(K, D))
    return {
        "embedding": rng.normal(size=(R, D)) * 2,
        "logits": rng.normal(size=(R, C)),
        "prediction": rng.normal(size=(R, D)),
        "key": rng.normal(size=(R, D)),
        "labels": np.repeat(np.array(samples), 2),
        "filled": filled,
        "bank": features / np.linalg.norm(features, axis=1, keepdims=True),
        "bank_labels": rng.integers(0, C, K),
        "second_labels": rng.integers(0, C, R),
        "weight": rng.uniform(size=R),
    }


@st.composite
def situations(draw):
    """Classes of one member, one class for all, banks from empty to full."""
    samples = st.one_of(
        st.permutations(range(R // 2)),
        st.just([0] * (R // 2)),
        st.lists(st.integers(0, C - 1), min_size=R // 2, max_size=R // 2),
    )
    filled = st.sampled_from([0, 3, K])
    return make_case(draw(st.integers(0, 2**31)), draw(samples), draw(filled))


def as_inputs(case, embedding, logits, prediction, *, mixed=False):
    def output(embedding):
        return EncoderOutput(jnp.zeros((R, 2)), embedding, logits, prediction)

    bank = memory_bank.MemoryBank(
        features=jnp.asarray(case["bank"], jnp.float32),
        labels=jnp.asarray(case["bank_labels"], jnp.int32),
        probs=None,
        ids=jnp.full((K,), -1),
        cursor=jnp.asarray(case["filled"] % K),
        filled=jnp.asarray(case["filled"]),
    )
    second = MixedLabels(jnp.asarray(case["second_labels"]), jnp.asarray(case["weight"]))
    return StepInputs(
        query=output(embedding),
        labels=jnp.asarray(case["labels"], jnp.int32),
        epoch=jnp.asarray(0),
        step=jnp.asarray(0),
        key=output(jnp.asarray(case["key"], jnp.float32)),
        bank=bank,
        mixed=second if mixed else None,
        class_prior=jnp.asarray(PRIOR),
    )


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def cross_entropy(case):
    return -np.mean(
        [log_softmax(row)[y] for row, y in zip(case["logits"], case["labels"], strict=True)]
    )


def soft_targets(case, mixed):
    targets = np.zeros((R, C))
    for i in range(R):
        if not mixed:
            targets[i, case["labels"][i]] = 1
            continue
        targets[i, case["labels"][i]] += case["weight"][i]
        targets[i, case["second_labels"][i]] += 1 - case["weight"][i]
    return targets


def ref_cross_entropy(o, case, mixed=False):
    targets = soft_targets(case, mixed)
    if o.label_smoothing:
        off = o.label_smoothing / (C - 1 if o.smoothing_form == "official" else C)
        on = 1 - o.label_smoothing + (0 if o.smoothing_form == "official" else off)
        targets = targets * on + (1 - targets) * off
    return -np.mean(
        [(t * log_softmax(row)).sum() for t, row in zip(targets, case["logits"], strict=True)]
    )


def ref_binary(o, case, mixed=False):
    total = 0.0
    for target, row in zip(soft_targets(case, mixed), case["logits"], strict=True):
        for t, x in zip(target, row, strict=True):
            t = t * (1 - o.label_smoothing) + o.label_smoothing / C
            if o.target_threshold >= 0:
                t = float(t > o.target_threshold)
            p = 1 / (1 + np.exp(-x))
            total -= t * np.log(p) + (1 - t) * np.log(1 - p)
    return total / R / (C if o.reduction == "mean" else 1)


def ref_simclr(o, case):
    z, total = unit(case["embedding"]), 0.0
    for i in range(R):
        partner = i + 1 if i % 2 == 0 else i - 1
        scores = {a: np.exp(z[i] @ z[a] / o.temperature) for a in range(R) if a != i}
        total -= np.log(scores[partner] / sum(scores.values()))
    return total / R * o.temperature / o.base_temperature


def ref_supcon(o, case):
    z, y, total = unit(case["embedding"]), case["labels"], 0.0
    for i in range(R):
        scores = {a: np.exp(z[i] @ z[a] / o.temperature) for a in range(R) if a != i}
        share = [scores[a] / sum(scores.values()) for a in scores if y[a] == y[i]]
        if share:
            total -= np.mean(np.log(share)) if o.contrast == "sup_out" else np.log(np.mean(share))
    return total / R * o.temperature / o.base_temperature


def bank_rows(case):
    rows = list(zip(case["bank"], case["bank_labels"], strict=True))
    return rows[: case["filled"]]


def ref_supcon_bank(o, case):
    z, keys, total = unit(case["embedding"]), unit(case["key"]), 0.0
    for i in range(R):
        anchors = [(keys[i], case["labels"][i])]
        anchors += bank_rows(case)
        scores = [np.exp(z[i] @ a / o.temperature) for a, _ in anchors]
        own = [s for s, (_, y) in zip(scores, anchors, strict=True) if y == case["labels"][i]]
        total -= np.mean(np.log(np.array(own) / sum(scores)))
    return total / R


def contrast_items(case, z, i):
    """PaCo's anchors of row i: the other queries, all keys, the bank."""
    keys, y = unit(case["key"]), case["labels"]
    items = [(z[a], y[a]) for a in range(R) if a != i]
    items += [(keys[a], y[a]) for a in range(R)]
    return items + bank_rows(case)


def ref_paco(o, case):
    z, total = unit(case["embedding"]), 0.0
    for i in range(R):
        label = case["labels"][i]
        f = case["logits"][i].copy()
        if o.prior == "uniform":
            f += np.log(1 / C)
        elif o.prior == "data":
            f += np.log(np.array(PRIOR) + 1e-9)
        items = contrast_items(case, z, i)
        u = [z[i] @ a / o.temperature for a, _ in items]
        log_d = np.log(np.exp(f).sum() + o.gamma * np.exp(u).sum())
        weighted, weights = o.beta * (f[label] - log_d), o.beta
        for score, (_, y) in zip(u, items, strict=True):
            if y == label:
                weighted += o.alpha * (score - log_d)
                weights += o.alpha
        total -= weighted / weights
    return total / R


def ref_joint(o, case):
    z, total = unit(case["embedding"]), 0.0
    for i in range(R):
        items = contrast_items(case, z, i)
        scores = [np.exp(z[i] @ a / o.temperature) for a, _ in items]
        own = [s for s, (_, y) in zip(scores, items, strict=True) if y == case["labels"][i]]
        total -= np.mean(np.log(np.array(own) / sum(scores)))
    return cross_entropy(case) + o.sup_weight * total / R


def ref_cmsf(o, case):
    q, target, total = unit(case["prediction"]), unit(case["key"]), 0.0
    for i in range(R):
        same = [j for j in range(case["filled"]) if case["bank_labels"][j] == case["labels"][i]]
        if o.fill_up:
            same += [j for j in range(case["filled"]) if j not in same]
        own = [case["bank_labels"][j] == case["labels"][i] for j in range(case["filled"])]
        nearest = sorted(same, key=lambda j: (not own[j], -case["bank"][j] @ target[i]))
        nearest = nearest[: o.neighbours]
        if nearest:
            total += np.mean([((q[i] - case["bank"][j]) ** 2).sum() for j in nearest])
    loss = o.shift_weight * total / R
    return loss + o.ce_weight * cross_entropy(case) if o.ce_weight else loss


def ref_nnclr(o, case):
    p = unit(case["prediction"])

    def term(lookup, labels, candidates):
        total = 0.0
        for i, z in enumerate(lookup):
            usable = [
                j
                for j in range(case["filled"])
                if not o.same_class_only or case["bank_labels"][j] == labels[i]
            ]
            if usable:
                nearest = case["bank"][max(usable, key=lambda j: case["bank"][j] @ z)]
                scores = np.exp(candidates @ nearest / o.temperature)
                total -= np.log(scores[i] / scores.sum())
        return total / len(lookup)

    if o.lookup == "key":
        loss = term(unit(case["key"]), case["labels"], p)
    else:
        z, y = unit(case["embedding"]), case["labels"][0::2]
        loss = (term(z[0::2], y, p[1::2]) + term(z[1::2], y, p[0::2])) / 2
    loss *= o.nn_weight
    return loss + o.ce_weight * cross_entropy(case) if o.ce_weight else loss


METHODS = [
    (CrossEntropy(), ref_cross_entropy),
    (CrossEntropy(label_smoothing=0.2), ref_cross_entropy),
    (CrossEntropy(label_smoothing=0.3, smoothing_form="uniform"), ref_cross_entropy),
    (Linear(label_smoothing=0.1), ref_cross_entropy),
    (BinaryCrossEntropy(label_smoothing=0.1), ref_binary),
    (BinaryCrossEntropy(target_threshold=0.2, reduction="sum"), ref_binary),
    (SimClr(), ref_simclr),
    (SupCon(), ref_supcon),
    (SupCon(contrast="sup_in", base_temperature=1.0), ref_supcon),
    (SupConBank(temperature=0.3), ref_supcon_bank),
    (PaCo(), ref_paco),
    (PaCo(prior="uniform", gamma=0.5, alpha=0.3), ref_paco),
    (PaCo(prior="data", beta=0.0), ref_paco),
    (JointSupCon(temperature=0.2), ref_joint),
    (Cmsf(neighbours=2), ref_cmsf),
    (Cmsf(neighbours=3, ce_weight=0.5, shift_weight=2.0), ref_cmsf),
    (Cmsf(neighbours=3, fill_up=True), ref_cmsf),
    (Nnclr(), ref_nnclr),
    (Nnclr(lookup="key", ce_weight=1.0, nn_weight=0.5), ref_nnclr),
    (Nnclr(same_class_only=True), ref_nnclr),
]


@functools.partial(jax.jit, static_argnames=("objective", "mixed"))
def value_and_gradients(objective, case, mixed=False):
    arrays = [jnp.asarray(case[name], jnp.float32) for name in DIFFERENTIATED]

    def loss(*arrays):
        return objective(as_inputs(case, *arrays, mixed=mixed))[0]

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(*arrays)


def slope(function, case, name):
    return finite_differences(lambda x: function({**case, name: x}), case[name])


@pytest.mark.parametrize(
    ("objective", "reference"), METHODS, ids=[repr(objective) for objective, _ in METHODS]
)
@given(case=situations())
@settings(deadline=None, max_examples=6)
def test_value_and_gradient_are_the_definitions(objective, reference, case):
    loss, gradients = value_and_gradients(objective, case)
    assert float(loss) == pytest.approx(reference(objective, case), rel=2e-4, abs=2e-5)
    for name, gradient in zip(DIFFERENTIATED, gradients, strict=True):
        expected = slope(lambda c: reference(objective, c), case, name)
        np.testing.assert_allclose(gradient, expected, rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize(
    ("objective", "reference"),
    [
        (CrossEntropy(label_smoothing=0.1, smoothing_form="uniform"), ref_cross_entropy),
        (BinaryCrossEntropy(), ref_binary),
    ],
)
@given(case=situations())
@settings(deadline=None, max_examples=5)
def test_mixed_images_have_two_labels(objective, reference, case):
    loss, gradients = value_and_gradients(objective, case, mixed=True)
    assert float(loss) == pytest.approx(reference(objective, case, mixed=True), rel=1e-4)
    expected = slope(lambda c: reference(objective, c, mixed=True), case, "logits")
    np.testing.assert_allclose(gradients[1], expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    "objective", [SupConBank(), PaCo(), JointSupCon(), Cmsf(neighbours=2), Nnclr()]
)
def test_keys_and_bank_are_constants(objective):
    case = make_case(0, [0, 1, 1], K)

    def loss(key, bank):
        changed = {**case, "key": key, "bank": bank}
        arrays = [jnp.asarray(case[name], jnp.float32) for name in DIFFERENTIATED]
        return objective(as_inputs(changed, *arrays))[0]

    gradients = jax.grad(loss, argnums=(0, 1))(
        jnp.asarray(case["key"], jnp.float32), jnp.asarray(case["bank"], jnp.float32)
    )
    assert all(not gradient.any() for gradient in gradients)
