"""The bank as data: its columns, how it begins, and how keys are written into it."""

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from cone_jax import losses
from cone_jax.memory_bank import sharded

# The id of a row, or of a query, that belongs to no record. It is never excluded.
NO_ID = -1

COLUMNS = ("features", "labels", "probs", "ids", "norms")


class MemoryBank(flax.struct.PyTreeNode):
    """K rows of keys, and where the next one goes.

    A bank that is split over n devices has its columns padded to a multiple of n rows; the
    padding is never written and never valid.
    """

    features: Float[Array, "K D"]  # unit norm, float32
    labels: Int[Array, " K"]
    # What the key's classifier said when the row was written; None: not remembered.
    probs: Float[Array, "K C"] | None
    ids: Int[Array, " K"]  # record ids
    cursor: Int[Array, ""]  # the row written next
    filled: Int[Array, ""]  # how many rows are valid
    # Lengths of the embeddings before they were normalised, from which a classifier can say
    # today what `probs` would remember; None: not needed.
    norms: Float[Array, " K"] | None = None
    capacity: int | None = flax.struct.field(pytree_node=False, default=None)  # K, if padded
    # The devices that queries are split over, by rows; None: they are not.
    mesh: Mesh | None = flax.struct.field(pytree_node=False, default=None)
    split: bool = flax.struct.field(pytree_node=False, default=False)  # the bank's rows are too
    # Below 1, neighbours are chosen approximately, and this share of them is to be the right ones.
    recall_target: float = flax.struct.field(pytree_node=False, default=1.0)

    @property
    def size(self) -> int:
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
    """An empty bank; `dtype` (float32 or bfloat16) is that of the probabilities.

    With `num_classes` 0 the bank holds no probabilities, which most of its memory goes to; with
    `keep_norms` they can be recomputed. `mesh` says that queries will be split over its devices, by
    rows; with `split` the bank's rows are split over them as well.

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
    """The released code's beginning: every row of `bank` counts, and is filled with noise.

    Random unit features, all of class 0, with Gaussian "probabilities". Kept for parity; it
    does harm until ``size`` keys have been enqueued.

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
    """Writes B keys over the oldest rows, wrapping around at the end. Any B up to K.

    With `when` False the bank stays as it is. A donated bank is updated in place if everything
    that reads it has to be done before `when` is known; otherwise XLA may copy it first.

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
    return sharded.write(bank.mesh, _columns(bank), values, rows, replace)


def shardings(bank: MemoryBank, mesh: Mesh) -> MemoryBank:
    """Where each array of the bank is to be: rows as the bank says, the counters everywhere.

    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> places = shardings(init(3, dim=2, num_classes=2, mesh=mesh, split=True), mesh)
    >>> places.features.spec == PartitionSpec("data"), places.cursor.spec == PartitionSpec()
    (True, True)
    """

    def place(column: Array | jax.ShapeDtypeStruct) -> NamedSharding:
        split = bank.split and column.ndim > 0
        return NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]) if split else PartitionSpec())

    return jax.tree.map(place, bank)
