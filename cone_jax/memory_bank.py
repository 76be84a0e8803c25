"""The circular memory bank: what the momentum network has seen lately.

A bank is a pytree of arrays and the functions here are pure, so it lives in a train state,
goes through `jit` with donation, and is checkpointed like any parameter. Row r is valid once
something has been written to it; rows are written in order and the oldest are overwritten.
Queries get gradients, the contents of the bank are constants.
"""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cone_jax import losses

# The id of a row, or of a query, that belongs to no record. It is never excluded.
NO_ID = -1


class MemoryBank(flax.struct.PyTreeNode):
    """K rows of keys, and where the next one goes."""

    features: Float[Array, "K D"]  # unit norm, float32
    labels: Int[Array, " K"]
    # What the key's classifier said when the row was written; None: not remembered.
    probs: Float[Array, "K C"] | None
    ids: Int[Array, " K"]  # record ids
    cursor: Int[Array, ""]  # the row written next
    filled: Int[Array, ""]  # how many rows are valid

    @property
    def size(self) -> int:
        return self.features.shape[0]


class Neighbours(NamedTuple):
    """The k nearest bank rows of each query, most similar first."""

    similarity: Float[Array, "B k"]  # 0 where not valid
    labels: Int[Array, "B k"]
    valid: Bool[Array, "B k"]
    rows: Int[Array, "B k"]  # indices into the bank


def init(size: int, dim: int, num_classes: int, dtype: jnp.dtype = jnp.float32) -> MemoryBank:
    """An empty bank; `dtype` (float32 or bfloat16) is that of the probabilities.

    With `num_classes` 0 the bank holds no probabilities, which most of its memory goes to.

    >>> bank = init(size=8, dim=2, num_classes=10)
    >>> bank.size, int(bank.filled), bank.labels.tolist()
    (8, 0, [-1, -1, -1, -1, -1, -1, -1, -1])
    """
    return MemoryBank(
        features=jnp.zeros((size, dim), jnp.float32),
        labels=jnp.full((size,), -1, jnp.int32),
        probs=jnp.full((size, num_classes), 1.0 / num_classes, dtype) if num_classes else None,
        ids=jnp.full((size,), NO_ID, jnp.int32),
        cursor=jnp.zeros((), jnp.int32),
        filled=jnp.zeros((), jnp.int32),
    )


def init_official(
    rng: jax.Array, size: int, dim: int, num_classes: int, dtype: jnp.dtype = jnp.float32
) -> MemoryBank:
    """The released code's bank: every row counts from the start, filled with noise.

    Random unit features, all of class 0, with Gaussian "probabilities". Kept for parity; it
    does harm until ``size`` keys have been enqueued.
    """
    features_rng, probs_rng = jax.random.split(rng)
    return init(size, dim, num_classes, dtype).replace(
        features=losses.normalise(jax.random.normal(features_rng, (size, dim))),
        labels=jnp.zeros((size,), jnp.int32),
        probs=jax.random.normal(probs_rng, (size, num_classes), dtype) if num_classes else None,
        filled=jnp.asarray(size, jnp.int32),
    )


def enqueue(
    bank: MemoryBank,
    features: Float[Array, "B D"],
    labels: Int[Array, " B"],
    probs: Float[Array, "B C"] | None,
    ids: Int[Array, " B"] | None = None,
) -> MemoryBank:
    """Writes B keys over the oldest rows, wrapping around at the end. Any B up to K.

    >>> bank = init(size=3, dim=1, num_classes=2)
    >>> for label in range(4):
    ...     bank = enqueue(bank, jnp.ones((1, 1)), jnp.array([label]), jnp.full((1, 2), 0.5))
    >>> bank.labels.tolist(), int(bank.cursor), int(bank.filled)
    ([3, 1, 2], 1, 3)
    """
    batch, size = features.shape[0], bank.size
    if batch > size:
        raise ValueError(f"cannot enqueue {batch} keys into a bank of {size} rows")
    rows = (bank.cursor + jnp.arange(batch, dtype=jnp.int32)) % size
    if ids is None:
        ids = jnp.full((batch,), NO_ID, jnp.int32)

    def write(column: Array | None, values: Array | None) -> Array | None:
        if column is None:
            return None
        if values is None:
            raise ValueError("the bank remembers probabilities, so each key needs its own")
        values = jax.lax.stop_gradient(values).astype(column.dtype)
        return column.at[rows].set(values, unique_indices=True)

    return bank.replace(
        features=write(bank.features, features),
        labels=write(bank.labels, labels),
        probs=write(bank.probs, probs),
        ids=write(bank.ids, ids),
        cursor=(bank.cursor + batch) % size,
        filled=jnp.minimum(bank.filled + batch, size),
    )


