"""The bank as data: its columns, how it begins, how keys are written into it, where its rows are.

On several devices each has its share of the queries. Where the bank's rows are split too, every
device gets all queries, answers them from its own rows, and returns to each device the answers to
that one's queries. Rows never travel.

Averages come as a `PartialAverage` per block of rows or per device. Partial averages merge in any
order, and no weight of a row has to be kept. Never NaN, whatever is masked.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from cone_jax import losses

# The id of a row, or of a query, that belongs to no record. It is never excluded.
NO_ID = -1

COLUMNS = ("features", "labels", "probs", "ids", "norms")


class MemoryBank(flax.struct.PyTreeNode):
    """K rows of keys, and where the next one goes.

    A bank that is split over n devices has its columns padded to a multiple of n rows; the
    padding is never written and never valid.

    >>> bank = init(size=3, dim=2, num_classes=0)
    >>> bank.size, bank.features.shape
    (3, (3, 2))
    """

    features: Float[Array, "K D"]  # embeddings of unit norm, float32
    labels: Int[Array, " K"]  # classes; -1: not written yet
    # Predictions of the key's classifier when the row was written; None: not stored.
    probs: Float[Array, "K C"] | None
    ids: Int[Array, " K"]  # record ids
    cursor: Int[Array, ""]  # the row written next
    filled: Int[Array, ""]  # the number of valid rows
    # Lengths of the embeddings before normalisation, from which a classifier can recompute
    # predictions instead of storing `probs`; None: not needed.
    norms: Float[Array, " K"] | None = None
    capacity: int | None = flax.struct.field(pytree_node=False, default=None)  # K, if padded
    # The devices that queries are split over, by rows; None: they are not.
    mesh: Mesh | None = flax.struct.field(pytree_node=False, default=None)
    split: bool = flax.struct.field(pytree_node=False, default=False)  # whether rows are split, too
    # Below 1, neighbours are chosen approximately, and this share of the true ones is expected.
    recall_target: float = flax.struct.field(pytree_node=False, default=1.0)

    @property
    def size(self) -> int:
        """The number of rows, K, without padding."""
        return self.features.shape[0] if self.capacity is None else self.capacity


def init(
    size: int,
    dim: int,
    num_classes: int,
    dtype: jnp.dtype = jnp.float32,
    *,
    mesh: Mesh | None = None,
    split: bool = False,
    keep_norms: bool = False,
    recall_target: float = 1.0,
) -> MemoryBank:
    """An empty bank: no row is valid until it is written.

    Args:
        size: K, the number of rows.
        dim: D, the width of an embedding.
        num_classes: C. With 0 the bank holds no probabilities, which take most of its memory.
        dtype: of the probabilities, float32 or bfloat16.
        mesh: the devices that queries will be split over, by rows.
        split: whether the bank's rows are split over them as well.
        keep_norms: remembers the lengths of embeddings, so that probabilities can be recomputed.
        recall_target: below 1, neighbours are chosen approximately, and this share is expected.

    Returns:
        A bank whose rows are all empty.

    >>> bank = init(size=8, dim=2, num_classes=10)
    >>> bank.size, int(bank.filled), bank.labels.tolist()
    (8, 0, [-1, -1, -1, -1, -1, -1, -1, -1])
    """
    rows = -(-size // mesh.size) * mesh.size if mesh is not None and split else size
    return MemoryBank(
        features=jnp.zeros((rows, dim), jnp.float32),
        labels=jnp.full((rows,), -1, jnp.int32),
        probs=jnp.full((rows, num_classes), 1.0 / num_classes, dtype) if num_classes else None,
        ids=jnp.full((rows,), NO_ID, jnp.int32),
        cursor=jnp.zeros((), jnp.int32),
        filled=jnp.zeros((), jnp.int32),
        norms=jnp.zeros((rows,), jnp.float32) if keep_norms else None,
        capacity=size if rows != size else None,
        mesh=mesh,
        split=split,
        recall_target=recall_target,
    )


def init_official(rng: jax.Array, bank: MemoryBank) -> MemoryBank:
    """The released code's initial bank: every row counts, and is filled with noise.

    Random unit features, all of class 0, with Gaussian "probabilities". Kept for parity; it is
    harmful until ``size`` keys have been enqueued.

    Args:
        rng: draws the noise.
        bank: of `init`; gives the shapes.

    Returns:
        A bank whose K rows are all valid.

    >>> bank = init_official(jax.random.key(0), init(3, dim=2, num_classes=2))
    >>> bank.labels.tolist(), int(bank.filled)
    ([0, 0, 0], 3)
    """
    features_rng, probs_rng = jax.random.split(rng)
    noise, probs = jax.random.normal, bank.probs
    return bank.replace(
        features=losses.normalise(noise(features_rng, bank.features.shape)),
        labels=jnp.zeros_like(bank.labels),
        probs=None if probs is None else noise(probs_rng, probs.shape, probs.dtype),
        norms=None if bank.norms is None else jnp.ones_like(bank.norms),
        filled=jnp.asarray(bank.size, jnp.int32),
    )


def enqueue(
    bank: MemoryBank,
    features: Float[Array, "B D"],
    labels: Int[Array, " B"],
    probs: Float[Array, "B C"] | None,
    ids: Int[Array, " B"] | None = None,
    *,
    norms: Float[Array, " B"] | None = None,
    when: Bool[Array, ""] | None = None,
) -> MemoryBank:
    r"""Writes B keys over the oldest rows: key $i$ to row $(\text{cursor} + i) \bmod K$.

    A donated bank is updated in place if everything that reads it has to be done before `when` is
    known; otherwise XLA may copy it first.

    Args:
        bank: the bank before.
        features: keys of unit length. B may be anything up to K.
        labels: their classes.
        probs: what the momentum network predicts for them; None if the bank remembers none.
        ids: their records, for `exclude_ids` later; None: they belong to no record.
        norms: the lengths of their embeddings, if the bank remembers those.
        when: with False the bank stays as it is.

    Returns:
        The bank after.

    >>> bank = init(size=3, dim=1, num_classes=2)
    >>> for label in range(4):
    ...     bank = enqueue(bank, jnp.ones((1, 1)), jnp.array([label]), jnp.full((1, 2), 0.5))
    >>> bank.labels.tolist(), int(bank.cursor), int(bank.filled)
    ([3, 1, 2], 1, 3)
    """
    batch, size = features.shape[0], bank.size
    if batch > size:
        raise ValueError(f"cannot enqueue {batch} keys into a bank of {size} rows")
    keys = {"features": features, "labels": labels}
    keys["ids"] = jnp.full((batch,), NO_ID, jnp.int32) if ids is None else ids
    for name, values in (("probs", probs), ("norms", norms)):
        if getattr(bank, name) is not None:
            if values is None:
                raise ValueError(f"the bank remembers {name}, so each key needs its own")
            keys[name] = values
    rows = (bank.cursor + jnp.arange(batch, dtype=jnp.int32)) % size
    count = jnp.asarray(batch, jnp.int32)
    if when is not None:
        # Rows past the end are not written.
        rows, count = jnp.where(when, rows, rows + len(bank.labels)), jnp.where(when, count, 0)
    return bank.replace(
        **_write(bank, jax.lax.stop_gradient(keys), rows),
        cursor=(bank.cursor + count) % size,
        filled=jnp.minimum(bank.filled + count, size),
    )


def _columns(bank: MemoryBank) -> dict[str, Array]:
    """The arrays with a value for each row."""
    columns = {name: getattr(bank, name) for name in COLUMNS}
    return {name: column for name, column in columns.items() if column is not None}


def _write(bank: MemoryBank, values: dict[str, Array], rows: Int[Array, " B"]) -> dict[str, Array]:
    """The columns of the bank with rows replaced, but for those past the end. Rows are distinct."""

    def replace(columns: dict[str, Array], values: dict[str, Array], rows: Array) -> dict:
        def one(column: Array, new: Array) -> Array:
            new = new.astype(column.dtype)
            return column.at[rows].set(new, mode="drop", unique_indices=True)

        return jax.tree.map(one, columns, values)

    if bank.mesh is None or not bank.split:
        return replace(_columns(bank), values, rows)
    return write_rows(bank.mesh, _columns(bank), values, rows, replace)


def shardings(bank: MemoryBank, mesh: Mesh) -> MemoryBank:
    """The sharding of each array: rows as the bank is split, counters on every device.

    Args:
        bank: the arrays, or their shapes.
        mesh: the devices.

    Returns:
        A bank that holds a sharding in place of each array.

    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> places = shardings(init(3, dim=2, num_classes=2, mesh=mesh, split=True), mesh)
    >>> places.features.spec == PartitionSpec("data"), places.cursor.spec == PartitionSpec()
    (True, True)
    """

    def place(column: Array | jax.ShapeDtypeStruct) -> NamedSharding:
        split = bank.split and column.ndim > 0
        return NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]) if split else PartitionSpec())

    return jax.tree.map(place, bank)


# Stands for minus infinity in masked rows, and is finite: where all rows are masked, all weigh
# the same, and the average is the plain mean.
_LOWEST = -1e30


class PartialAverage(NamedTuple):
    """A weighted average over some of the rows."""

    largest: Float[Array, " B"]  # logit so far
    weight: Float[Array, " B"]  # sum of exp(logit - largest)
    total: Float[Array, "B C"]  # sum of exp(logit - largest) * values


def block_average(
    logits: Float[Array, "B K"],
    values: Float[Array, "K C"],
    *,
    where: Bool[Array, "B K"],
    exists: Bool[Array, " K"] | None = None,
) -> PartialAverage:
    """The contribution of K rows. Rows that do not `exist` (padding) never count."""
    logits = jnp.where(where, logits, _LOWEST)
    if exists is not None:
        logits = jnp.where(exists, logits, -jnp.inf)
    largest = jnp.maximum(jnp.max(logits, axis=-1), _LOWEST)
    weights = jnp.exp(logits - largest[:, None])
    total = jnp.matmul(weights, values.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    return PartialAverage(largest, jnp.sum(weights, axis=-1), total)


def merge_averages(left: PartialAverage, right: PartialAverage) -> PartialAverage:
    """Both merged into one."""
    largest = jnp.maximum(left.largest, right.largest)
    left, right = rescale(left, largest), rescale(right, largest)
    return PartialAverage(largest, left.weight + right.weight, left.total + right.total)


def rescale(partial: PartialAverage, largest: Float[Array, " B"]) -> PartialAverage:
    """The same average, expressed relative to another `largest` that is not smaller."""
    factor = jnp.exp(partial.largest - largest)
    return PartialAverage(largest, partial.weight * factor, partial.total * factor[:, None])


def finish_average(partial: PartialAverage) -> Float[Array, "B C"]:
    """The average."""
    return partial.total / partial.weight[:, None]


Tree = Any
# (the rows here, all queries, the number of the first row here) -> answers to all queries
Answer = Callable[[Any, Any, jax.Array], Any]


def query_local(mesh: Mesh, bank: Tree, queries: Tree, answer: Answer) -> Tree:
    """Queries a bank that every device has whole: each device answers its own queries.

    The compiler does this by itself, except for `top_k`, which it runs on all queries everywhere.
    """
    return _ask(mesh, bank, queries, answer, split=False)


def query_all(
    mesh: Mesh, bank: Tree, queries: Tree, answer: Answer, merge: Callable[[Tree], Tree]
) -> Tree:
    """Queries a split bank, and merges the answers of all devices by `merge`.

    `merge` gets [b, n k] where each device answers with [B, k], in the order of the rows.
    """
    axis = mesh.axis_names[0]

    def collect(answers: Tree) -> Tree:
        exchanged = jax.tree.map(
            lambda x: jax.lax.all_to_all(x, axis, split_axis=0, concat_axis=1, tiled=True), answers
        )
        return merge(exchanged)

    return _ask(mesh, bank, queries, answer, collect)


def average_all(mesh: Mesh, bank: Tree, queries: Tree, answer: Answer) -> PartialAverage:
    """The partial averages of all devices merged into one."""
    axis = mesh.axis_names[0]

    def collect(partial: PartialAverage) -> PartialAverage:
        largest = jax.lax.pmax(jax.lax.stop_gradient(partial.largest), axis)
        here = rescale(partial, largest)

        def add_up(x: jax.Array) -> jax.Array:
            return jax.lax.psum_scatter(x, axis, scatter_dimension=0, tiled=True)

        weight, total = add_up(here.weight), add_up(here.total)
        return PartialAverage(jnp.zeros_like(weight), weight, total)

    return _ask(mesh, bank, queries, answer, collect)


def write_rows(
    mesh: Mesh,
    columns: dict[str, jax.Array],
    values: dict[str, jax.Array],
    rows: jax.Array,
    write_here: Callable[..., dict[str, jax.Array]],
) -> dict[str, jax.Array]:
    """Rows of split columns replaced: every device gets all values and keeps its own."""
    axis = PartitionSpec(mesh.axis_names[0])

    def local(
        columns: dict[str, jax.Array], values: dict[str, jax.Array], rows: jax.Array
    ) -> dict[str, jax.Array]:
        count = len(columns["labels"])
        place = rows - jax.lax.axis_index(mesh.axis_names[0]) * count
        # Past the end means elsewhere; a negative index would count from the end.
        beyond = count + jnp.arange(len(rows), dtype=rows.dtype)
        place = jnp.where((place >= 0) & (place < count), place, beyond)
        return write_here(columns, values, place)

    everywhere = PartitionSpec()
    return jax.shard_map(local, mesh=mesh, in_specs=(axis, everywhere, everywhere), out_specs=axis)(
        columns, values, rows
    )


def _ask(
    mesh: Mesh,
    bank: Tree,
    queries: Tree,
    answer: Answer,
    collect: Callable[[Tree], Tree] = lambda answers: answers,
    *,
    split: bool = True,
) -> Tree:
    axis = mesh.axis_names[0]
    shared, everywhere = PartitionSpec(axis), PartitionSpec()
    asked = jax.tree.leaves(queries)[0].shape[0]
    filler = -asked % mesh.size

    def padded(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, filler),) + ((0, 0),) * (x.ndim - 1)) if filler else x

    def local(part: Tree, own_queries: Tree) -> Tree:
        if not split:
            return answer(part, own_queries, jnp.zeros((), jnp.int32))
        everyone = jax.tree.map(lambda x: jax.lax.all_gather(x, axis, tiled=True), own_queries)
        rows_here = max(x.shape[0] for x in jax.tree.leaves(part) if x.ndim)
        first_row = jax.lax.axis_index(axis) * rows_here
        return collect(answer(part, everyone, first_row))

    bank_specs = jax.tree.map(lambda x: shared if split and x.ndim else everywhere, bank)
    answers = jax.shard_map(local, mesh=mesh, in_specs=(bank_specs, shared), out_specs=shared)(
        bank, jax.tree.map(padded, queries)
    )
    return jax.tree.map(lambda x: x[:asked], answers)
