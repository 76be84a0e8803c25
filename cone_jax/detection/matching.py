"""Matches anchors and proposals with objects."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cone_jax.detection import boxes as box_lib

IGNORED, BACKGROUND, OBJECT = -1, 0, 1


class Matches(NamedTuple):
    """`nearest` [N], the place of the best object, and `label` [N], one of the three above."""

    nearest: Int[Array, " N"]
    label: Int[Array, " N"]


def match(
    boxes: Float[Array, "N 4"],
    objects: Float[Array, "G 4"],
    valid: Bool[Array, " G"],
    *,
    low: float,
    high: float,
    low_quality: bool = False,
) -> Matches:
    """Assigns each box the valid object that it overlaps most (the first of several).

    An IoU of at least `high` makes an object, below `low` background, between them the box is
    ignored. With `low_quality` an object's best boxes (all of them, if several are equal) count as
    objects whatever their IoU, so that none goes without an anchor. They keep the object that
    they overlap most themselves. An object that no box touches matches none, where torchvision
    and Detectron2 match it with all boxes that overlap nothing.

    >>> boxes = jnp.array([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.0], [8.0, 8.0, 9.0, 9.0]])
    >>> matches = match(boxes, boxes[:1], jnp.array([True]), low=0.3, high=0.7)
    >>> matches.label.tolist()
    [1, -1, 0]
    """
    overlap = jnp.where(valid[None, :], box_lib.iou(boxes, objects), -1.0)
    best = jnp.max(overlap, axis=1)
    nearest = jnp.argmax(overlap, axis=1)
    label = jnp.where(best >= high, OBJECT, jnp.where(best < low, BACKGROUND, IGNORED))
    if low_quality:
        highest = jnp.max(overlap, axis=0)
        is_best = (overlap == highest[None, :]) & (highest > 0.0)[None, :]
        label = jnp.where(jnp.any(is_best, axis=1), OBJECT, label)
    return Matches(nearest, label)


def ignore_crowds(
    matches: Matches,
    boxes: Float[Array, "N 4"],
    crowds: Float[Array, "G 4"],
    is_crowd: Bool[Array, " G"],
    *,
    overlap: float,
) -> Matches:
    """Background boxes of which a crowd covers at least the share `overlap` become ignored.

    A crowd is a region of many objects that were not labelled one by one: a box in it may well
    hold one.

    >>> boxes = jnp.array([[0.0, 0.0, 1.0, 1.0]])
    >>> background = Matches(jnp.array([0]), jnp.array([BACKGROUND]))
    >>> crowd = jnp.array([[0.0, 0.0, 9.0, 9.0]])
    >>> ignore_crowds(background, boxes, crowd, jnp.array([True]), overlap=0.7).label.tolist()
    [-1]
    """
    common = jnp.where(is_crowd[None, :], box_lib.intersection(boxes, crowds), 0.0)
    covered = jnp.max(common, axis=1) >= overlap * box_lib.area(boxes)
    covered &= jnp.any(common > 0.0, axis=1)
    hidden = covered & (matches.label == BACKGROUND)
    return matches._replace(label=jnp.where(hidden, IGNORED, matches.label))


def take(objects: jax.Array, index: Int[Array, "*B N"]) -> jax.Array:
    """Rows [*B, N, ...] of `objects` [*B, G, ...], for each image its own.

    >>> take(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1], [0]])).tolist()
    [[2.0], [3.0]]
    """
    if index.ndim == 1:
        return objects[index]
    return jax.vmap(take)(objects, index)
