"""Boxes as arrays [..., 4] of x0, y0, x1, y1 in pixels, and the code that heads predict them in.

A box covers the continuous range from its first to its second corner, so its width is
``x1 - x0``. Every function is finite for boxes of up to 1e18 pixels (areas are float32): a box
without area overlaps nothing.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Boxes = Float[Array, "*N 4"]
Weights = tuple[float, float, float, float]

# An image of 1000 pixels from an anchor of 16: more than any box needs to grow.
MAX_LOG_SCALE = math.log(1000.0 / 16)
# Codes are logarithms of sides. A shorter side counts as this one.
MIN_SIDE = 1e-6


def require_shape(boxes: jax.Array) -> None:
    """Raises `ValueError` unless boxes are [N, 4].

    >>> require_shape(jnp.zeros((3, 5)))
    Traceback (most recent call last):
    ValueError: boxes (3, 5) must be [N, 4]: x0, y0, x1, y1; for a batch use jax.vmap
    """
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(
            f"boxes {boxes.shape} must be [N, 4]: x0, y0, x1, y1; for a batch use jax.vmap"
        )


def area(boxes: Boxes) -> Float[Array, "*N"]:
    """Width times height; 0 where a box is turned inside out.

    >>> area(jnp.array([[1.0, 1.0, 3.0, 4.0], [2.0, 0.0, 1.0, 1.0]])).tolist()
    [6.0, 0.0]
    """
    width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    return jnp.maximum(width, 0.0) * jnp.maximum(height, 0.0)


def intersection(first: Float[Array, "N 4"], second: Float[Array, "M 4"]) -> Float[Array, "N M"]:
    """The area that each pair has in common.

    >>> intersection(jnp.array([[0.0, 0.0, 2.0, 2.0]]), jnp.array([[1.0, 1.0, 3.0, 3.0]])).tolist()
    [[1.0]]
    """
    low = jnp.maximum(first[:, None, :2], second[None, :, :2])
    high = jnp.minimum(first[:, None, 2:], second[None, :, 2:])
    sides = jnp.maximum(high - low, 0.0)
    return sides[..., 0] * sides[..., 1]


def iou(first: Float[Array, "N 4"], second: Float[Array, "M 4"]) -> Float[Array, "N M"]:
    r"""Intersection over union of each pair; 0 for two boxes without area.

    $$\mathrm{IoU}(a, b) = \frac{|a \cap b|}{|a| + |b| - |a \cap b|}$$

    Args:
        first: N boxes x0, y0, x1, y1 in pixels.
        second: M boxes in the same form.

    Returns:
        Values from 0 to 1, N by M.

    >>> pair = jnp.array([[0.0, 0.0, 2.0, 2.0]]), jnp.array([[0.0, 0.0, 2.0, 1.0]])
    >>> iou(*pair).tolist()
    [[0.5]]
    """
    common = intersection(first, second)
    union = area(first)[:, None] + area(second)[None, :] - common
    return jnp.where(union > 0.0, common / jnp.where(union > 0.0, union, 1.0), 0.0)


def clip(boxes: Boxes, size: Float[Array, "*N 2"]) -> Boxes:
    """Boxes cut off at the borders of images of `size` (height, width).

    >>> clip(jnp.array([[-1.0, 2.0, 5.0, 9.0]]), jnp.array([[8.0, 4.0]])).tolist()
    [[0.0, 2.0, 4.0, 8.0]]
    """
    limit = jnp.stack([size[..., 1], size[..., 0]] * 2, axis=-1).astype(boxes.dtype)
    return jnp.minimum(jnp.maximum(boxes, 0.0), limit)


def sides_at_least(boxes: Boxes, smallest: float) -> Array:
    """[*N, 4] -> [*N]: whether a box has an area, and both sides at least `smallest`.

    >>> sides_at_least(jnp.array([[0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 0.0, 2.0]]), 0.0).tolist()
    [True, False]
    """
    sides = boxes[..., 2:] - boxes[..., :2]
    return jnp.all((sides >= smallest) & (sides > 0.0), axis=-1)


def encode(
    boxes: Boxes, references: Boxes, *, weights: Weights = (1.0, 1.0, 1.0, 1.0)
) -> Float[Array, "*N 4"]:
    """What a head has to predict at `references` (anchors or proposals) to arrive at `boxes`.

    With centres (x, y) and sides (w, h), a for the reference:
    ``wx (x - xa) / wa, wy (y - ya) / ha, ww log(w / wa), wh log(h / ha)``

    >>> box, reference = jnp.array([2.0, 0.0, 6.0, 8.0]), jnp.array([0.0, 0.0, 4.0, 8.0])
    >>> encode(box, reference).tolist()
    [0.5, 0.0, 0.0, 0.0]
    """
    centre, sides = _centre_and_sides(boxes)
    centre_a, sides_a = _centre_and_sides(references)
    sides, sides_a = jnp.maximum(sides, MIN_SIDE), jnp.maximum(sides_a, MIN_SIDE)
    shift = jnp.asarray(weights[:2]) * (centre - centre_a) / sides_a
    scale = jnp.asarray(weights[2:]) * jnp.log(sides / sides_a)
    return jnp.concatenate([shift, scale], axis=-1)


def decode(
    codes: Float[Array, "*N 4"], references: Boxes, *, weights: Weights = (1.0, 1.0, 1.0, 1.0)
) -> Boxes:
    """The boxes that `codes` stand for at `references`: the inverse of `encode`.

    A side grows by at most 62.5, so that no prediction overflows.

    >>> decode(jnp.array([0.5, 0.0, 0.0, 0.0]), jnp.array([0.0, 0.0, 4.0, 8.0])).tolist()
    [2.0, 0.0, 6.0, 8.0]
    """
    codes = codes.astype(jnp.float32)
    centre_a, sides_a = _centre_and_sides(references)
    shift = codes[..., :2] / jnp.asarray(weights[:2])
    scale = jnp.minimum(codes[..., 2:] / jnp.asarray(weights[2:]), MAX_LOG_SCALE)
    centre = shift * sides_a + centre_a
    half = 0.5 * jnp.exp(scale) * sides_a
    return jnp.concatenate([centre - half, centre + half], axis=-1)


def _centre_and_sides(boxes: Boxes) -> tuple[Array, Array]:
    boxes = boxes.astype(jnp.float32)
    sides = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * sides, sides
