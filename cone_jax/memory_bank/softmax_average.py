"""A softmax-weighted average over rows that come in blocks, or from several devices.

Each block gives a `PartialAverage`. Partial averages merge in any order, and no weight of a row has
to be kept. Never NaN, whatever is masked.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Stands for minus infinity in masked rows, and is finite: where all rows are masked, all weigh
# the same, and the average is the plain mean.
_LOWEST = -1e30


class PartialAverage(NamedTuple):
    """An average in the making."""

    largest: Float[Array, " B"]  # logit so far
    weight: Float[Array, " B"]  # sum of exp(logit - largest)
    total: Float[Array, "B C"]  # sum of exp(logit - largest) * values


def of_block(
    logits: Float[Array, "B K"],
    values: Float[Array, "K C"],
    *,
    where: Bool[Array, "B K"],
    exists: Bool[Array, " K"] | None = None,
) -> PartialAverage:
    """What K rows contribute. Rows that do not `exist` (padding) have no part in a mean either."""
    logits = jnp.where(where, logits, _LOWEST)
    if exists is not None:
        logits = jnp.where(exists, logits, -jnp.inf)
    largest = jnp.maximum(jnp.max(logits, axis=-1), _LOWEST)
    weights = jnp.exp(logits - largest[:, None])
    total = jnp.matmul(weights, values.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    return PartialAverage(largest, jnp.sum(weights, axis=-1), total)


def merge(left: PartialAverage, right: PartialAverage) -> PartialAverage:
    """Both together."""
    largest = jnp.maximum(left.largest, right.largest)
    left, right = rescale(left, largest), rescale(right, largest)
    return PartialAverage(largest, left.weight + right.weight, left.total + right.total)


def rescale(partial: PartialAverage, largest: Float[Array, " B"]) -> PartialAverage:
    """The same, relative to a `largest` that is no less."""
    factor = jnp.exp(partial.largest - largest)
    return PartialAverage(largest, partial.weight * factor, partial.total * factor[:, None])


def finish(partial: PartialAverage) -> Float[Array, "B C"]:
    """The average."""
    return partial.total / partial.weight[:, None]
