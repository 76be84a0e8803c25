"""The five losses of Mask R-CNN, as pure functions on arrays.

Leading axes (images, samples) are summed over; masks say what counts, and padding has neither
value nor gradient. Each divides by a number of samples, at least 1, so that a batch without any
object has finite losses. All are computed in float32.

Reference: He et al., "Mask R-CNN", arXiv 1703.06870.
"""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int


def smooth_l1(difference: Float[Array, "*N"], *, beta: float) -> Float[Array, "*N"]:
    """``d^2 / (2 beta)`` below `beta`, ``|d| - beta / 2`` above; `beta` 0 is L1.

    >>> smooth_l1(jnp.array([0.5, -2.0]), beta=1.0).tolist()
    [0.125, 1.5]
    >>> smooth_l1(jnp.array([0.5, -2.0]), beta=0.0).tolist()
    [0.5, 2.0]
    """
    size = jnp.abs(difference)
    if beta < 1e-5:
        return size
    return jnp.where(size < beta, 0.5 * jnp.square(size) / beta, size - 0.5 * beta)


def objectness(
    logits: Float[Array, "*N"],
    is_object: Bool[Array, "*N"],
    valid: Bool[Array, "*N"],
    *,
    total: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Binary cross-entropy of the sampled anchors, divided by `total` (their number, if None).

    >>> yes = jnp.array([True, False])
    >>> round(float(objectness(jnp.array([0.0, 9.0]), yes, yes)), 4)
    0.6931
    """
    terms = optax.sigmoid_binary_cross_entropy(
        logits.astype(jnp.float32), is_object.astype(jnp.float32)
    )
    return jnp.sum(terms, where=valid) / _count(valid, total)


def box_codes(
    codes: Float[Array, "*N 4"],
    targets: Float[Array, "*N 4"],
    is_object: Bool[Array, "*N"],
    *,
    beta: float,
    total: Float[Array, ""],
) -> Float[Array, ""]:
    """Smooth L1 over the four numbers of each object, divided by `total` samples.

    The number of samples, not of objects: each object then counts alike in every image.

    >>> codes, yes = jnp.ones((2, 4)), jnp.array([True, False])
    >>> float(box_codes(codes, jnp.zeros((2, 4)), yes, beta=0.0, total=jnp.array(2.0)))
    2.0
    """
    # Padding may hold any target. Selecting before the loss keeps its gradient out as well.
    difference = jnp.where(is_object[..., None], codes.astype(jnp.float32) - targets, 0.0)
    return jnp.sum(smooth_l1(difference, beta=beta)) / _count(is_object, total)


def classification(
    logits: Float[Array, "*N C"], classes: Int[Array, "*N"], valid: Bool[Array, "*N"]
) -> Float[Array, ""]:
    """Softmax cross-entropy averaged over the sampled proposals; class 0 is the background.

    >>> logits = jnp.array([[0.0, 0.0], [9.0, 9.0]])
    >>> round(float(classification(logits, jnp.array([1, 0]), jnp.array([True, False]))), 4)
    0.6931
    """
    terms = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), classes)
    return jnp.sum(terms, where=valid) / _count(valid, None)


def mask(
    logits: Float[Array, "*N M M C"],
    classes: Int[Array, "*N"],
    targets: Float[Array, "*N M M"],
    valid: Bool[Array, "*N"],
) -> Float[Array, ""]:
    """Binary cross-entropy of the mask of each object's own class, averaged over its pixels.

    >>> logits = jnp.zeros((1, 2, 2, 3))
    >>> target = jnp.ones((1, 2, 2))
    >>> round(float(mask(logits, jnp.array([2]), target, jnp.array([True]))), 4)
    0.6931
    """
    own = select_class(logits, classes)
    terms = optax.sigmoid_binary_cross_entropy(own.astype(jnp.float32), targets)
    per_object = jnp.mean(terms, axis=(-2, -1))
    return jnp.sum(per_object, where=valid) / _count(valid, None)


def select_class(logits: Float[Array, "*N M M C"], classes: Int[Array, "*N"]) -> Array:
    """The map [*N, M, M] of each object's class.

    A sum over classes of which one is not 0: on a TPU a gather would change the layout of all maps.

    >>> select_class(jnp.arange(3.0).reshape(1, 1, 1, 3), jnp.array([2])).tolist()
    [[[2.0]]]
    """
    own = jnp.arange(logits.shape[-1]) == classes[..., None, None, None]
    return jnp.sum(jnp.where(own, logits, 0), axis=-1)


def _count(valid: Bool[Array, "*N"], total: Float[Array, ""] | None) -> Array:
    number = jnp.sum(valid) if total is None else total
    return jnp.maximum(number.astype(jnp.float32), 1.0)
