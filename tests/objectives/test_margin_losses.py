"""Margin losses against the published formulas written with angles, and finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import losses
from cone_jax.objectives import margin_losses
from tests.finite_differences import finite_differences

pytestmark = pytest.mark.optimised

B, D, C = 4, 3, 4
SEEDS = st.integers(0, 2**31)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def angular_loss(x, centres, labels, margin, plain_share):
    """The definition, with the angle itself."""
    total = 0.0
    for row, label in zip(x, labels, strict=True):
        logits = row @ centres
        lengths = np.linalg.norm(row) * np.linalg.norm(centres[:, label])
        angle = np.arccos(np.clip(logits[label] / lengths, -1, 1))
        k = min(int(angle / (np.pi / margin)), margin - 1)
        psi = (-1) ** k * np.cos(margin * angle) - 2 * k
        logits[label] = lengths * (plain_share * np.cos(angle) + psi) / (1 + plain_share)
        total += -np.log(softmax(logits)[label])
    return total


@functools.partial(jax.jit, static_argnames="margin")
def l_softmax_gradients(x, centres, labels, margin, plain_share):
    def total(x, centres):
        rows = margin_losses.l_softmax(x, centres, labels, margin=margin, plain_share=plain_share)
        return rows.sum()

    return jax.value_and_grad(total, argnums=(0, 1))(
        jnp.asarray(x, jnp.float32), jnp.asarray(centres, jnp.float32)
    )


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
@given(seed=SEEDS, plain_share=st.sampled_from([0.0, 5.0]))
@settings(deadline=None, max_examples=8)
def test_l_softmax_is_the_formula_in_angles(margin, seed, plain_share):
    rng = np.random.default_rng(seed)
    x, centres = rng.normal(size=(B, D)), rng.normal(size=(D, C))
    labels = rng.integers(0, C, B)
    value, gradients = l_softmax_gradients(x, centres, labels, margin, plain_share)
    assert float(value) == pytest.approx(
        angular_loss(x, centres, labels, margin, plain_share), rel=1e-4
    )
    expected = (
        finite_differences(lambda x: angular_loss(x, centres, labels, margin, plain_share), x),
        finite_differences(lambda w: angular_loss(x, w, labels, margin, plain_share), centres),
    )
    for gradient, difference in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, difference, rtol=5e-3, atol=2e-3)


def test_l_softmax_with_margin_one_is_cross_entropy():
    rng = np.random.default_rng(0)
    x, centres = rng.normal(size=(B, D)), rng.normal(size=(D, C))
    labels = jnp.arange(B) % C
    np.testing.assert_allclose(
        margin_losses.l_softmax(jnp.asarray(x), jnp.asarray(centres), labels, margin=1),
        losses.cross_entropy(jnp.asarray(x @ centres), labels),
        rtol=1e-4,
    )


@pytest.mark.parametrize("x", [np.zeros((1, D)), np.ones((1, D)), -np.ones((1, D))])
def test_l_softmax_is_finite_at_zero_and_on_the_axis(x):
    """Zero length, angle 0 and angle pi, where the angle has no derivative."""
    value, gradients = l_softmax_gradients(x, np.ones((D, C)), np.array([0]), 4, 0.0)
    assert np.isfinite(value)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


# Small enough that probabilities stay away from 0 and 1, where float32 has no slope left.
WEIGHTS = np.random.default_rng(3).normal(size=(D, C))


def classify(a):
    """Something curved, so that the gradient differs from row to row."""
    return jnp.tanh(a) @ jnp.asarray(WEIGHTS, jnp.float32)


def probabilities(row):
    return softmax(np.tanh(row) @ WEIGHTS)


def distance(row, norm_row, label, top_k, dual):
    """Of the nearest rival; the gradient's norm is taken at `norm_row`, a constant."""
    rivals = sorted((i for i in range(C) if i != label), key=lambda i: -probabilities(norm_row)[i])
    found = []
    for rival in rivals[:top_k]:

        def lead(a, rival=rival):
            return probabilities(a)[label] - probabilities(a)[rival]

        slope = finite_differences(lead, norm_row)
        found.append(lead(row) / (np.linalg.norm(slope, ord=dual) + 1e-8))
    return min(found)


@functools.partial(jax.jit, static_argnames=("gamma", "alpha", "top_k", "norm"))
def large_margin_gradient(a, labels, **settings):
    return jax.value_and_grad(
        lambda a: margin_losses.large_margin(classify, a, labels, **settings).sum()
    )(jnp.asarray(a, jnp.float32))


@pytest.mark.parametrize(("norm", "dual"), [("l2", 2), ("linf", 1), ("l1", np.inf)])
@given(seed=SEEDS, top_k=st.sampled_from([1, 2]), gamma=st.sampled_from([10000.0, 0.1]))
@settings(deadline=None, max_examples=8)
def test_large_margin_is_the_distance_to_the_boundary(norm, dual, seed, top_k, gamma):
    rng = np.random.default_rng(seed)
    a, labels = rng.normal(size=(B, D)), rng.integers(0, C, B)

    def loss(moved):
        total = 0.0
        for row, start, label in zip(moved, a, labels, strict=True):
            d = distance(row, start, label, top_k, dual)
            total += max(0.0, gamma - max(d, gamma * (1 - 2.0))) - gamma
        return total

    value, gradient = large_margin_gradient(
        a, labels, gamma=gamma, alpha=2.0, top_k=top_k, norm=norm
    )
    assert float(value) == pytest.approx(loss(a), rel=1e-3, abs=1e-4)
    np.testing.assert_allclose(gradient, finite_differences(loss, a), rtol=5e-3, atol=2e-3)


def test_the_norm_is_a_constant_for_the_classifiers_weights_too():
    rng = np.random.default_rng(5)
    a, labels = rng.normal(size=(B, D)), rng.integers(0, C, B)

    def leads(weights):
        """Of each row over its strongest rival, which the weights as given decide."""
        found = []
        for row, label in zip(a, labels, strict=True):
            p, start = softmax(row @ weights), softmax(row @ WEIGHTS)
            rival = max((i for i in range(C) if i != label), key=lambda i: start[i])
            found.append(p[label] - p[rival])
        return np.array(found)

    norms = [
        np.linalg.norm(finite_differences(lambda x, i=i: lead_at(x, labels[i], a[i]), a[i]))
        for i in range(B)
    ]

    def loss(weights):
        return -(leads(weights) / norms).sum()

    gradient = jax.grad(
        lambda w: margin_losses.large_margin(
            lambda x: x @ w, jnp.asarray(a, jnp.float32), labels, gamma=1e4, alpha=2.0
        ).sum()
    )(jnp.asarray(WEIGHTS, jnp.float32))
    np.testing.assert_allclose(gradient, finite_differences(loss, WEIGHTS), rtol=5e-3, atol=2e-3)


def lead_at(x, label, start):
    """p_y - p_i of a linear classifier at `x`, for the strongest rival at `start`."""
    at_start, p = softmax(start @ WEIGHTS), softmax(x @ WEIGHTS)
    rival = max((i for i in range(C) if i != label), key=lambda i: at_start[i])
    return p[label] - p[rival]


def test_large_margin_with_one_class_has_no_boundary():
    def one_class(a):
        return jnp.sum(a, axis=-1, keepdims=True)

    value, gradient = jax.value_and_grad(
        lambda a: margin_losses.large_margin(
            one_class, a, jnp.zeros(B, jnp.int32), gamma=1.0, alpha=2.0
        ).sum()
    )(jnp.ones((B, D)))
    assert value == 0
    assert not gradient.any()
