"""Losses against NumPy loops in float64, their gradients against finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import losses
from tests.finite_differences import finite_differences

pytestmark = pytest.mark.optimised

# A shape and a temperature cost a compilation each, so both come from short lists.
TEMPERATURES = st.sampled_from([0.07, 0.5])
SHAPES = st.sampled_from([(1, 1), (1, 5), (4, 9)])


@st.composite
def contrast_cases(draw):
    """Cosines with ties, rows without positives, rows without valid anchors."""
    batch, anchors = draw(SHAPES)
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    similarity = rng.uniform(-1, 1, (batch, anchors))
    if draw(st.booleans()):
        similarity = np.round(similarity, 1)  # ties
    positive = rng.random((batch, anchors)) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    where = rng.random((batch, anchors)) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return similarity, positive, where, draw(TEMPERATURES)


def loop_sup_in(similarity, positive, where, tau):
    """Minus the logarithm of the positives' share, row by row."""
    out = np.zeros(len(similarity))
    for i, row in enumerate(similarity):
        every = sum(np.exp(u / tau) for u, w in zip(row, where[i], strict=True) if w)
        share = sum(
            np.exp(u / tau) for u, w, p in zip(row, where[i], positive[i], strict=True) if w and p
        )
        out[i] = -np.log(share / every) if share > 0 else 0.0
    return out


def loop_sup_out(similarity, positive, where, tau):
    out = np.zeros(len(similarity))
    for i, row in enumerate(similarity):
        usable = [j for j in range(len(row)) if where[i, j]]
        positives = [j for j in usable if positive[i, j]]
        every = sum(np.exp(row[j] / tau) for j in usable)
        terms = [np.log(np.exp(row[j] / tau) / every) for j in positives]
        out[i] = -sum(terms) / len(terms) if terms else 0.0
    return out


@functools.partial(jax.jit, static_argnums=(3, 4))
def rows_and_gradient(similarity, positive, where, tau, loss):
    def total(u):
        rows = loss(u, positive, temperature=tau, where=where)
        return rows.sum(), rows

    (_, rows), gradient = jax.value_and_grad(total, has_aux=True)(
        jnp.asarray(similarity, jnp.float32)
    )
    return rows, gradient


@functools.partial(jax.jit, static_argnums=3)
def coefficients(similarity, positive, where, tau):
    return losses.positive_gradient_coefficients(
        jnp.asarray(similarity, jnp.float32), positive, temperature=tau, where=where
    )


@pytest.mark.parametrize(
    ("loss", "reference"), [(losses.sup_in, loop_sup_in), (losses.sup_out, loop_sup_out)]
)
@settings(deadline=None, max_examples=40)
@given(case=contrast_cases())
def test_contrastive_losses_and_gradients_equal_the_loops(loss, reference, case):
    similarity, positive, where, tau = case
    rows, gradient = rows_and_gradient(similarity, positive, where, tau, loss)
    np.testing.assert_allclose(rows, reference(similarity, positive, where, tau), atol=2e-5)
    expected = finite_differences(lambda u: reference(u, positive, where, tau), similarity)
    np.testing.assert_allclose(gradient, expected, atol=2e-4)
    empty = ~(positive & where).any(axis=1)
    assert np.all(np.asarray(rows)[empty] == 0)
    assert np.all(np.asarray(gradient)[empty] == 0)


def test_all_anchors_positive_is_zero_loss():
    similarity = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (3, 6)), jnp.float32)
    every = jnp.ones((3, 6), bool)
    np.testing.assert_allclose(losses.sup_in(similarity, every, temperature=0.1), 0, atol=1e-6)


def test_extreme_logits_stay_finite():
    similarity = jnp.array([[1.0, -1.0, 1.0]])
    positive = jnp.array([[False, True, False]])
    value, gradient = jax.value_and_grad(
        lambda u: losses.sup_in(u, positive, temperature=0.001).sum()
    )(similarity)
    assert value == pytest.approx(2000 + np.log(2), rel=1e-5)
    assert np.isfinite(gradient).all()


def test_infinite_similarity_behind_the_mask_does_no_harm():
    similarity = jnp.array([[0.5, -jnp.inf, 0.1]])
    where = jnp.array([[True, False, True]])
    positive = jnp.array([[True, True, False]])
    for loss in (losses.sup_in, losses.sup_out):
        gradient = jax.grad(
            lambda u, loss=loss: loss(u, positive, temperature=0.1, where=where).sum()
        )(similarity)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("loss", [losses.sup_in, losses.sup_out])
@pytest.mark.parametrize("exists", [False, True])
def test_a_row_without_positives_makes_no_nan_on_the_way(loss, exists):
    """So that `jax_debug_nans` can be left on: not only is the result finite."""
    similarity, positive = jnp.array([[0.1, 0.2], [0.3, 0.4]]), jnp.array([[False] * 2, [True] * 2])
    where = jnp.array([[exists] * 2, [True] * 2])
    with jax.debug_nans(True):
        value, gradient = jax.value_and_grad(
            lambda u: jnp.sum(loss(u, positive, temperature=0.1, where=where))
        )(similarity)
    assert jnp.isfinite(value)
    assert not jnp.any(gradient[0])


