"""Looking things up in a bank on several devices, each of which has its share of the queries.

Where the bank's rows are split too, every device gets all queries, answers them from its own rows,
and returns to each device the answers to that one's queries. Rows never travel.

Averages come as a `PartialAverage` per block of rows or per device. Partial averages merge in any
order, and no weight of a row has to be kept. Never NaN, whatever is masked.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
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


Tree = Any
# (the rows here, all queries, the number of the first row here) -> answers to all queries
Answer = Callable[[Any, Any, jax.Array], Any]


def query_local(mesh: Mesh, bank: Tree, queries: Tree, answer: Answer) -> Tree:
    """The answers of a bank that every device has whole, to the queries that each has.

    What the compiler would do by itself, but for `top_k`: it has all queries answered everywhere.
    """
    return _ask(mesh, bank, queries, answer, split=False)


def query_all(
    mesh: Mesh, bank: Tree, queries: Tree, answer: Answer, merge: Callable[[Tree], Tree]
) -> Tree:
    """What `merge` makes of the answers of all devices.

    It is given [b, n k] where each device answers with [B, k], in the order of the rows.
    """
    axis = mesh.axis_names[0]

    def collect(answers: Tree) -> Tree:
        exchanged = jax.tree.map(
            lambda x: jax.lax.all_to_all(x, axis, split_axis=0, concat_axis=1, tiled=True), answers
        )
        return merge(exchanged)

    return _ask(mesh, bank, queries, answer, collect)


def average(mesh: Mesh, bank: Tree, queries: Tree, answer: Answer) -> PartialAverage:
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


def write(
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