def valid_rows(
    bank: MemoryBank, exclude_ids: Int[Array, " B"] | None = None
) -> Bool[Array, "#B K"]:
    """Which rows each query may see: those written, without its own record's older copies."""
    valid = (jnp.arange(bank.size) < bank.filled)[None, :]
    if exclude_ids is None:
        return valid
    own = (bank.ids[None, :] == exclude_ids[:, None]) & (exclude_ids != NO_ID)[:, None]
    return valid & ~own


def similarity(bank: MemoryBank, queries: Float[Array, "B D"]) -> Float[Array, "B K"]:
    """Cosines between unit-norm queries and every row, in float32.

    At a temperature of 0.07 an error of 0.004 in a cosine is 0.06 in a logit, hence the
    highest matmul precision also where the network computes in bfloat16.
    """
    return losses.cosines(queries, jax.lax.stop_gradient(bank.features))


def neighbours(
    bank: MemoryBank,
    queries: Float[Array, "B D"],
    k: int,
    exclude_ids: Int[Array, " B"] | None = None,
    *,
    same_class: Int[Array, " B"] | None = None,
) -> Neighbours:
    """The k valid rows most similar to each query; fewer where the bank has fewer.

    `queries` have unit norm. `exclude_ids` hides from each query the rows of the same record;
    with `same_class`, the label of each query, it sees the rows of that label only.

    >>> bank = init(size=4, dim=2, num_classes=2)
    >>> bank = enqueue(bank, jnp.eye(2), jnp.array([7, 8]), jnp.eye(2), ids=jnp.array([0, 1]))
    >>> near = neighbours(bank, jnp.array([[0.6, 0.8]]), k=3)
    >>> near.labels.tolist(), near.valid.tolist()
    ([[8, 7, -1]], [[True, True, False]])
    >>> neighbours(bank, jnp.array([[0.6, 0.8]]), 1, exclude_ids=jnp.array([1])).labels.tolist()
    [[7]]
    >>> neighbours(bank, jnp.array([[0.6, 0.8]]), 1, same_class=jnp.array([7])).labels.tolist()
    [[7]]
    """
    if k > bank.size:
        raise ValueError(f"cannot take {k} neighbours from a bank of {bank.size} rows")
    valid = valid_rows(bank, exclude_ids)
    if same_class is not None:
        valid = valid & (bank.labels[None, :] == same_class[:, None])
    cosines = similarity(bank, queries)
    lowest = jnp.finfo(cosines.dtype).min
    top, rows = jax.lax.top_k(jnp.where(valid, cosines, lowest), k)
    found = jnp.take_along_axis(jnp.broadcast_to(valid, cosines.shape), rows, axis=-1)
    return Neighbours(
        similarity=jnp.where(found, top, 0.0),
        labels=jnp.where(found, bank.labels[rows], -1),
        valid=found,
        rows=rows,
    )


def all_rows(
    bank: MemoryBank,
    queries: Float[Array, "B D"],
    exclude_ids: Int[Array, " B"] | None = None,
) -> Neighbours:
    """Every row as a neighbour, in bank order: the whole bank as anchors."""
    cosines = similarity(bank, queries)
    valid = jnp.broadcast_to(valid_rows(bank, exclude_ids), cosines.shape)
    rows = jnp.broadcast_to(jnp.arange(bank.size), cosines.shape)
    labels = jnp.where(valid, bank.labels[None, :], -1)
    return Neighbours(jnp.where(valid, cosines, 0.0), labels, valid, rows)


def soft_labels(
    bank: MemoryBank,
    keys: Float[Array, "B D"],
    *,
    temperature: float,
    exclude_ids: Int[Array, " B"] | None = None,
) -> Float[Array, "B C"]:
    """The bank's stored predictions, weighted by their similarity to each key.

    Over *all* valid rows; rows of the result sum to 1. With nothing valid: the mean of the
    stored probabilities, which is uniform in a new bank.

    >>> bank = init(size=4, dim=2, num_classes=2)
    >>> soft_labels(bank, jnp.array([[1.0, 0.0]]), temperature=0.07).tolist()
    [[0.5, 0.5]]
    """
    if bank.probs is None:
        raise ValueError("the bank remembers no probabilities: it was made with num_classes=0")
    return losses.soft_labels(
        similarity(bank, keys),
        bank.probs,
        temperature=temperature,
        where=jnp.broadcast_to(valid_rows(bank, exclude_ids), (keys.shape[0], bank.size)),
    )
