"""Non-maximum suppression, exact, in static shapes and without a loop over single boxes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cone_jax.detection import boxes as box_lib

# Boxes decided at once: the vector units are busy, and a tile against itself stays cheap.
TILE = 256


class _Kept(NamedTuple):
    """The boxes kept so far, best first, in buffers of the final length."""

    tile: Int[Array, ""]
    found: Int[Array, ""]
    place: Int[Array, " M"]
    boxes: Float[Array, "M 4"]
    groups: Int[Array, " M"]


@jax.named_scope("nms")
def nms(
    boxes: Float[Array, "N 4"],
    scores: Float[Array, " N"],
    *,
    iou_threshold: float,
    max_outputs: int,
    groups: Int[Array, " N"] | None = None,
) -> tuple[Int[Array, " max_outputs"], Bool[Array, " max_outputs"]]:
    """Keeps boxes greedily by score: each drops those that overlap it by more than the threshold.

    Computes in float32. A choice has no gradient; that of ``boxes[index]`` is the gather's.

    Args:
        boxes: N boxes x0, y0, x1, y1; N may be 0.
        scores: of each box; -inf (or NaN) marks one that does not exist.
        iou_threshold: the largest `iou` that two kept boxes may have.
        max_outputs: places in the result.
        groups: only boxes of one group suppress each other, such as those of a class or a level.

    Returns:
        Indices into `boxes`, best first, and which of them are valid; invalid ones are 0. Of equal
        scores the lower index comes first, as in torchvision.

    >>> boxes = jnp.array([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 3.0], [5.0, 5.0, 6.0, 6.0]])
    >>> index, valid = nms(boxes, jnp.array([0.8, 0.9, 0.5]), iou_threshold=0.5, max_outputs=3)
    >>> index.tolist(), valid.tolist()
    ([1, 2, 0], [True, True, False])
    """
    boxes, scores = _checked(boxes, scores)
    if (number := len(boxes)) == 0:
        return jnp.zeros(max_outputs, jnp.int32), jnp.zeros(max_outputs, bool)
    tile = min(TILE, number)
    order, exists, sorted_boxes, sorted_groups = _best_first(boxes, scores, groups, tile)

    def unfinished(kept: _Kept) -> Array:
        start = jnp.minimum(kept.tile * tile, number - 1)
        return (kept.found < max_outputs) & (kept.tile * tile < number) & exists[start]

    def next_tile(kept: _Kept) -> _Kept:
        start = kept.tile * tile
        these = lax.dynamic_slice_in_dim(sorted_boxes, start, tile)
        group = lax.dynamic_slice_in_dim(sorted_groups, start, tile)
        alive = lax.dynamic_slice_in_dim(exists, start, tile)
        hit = _overlaps(these, group, kept.boxes, kept.groups, iou_threshold)
        alive &= ~jnp.any(hit & (jnp.arange(max_outputs) < kept.found), axis=1)
        alive = _greedy(alive, _overlaps(these, group, these, group, iou_threshold))
        # What goes beyond the buffers is dropped. Types are named for jax_enable_x64.
        found = kept.found + jnp.cumsum(alive, dtype=jnp.int32)
        target = jnp.where(alive, found - 1, max_outputs)
        return _Kept(
            kept.tile + 1,
            jnp.minimum(found[-1], max_outputs),
            kept.place.at[target].set(start + jnp.arange(tile, dtype=jnp.int32), mode="drop"),
            kept.boxes.at[target].set(these, mode="drop"),
            kept.groups.at[target].set(group, mode="drop"),
        )

    # Tiles in turn, until enough are found: first what earlier ones kept suppresses, then the own.
    kept = lax.while_loop(unfinished, next_tile, _nothing(max_outputs))
    return _indices(kept, order)


def _checked(boxes: jax.Array, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As float32 arrays of JAX's, since a traced order cannot sort NumPy's."""
    boxes, scores = (lax.stop_gradient(jnp.asarray(x, jnp.float32)) for x in (boxes, scores))
    box_lib.require_shape(boxes)
    if scores.shape != boxes.shape[:1]:
        raise ValueError(f"scores {scores.shape} must be {boxes.shape[:1]}, one for each box")
    return boxes, scores


def _best_first(
    boxes: Float[Array, "N 4"],
    scores: Float[Array, " N"],
    groups: Int[Array, " N"] | None,
    tile: int,
) -> tuple[Array, Array, Array, Array]:
    """The order of scores; then, in that order and padded to tiles, what exists, boxes, groups.

    Groups are compared: that costs less precision than the usual shift of coordinates.
    """
    number = len(boxes)
    groups = jnp.zeros(number, jnp.int32) if groups is None else jnp.asarray(groups, jnp.int32)
    scores, order = lax.top_k(jnp.where(jnp.isnan(scores), -jnp.inf, scores), number)
    missing = (0, -number % tile)
    exists, sorted_groups = jnp.pad(scores > -jnp.inf, missing), jnp.pad(groups[order], missing)
    return order, exists, jnp.pad(boxes[order], (missing, (0, 0))), sorted_groups


def _nothing(max_outputs: int) -> _Kept:
    zero, empty = jnp.zeros((), jnp.int32), jnp.zeros(max_outputs, jnp.int32)
    return _Kept(zero, zero, empty, jnp.zeros((max_outputs, 4), jnp.float32), empty)


def _indices(kept: _Kept, order: Int[Array, " N"]) -> tuple[Array, Array]:
    valid = jnp.arange(len(kept.place)) < kept.found
    return jnp.where(valid, order[kept.place], 0), valid


def _overlaps(
    first: Float[Array, "T 4"],
    first_groups: Int[Array, " T"],
    second: Float[Array, "M 4"],
    second_groups: Int[Array, " M"],
    threshold: float,
) -> Bool[Array, "T M"]:
    same = first_groups[:, None] == second_groups[None, :]
    return same & (box_lib.iou(first, second) > threshold)


def _greedy(alive: Bool[Array, " T"], overlap: Bool[Array, "T T"]) -> Bool[Array, " T"]:
    """The boxes of one tile that no better survivor overlaps.

    The first k boxes are final after k rounds, usually all after three or four.
    """
    better = jnp.tril(overlap, k=-1)

    def one_round(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        survivors, _ = state
        remaining = alive & ~jnp.any(better & survivors[None, :], axis=1)
        return remaining, jnp.any(remaining != survivors)

    return lax.while_loop(lambda state: state[1], one_round, (alive, jnp.array(True)))[0]
