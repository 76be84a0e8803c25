"""Draws a fixed number of boxes with a bounded share of objects, in static shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from cone_jax.detection import matching


class Samples(NamedTuple):
    """S slots: objects first, then background, then slots that repeat the earlier ones.

    `chosen` [S] says which box is in a slot, `valid` [S] marks slots that count, `is_object` [S]
    those among them that hold an object.
    """

    chosen: Int[Array, " S"]
    valid: Bool[Array, " S"]
    is_object: Bool[Array, " S"]


def sample(key: PRNGKeyArray, label: Int[Array, " N"], *, count: int, objects: int) -> Samples:
    """At most `objects` boxes labelled OBJECT, filled up to `count` with BACKGROUND.

    Both are drawn uniformly without replacement. Where too few boxes exist the remaining slots
    are invalid. They repeat valid ones in turn, so that statistics over all slots stay those of
    the samples.

    >>> label = jnp.array([1, 0, -1, 0, 0])
    >>> samples = sample(jax.random.key(0), label, count=4, objects=2)
    >>> samples.is_object.tolist(), samples.valid.tolist(), sorted(samples.chosen.tolist())
    ([True, False, False, False], [True, True, True, True], [0, 1, 3, 4])
    """
    priority = jax.random.uniform(key, label.shape)
    is_object, object_index = _draw(label == matching.OBJECT, priority, objects)
    is_background, background_index = _draw(label == matching.BACKGROUND, priority, count)
    rank = jnp.concatenate([2 * is_object.astype(jnp.int32), is_background.astype(jnp.int32)])
    index = jnp.concatenate([object_index, background_index])
    # top_k puts the first of equals first, so slots keep the order of the draw.
    rank, place = lax.top_k(rank, count)
    valid = rank > 0
    index = index[place]
    turn = jnp.arange(count) % jnp.maximum(jnp.sum(valid), 1)
    return Samples(index[turn], valid, rank == 2)


def object_slots(samples: Samples, count: int) -> tuple[Int[Array, " P"], Bool[Array, " P"]]:
    """The slots [P] of the sampled objects, `count` = P of them at most, and which are valid [P].

    Invalid ones repeat the objects in turn.

    >>> samples = Samples(jnp.arange(3), jnp.ones(3, bool), jnp.array([True, False, False]))
    >>> [each.tolist() for each in object_slots(samples, 2)]
    [[0, 0], [True, False]]
    """
    found = jnp.sum(samples.is_object)
    slots = jnp.arange(count)
    return slots % jnp.maximum(found, 1), slots < found


def _draw(
    wanted: Bool[Array, " N"], priority: Array, count: int
) -> tuple[Bool[Array, " count"], Int[Array, " count"]]:
    """Of the wanted boxes the `count` with the highest priority; False where there are fewer."""
    available = min(count, wanted.shape[0])
    priority, index = lax.top_k(jnp.where(wanted, priority, -1.0), available)
    missing = (0, count - available)
    return jnp.pad(priority >= 0.0, missing), jnp.pad(index, missing)
