"""Classifiers that ask for a margin, as pure functions on arrays.

The same contract as `cone_jax.losses`: one value per row, ``[B]``, float32, finite gradients.
Shapes: B rows of a batch, D input of the classifier, C classes.
"""

import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cone_jax import losses

Rows = Float[Array, " B"]
Norm = Literal["l1", "l2", "linf"]

# The norm in which a gradient is measured when distances are measured in the given one.
DUAL_NORM: dict[Norm, float] = {"l1": jnp.inf, "l2": 2, "linf": 1}


def l_softmax(
    inputs: Float[Array, "B D"],
    centres: Float[Array, "D C"],
    labels: Int[Array, " B"],
    *,
    margin: int,
    plain_share: float | Float[Array, ""] = 0.0,
) -> Rows:
    """Large-margin softmax: the angle to the true class centre counts `margin` times.

    The logit of the true class is ``|W_y| |x| (lambda cos t + psi(t)) / (1 + lambda)`` with
    ``psi(t) = (-1)^k cos(m t) - 2 k`` for t in ``[k pi / m, (k + 1) pi / m]``, and lambda =
    `plain_share`; every other one is ``W_j x``. There is no bias. ``margin=1`` is plain
    softmax cross-entropy. (Liu et al., "Large-Margin Softmax Loss", arXiv 1612.02295.)

    >>> x, centres = jnp.array([[1.0, 1.0]]), jnp.eye(2)
    >>> [round(float(l_softmax(x, centres, jnp.array([0]), margin=m)[0]), 4) for m in (1, 2)]
    [0.6931, 1.3133]
    """
    inputs, centres = inputs.astype(jnp.float32), centres.astype(jnp.float32)
    logits = jnp.matmul(inputs, centres, precision=jax.lax.Precision.HIGHEST)
    own = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    length = _length(inputs) * _length(centres.T)[labels]
    cosine = jnp.clip(own / length, -1.0, 1.0)
    # k from comparing cosines: the angle itself has an infinite derivative at 0.
    edges = jnp.asarray([math.cos(i * math.pi / margin) for i in range(1, margin)], jnp.float32)
    k = jnp.sum(cosine[:, None] < edges, axis=-1)
    psi = (1.0 - 2.0 * (k % 2)) * _chebyshev(cosine, margin) - 2.0 * k
    stretched = length * (plain_share * cosine + psi) / (1.0 + plain_share)
    is_own = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    return losses.cross_entropy(jnp.where(is_own, stretched[:, None], logits), labels)


def large_margin(
    classify: Callable[[Float[Array, "B ..."]], Float[Array, "B C"]],
    activations: Float[Array, "B ..."],
    labels: Int[Array, " B"],
    *,
    gamma: float,
    alpha: float,
    top_k: int = 1,
    norm: Norm = "l2",
) -> Rows:
    """Distance of an activation to the nearest decision boundary, wanted to be `gamma`.

    ``d_i = (p_y - p_i) / (|grad (p_y - p_i)|_dual + 1e-8)`` estimates it, to first order, for
    each of the `top_k` likeliest wrong classes i; p are the probabilities of
    ``classify(activations)``, and the gradient's norm is a constant. The loss is
    ``max(0, gamma - max(d, gamma (1 - alpha))) - gamma`` for the smallest d: without the
    constant at its end, which the public code has too, float32 would round small distances
    away. (Elsayed et al., "Large Margin Deep Networks for Classification", arXiv 1803.05598.)

    >>> x, labels = jnp.array([[0.5, 0.0]]), jnp.array([0])
    >>> loss = large_margin(lambda a: 4 * a, x, labels, gamma=10.0, alpha=2.0)
    >>> round(float(loss[0]), 4)  # the boundary is 0.35 away; saturation makes it look farther
    -0.6411
    """
    probs = jax.nn.softmax(classify(activations).astype(jnp.float32))
    is_own = jax.nn.one_hot(labels, probs.shape[-1], dtype=bool)
    wrong_classes = min(top_k, probs.shape[-1] - 1)
    if wrong_classes == 0:
        return jnp.zeros(labels.shape, jnp.float32)
    rivals = jax.lax.top_k(jnp.where(is_own, -1.0, probs), wrong_classes)[1]

    def lead(probs: Float[Array, "B C"], rival: Int[Array, " B"]) -> Rows:
        own = jnp.take_along_axis(probs, labels[:, None], axis=-1)
        return (own - jnp.take_along_axis(probs, rival[:, None], axis=-1))[:, 0]

    def gradient_norm(rival: Int[Array, " B"]) -> Rows:
        def total_lead(a: Float[Array, "B ..."]) -> Float[Array, ""]:
            return jnp.sum(lead(jax.nn.softmax(classify(a).astype(jnp.float32)), rival))

        # Constant for the activations as for the parameters inside `classify`.
        gradient = jax.lax.stop_gradient(jax.grad(total_lead)(activations))
        flat = gradient.reshape(gradient.shape[0], -1)
        return jnp.linalg.norm(flat, ord=DUAL_NORM[norm], axis=-1)

    distances = [lead(probs, rival) / (gradient_norm(rival) + 1e-8) for rival in rivals.T]
    nearest = jnp.min(jnp.stack(distances), axis=0)
    return -jnp.clip(nearest, gamma * (1.0 - alpha), gamma)


def _length(rows: Float[Array, "N D"]) -> Float[Array, " N"]:
    """Euclidean norms, at least 1e-12, with a finite gradient at zero."""
    return jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(rows), axis=-1), 1e-24))


def _chebyshev(cosine: Rows, m: int) -> Rows:
    """``cos(m t)`` from ``cos t``."""
    before, current = jnp.ones_like(cosine), cosine
    for _ in range(m - 1):
        before, current = current, 2.0 * cosine * current - before
    return current