@settings(deadline=None, max_examples=40)
@given(case=contrast_cases())
def test_alpha_identities(case):
    """In [0, 1], ordered like similarity, summing to 1 - P_pos, and equal to minus tau dL/du."""
    similarity, positive, where, tau = case
    alpha = coefficients(similarity, positive, where, tau)
    _, gradient = rows_and_gradient(similarity, positive, where, tau, losses.sup_in)
    used = positive & where
    np.testing.assert_allclose(alpha, np.where(used, -tau * np.asarray(gradient), 0), atol=1e-6)
    assert np.all((np.asarray(alpha) >= 0) & (np.asarray(alpha) <= 1))
    for i in range(len(similarity)):
        weights = np.exp(similarity[i] / tau) * where[i]
        share = (weights * positive[i]).sum() / weights.sum() if used[i].any() else 1.0
        assert alpha[i].sum() == pytest.approx(1 - share, abs=1e-5)
        order = np.argsort(similarity[i][used[i]])
        assert np.all(np.diff(np.asarray(alpha)[i][used[i]][order]) >= -1e-6)


def test_gradient_in_embedding_space_is_the_alpha_weighted_sum():
    """-dL/dz = (1/tau) (sum_p alpha_p z_p - sum_n pi_n z_n)."""
    rng = np.random.default_rng(3)
    anchors = rng.normal(size=(7, 4))
    query = rng.normal(size=(1, 4))
    positive = np.array([[True, True, False, False, True, False, False]])
    tau = 0.3
    gradient = jax.grad(
        lambda z: losses.sup_in(
            z @ jnp.asarray(anchors, jnp.float32).T, jnp.asarray(positive), temperature=tau
        ).sum()
    )(jnp.asarray(query, jnp.float32))
    weights = np.exp((query @ anchors.T)[0] / tau)
    alpha = weights * positive[0] / (weights * positive[0]).sum() - weights * positive[0] / (
        weights.sum()
    )
    pull = alpha @ anchors - (weights * ~positive[0] / weights.sum()) @ anchors
    np.testing.assert_allclose(-gradient[0], pull / tau, rtol=1e-4)


@settings(deadline=None, max_examples=40)
@given(
    classes=st.sampled_from([2, 5]),
    smoothing=st.sampled_from([0.0, 0.3]),
    form=st.sampled_from(["official", "uniform"]),
    soft=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_cross_entropy_equals_the_loop(classes, smoothing, form, soft, seed):
    batch, rng = 3, np.random.default_rng(seed)
    logits = rng.normal(size=(batch, classes)) * 5
    if soft:
        labels = targets = rng.dirichlet(np.ones(classes), size=batch)
    else:
        labels = rng.integers(0, classes, batch)
        targets = np.eye(classes)[labels]
    on = 1 - smoothing if form == "official" else 1 - smoothing + smoothing / classes
    off = smoothing / (classes - 1) if form == "official" else smoothing / classes
    expected = []
    for row, target in zip(logits, targets, strict=True):
        log_probs = row - np.log(np.exp(row).sum())
        smoothed = target * on + (1 - target) * off
        expected.append(-(smoothed * log_probs).sum())
    dtype = jnp.float32 if soft else jnp.int32
    actual = losses.cross_entropy(
        jnp.asarray(logits, jnp.float32),
        jnp.asarray(labels, dtype),
        smoothing=smoothing,
        form=form,
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(
    shape=SHAPES,
    density=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
    tau=TEMPERATURES,
)
def test_soft_labels_equal_the_loop_and_sum_to_one(shape, density, seed, tau):
    (batch, rows), rng = shape, np.random.default_rng(seed)
    similarity = rng.uniform(-1, 1, (batch, rows))
    probs = rng.dirichlet(np.ones(3), size=rows)
    where = rng.random((batch, rows)) < density
    actual = losses.soft_labels(
        jnp.asarray(similarity, jnp.float32),
        jnp.asarray(probs, jnp.float32),
        temperature=tau,
        where=jnp.asarray(where),
    )
    for i in range(batch):
        weights = np.exp(similarity[i] / tau) * where[i]
        if not where[i].any():
            weights = np.ones(rows)
        np.testing.assert_allclose(actual[i], weights @ probs / weights.sum(), atol=1e-5)
    np.testing.assert_allclose(actual.sum(axis=1), 1, atol=1e-5)


def test_distributional_consistency_is_kl_and_its_gradient_that_of_soft_cross_entropy():
    rng = np.random.default_rng(0)
    target = rng.dirichlet(np.ones(4), size=3)
    target[0] = [1, 0, 0, 0]  # 0 log 0 = 0
    logits = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = [
        sum(p * np.log(p / q) for p, q in zip(row, other, strict=True) if p > 0)
        for row, other in zip(target, np.asarray(probs, np.float64), strict=True)
    ]
    target = jnp.asarray(target, jnp.float32)
    np.testing.assert_allclose(
        losses.distributional_consistency(target, logits), expected, rtol=1e-4
    )
    gradient = jax.grad(lambda x: losses.distributional_consistency(target, x).sum())(logits)
    soft = jax.grad(lambda x: optax.softmax_cross_entropy(x, target).sum())(logits)
    np.testing.assert_allclose(gradient, soft, atol=1e-6)
    same = losses.distributional_consistency(jax.nn.softmax(logits), logits)
    np.testing.assert_allclose(same, 0, atol=1e-6)
    to_target = jax.grad(lambda t: losses.distributional_consistency(t, logits).sum())(target)
    assert not to_target.any()


def test_normalise_gives_unit_rows_and_a_finite_gradient_at_zero():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32).at[2].set(0)
    norms = jnp.linalg.norm(losses.normalise(x), axis=1)
    np.testing.assert_allclose(norms, [1, 1, 0, 1], rtol=1e-6)
    assert np.isfinite(jax.grad(lambda x: losses.normalise(x).sum())(x)).all()
