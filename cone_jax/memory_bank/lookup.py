"""Look-ups in a bank: nearest rows, all rows, averaged predictions.

The k nearest are chosen by `top_k`, exactly or approximately.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cone_jax import losses
from cone_jax.memory_bank.bank import (
    NO_ID,
    MemoryBank,
    PartialAverage,
    average_all,
    block_average,
    finish_average,
    merge_averages,
    query_all,
    query_local,
)

# Weights that `soft_labels` holds at a time, one for each query and row: a quarter of a GiB. A few
# blocks of rows cost a little more time than all at once, and far less memory.
MOST_WEIGHTS = 2**26

# Embeddings [K, D], as long as they were, to class probabilities [K, C].
Classify = Callable[[jax.Array], jax.Array]


class Neighbours(NamedTuple):
    """The k nearest bank rows of each query, most similar first.

    >>> from cone_jax.memory_bank import init
    >>> neighbours(init(size=4, dim=2, num_classes=0), jnp.eye(2), k=3).similarity.shape
    (2, 3)
    """

    similarity: Float[Array, "B k"]  # cosines; 0 where not valid
    labels: Int[Array, "B k"]  # classes; -1 where not valid
    valid: Bool[Array, "B k"]  # whether the row exists
    rows: Int[Array, "B k"]  # indices into the bank


class Queries(NamedTuple):
    """The queries of a look-up, one per row."""

    embedding: Float[Array, "B D"]  # unit norm
    exclude_ids: Int[Array, " B"] | None
    same_class: Int[Array, " B"] | None = None


def valid_rows(
    bank: MemoryBank, exclude_ids: Int[Array, " B"] | None = None
) -> Bool[Array, "#B K"]:
    """Which rows each query may see: those written, except older copies of its own record.

    Args:
        bank: K rows.
        exclude_ids: the record of each query, whose rows it must not see; `NO_ID` for none.

    Returns:
        A mask with one row for all queries or, with `exclude_ids`, one row per query.

    >>> from cone_jax.memory_bank import enqueue, init
    >>> bank = enqueue(init(3, 2, 0), jnp.eye(2), jnp.array([7, 8]), None, ids=jnp.array([0, 1]))
    >>> valid_rows(bank).tolist(), valid_rows(bank, jnp.array([1])).tolist()
    ([[True, True, False]], [[True, False, False]])
    """
    queries = Queries(jnp.zeros((1, 0)), exclude_ids)
    return _visible(bank, queries, 0)[:, : bank.size]


def similarity(bank: MemoryBank, queries: Float[Array, "B D"]) -> Float[Array, "B K"]:
    r"""Cosines between unit-norm queries and every row, $u_{ik} = q_i \cdot b_k$.

    In float32: at a temperature of 0.07 an error of 0.004 in a cosine is 0.06 in a logit, hence the
    highest matmul precision also where the network computes in bfloat16.

    Args:
        bank: K rows.
        queries: B rows of unit length.

    Returns:
        Float32, B by K. Rows that were never written have cosine 0: see `valid_rows`.

    >>> from cone_jax.memory_bank import enqueue, init
    >>> bank = enqueue(init(2, 2, 0), jnp.eye(2), jnp.array([7, 8]), None)
    >>> print(similarity(bank, jnp.array([[0.6, 0.8]])))
    [[0.6 0.8]]
    """
    return losses.cosines(queries, jax.lax.stop_gradient(bank.features[: bank.size]))


def neighbours(
    bank: MemoryBank,
    queries: Float[Array, "B D"],
    k: int,
    exclude_ids: Int[Array, " B"] | None = None,
    *,
    same_class: Int[Array, " B"] | None = None,
) -> Neighbours:
    """The k valid rows most similar to each query; fewer where the bank has fewer.

    Args:
        bank: K rows.
        queries: B rows of unit length; gradients reach them through the cosines.
        k: the number of neighbours.
        exclude_ids: hides from each query the rows of the same record.
        same_class: the label of each query, which then sees the rows of that label only.

    Returns:
        Cosines, labels, validity and positions in the bank, all B by k.

    >>> from cone_jax.memory_bank import enqueue, init
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
    asked = Queries(queries, exclude_ids, same_class)

    def nearest_here(part: MemoryBank, queries: Queries, first_row: jax.Array) -> Neighbours:
        return _nearest(part, queries, min(k, len(part.labels)), first_row)

    def nearest_of_all(candidates: Neighbours) -> Neighbours:
        # Those of the first device stand first, so equal ones are in the order of their rows.
        ranked = jnp.where(candidates.valid, candidates.similarity, -jnp.inf)
        _, place = jax.lax.top_k(jax.lax.stop_gradient(ranked), k)
        return jax.tree.map(lambda values: jnp.take_along_axis(values, place, axis=-1), candidates)

    if bank.mesh is None:
        return _nearest(bank, asked, k, first_row=0)
    if not bank.split:
        return query_local(bank.mesh, bank, asked, nearest_here)
    return query_all(bank.mesh, bank, asked, nearest_here, nearest_of_all)


def _nearest(
    bank: MemoryBank, queries: Queries, k: int, first_row: Int[Array, ""] | int
) -> Neighbours:
    """The nearest of the rows from `first_row` on, which are all that `bank` has here."""
    visible = _visible(bank, queries, first_row)
    cosines = losses.cosines(
        jax.lax.stop_gradient(queries.embedding), jax.lax.stop_gradient(bank.features)
    )
    lowest = jnp.finfo(cosines.dtype).min
    top, rows = top_k(jnp.where(visible, cosines, lowest), k, recall_target=bank.recall_target)
    found = top != lowest  # looked up in `visible`, it would be a matrix [B, K] of its own
    return Neighbours(
        similarity=jnp.where(found, _of_rows(queries.embedding, bank.features, rows, top), 0.0),
        labels=jnp.where(found, bank.labels[rows], -1),
        valid=found,
        rows=rows + first_row,
    )


@jax.custom_jvp
def _of_rows(
    queries: Float[Array, "B D"],
    features: Float[Array, "K D"],
    rows: Int[Array, "B k"],
    cosines: Float[Array, "B k"],
) -> Float[Array, "B k"]:
    """The cosines with chosen rows, already computed; their gradient comes from these rows alone.

    Through the selection it would be a product with the whole bank.
    """
    return cosines


@_of_rows.defjvp
def _of_rows_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    _, features, rows, cosines = primals
    chosen = jax.lax.stop_gradient(features)[rows]
    highest = jax.lax.Precision.HIGHEST
    return cosines, jnp.einsum("bd,bkd->bk", tangents[0], chosen, precision=highest)


def all_rows(
    bank: MemoryBank,
    queries: Float[Array, "B D"],
    exclude_ids: Int[Array, " B"] | None = None,
) -> Neighbours:
    """Every row as a neighbour, in bank order: the whole bank as anchors.

    Args:
        bank: K rows.
        queries: B rows of unit length; gradients reach them through the cosines.
        exclude_ids: hides from each query the rows of the same record.

    Returns:
        Cosines, labels, validity and positions in the bank, all B by K.

    >>> from cone_jax.memory_bank import enqueue, init
    >>> bank = enqueue(init(3, 2, 0), jnp.eye(2), jnp.array([7, 8]), None)
    >>> near = all_rows(bank, jnp.array([[0.6, 0.8]]))
    >>> near.labels.tolist(), near.valid.tolist()
    ([[7, 8, -1]], [[True, True, False]])
    """
    cosines = similarity(bank, queries)
    valid = jnp.broadcast_to(valid_rows(bank, exclude_ids), cosines.shape)
    rows = jnp.broadcast_to(jnp.arange(bank.size), cosines.shape)
    labels = jnp.where(valid, bank.labels[None, : bank.size], -1)
    return Neighbours(jnp.where(valid, cosines, 0.0), labels, valid, rows)


def soft_labels(
    bank: MemoryBank,
    keys: Float[Array, "B D"],
    *,
    temperature: float,
    exclude_ids: Int[Array, " B"] | None = None,
    classify: Classify | None = None,
) -> Float[Array, "B C"]:
    r"""The bank's predictions, weighted by their similarity to each key.

    $$\tilde p_i = \sum_j \operatorname{softmax}_j(v_{ij} / \tau)\, p_j$$

    The same as `losses.soft_labels`, but over a bank and one block of rows at a time.

    Args:
        bank: K rows.
        keys: B rows of unit length.
        temperature: $\tau$.
        exclude_ids: hides from each key the rows of the same record.
        classify: the classifier of embeddings, for a bank that keeps norms instead of $p$.

    Returns:
        Rows that sum to 1, over *all* valid rows of the bank. With nothing valid: the mean over all
        rows, which is uniform in a new bank.

    >>> from cone_jax.memory_bank import init
    >>> bank = init(size=4, dim=2, num_classes=2)
    >>> soft_labels(bank, jnp.array([[1.0, 0.0]]), temperature=0.07).tolist()
    [[0.5, 0.5]]
    """
    if bank.probs is None and (bank.norms is None or classify is None):
        raise ValueError(
            "the bank remembers no probabilities: it was made with num_classes=0; to recompute "
            "them it needs keep_norms=True and a classifier"
        )
    asked = Queries(keys, exclude_ids)
    if bank.mesh is None or not bank.split:
        return finish_average(_average(bank, asked, temperature, classify, 0))

    def average_here(part: MemoryBank, everyone: Queries, first_row: jax.Array) -> PartialAverage:
        return _average(part, everyone, temperature, classify, first_row)

    return finish_average(average_all(bank.mesh, bank, asked, average_here))


def _average(
    bank: MemoryBank,
    queries: Queries,
    temperature: float,
    classify: Classify | None,
    first_row: Int[Array, ""] | int,
) -> PartialAverage:
    """The average over the rows from `first_row` on, a block of them at a time."""
    total = len(bank.labels)

    def of_rows(start: Int[Array, ""] | int, count: int) -> PartialAverage:
        block: MemoryBank = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, start, count) if x.ndim else x, bank
        )
        if block.probs is not None:
            values = block.probs
        else:
            assert block.norms is not None and classify is not None
            values = classify(block.features * block.norms[:, None])
        first = first_row + start
        exists = first + jnp.arange(count) < bank.size
        return block_average(
            losses.cosines(queries.embedding, block.features) / temperature,
            values,
            where=_visible(block, queries, first),
            exists=exists if bank.capacity is not None else None,
        )

    block = max(MOST_WEIGHTS // len(queries.embedding), 1)
    blocks, rest = divmod(total, block)
    if blocks == 0:
        return of_rows(0, total)
    average = of_rows(0, block)
    if blocks > 1:

        def add(average: PartialAverage, index: Int[Array, ""]) -> tuple[PartialAverage, None]:
            return merge_averages(average, of_rows(index * block, block)), None

        average, _ = jax.lax.scan(add, average, jnp.arange(1, blocks))
    if rest:
        average = merge_averages(average, of_rows(blocks * block, rest))
    return average


def _visible(
    bank: MemoryBank, queries: Queries, first_row: Int[Array, ""] | int
) -> Bool[Array, "#B K"]:
    """`valid_rows` of the rows from `first_row` on."""
    visible = (first_row + jnp.arange(len(bank.labels)) < bank.filled)[None, :]
    if queries.exclude_ids is not None:
        ids = queries.exclude_ids[:, None]
        visible = visible & ~((bank.ids[None, :] == ids) & (ids != NO_ID))
    if queries.same_class is not None:
        visible = visible & (bank.labels[None, :] == queries.same_class[:, None])
    return visible


def recall(
    bank: MemoryBank,
    queries: Float[Array, "B D"],
    k: int,
    exclude_ids: Int[Array, " B"] | None = None,
) -> Float[Array, ""]:
    """The share of the true k nearest rows that `neighbours` finds: 1 unless it approximates.

    Args:
        bank: K rows.
        queries: B rows of unit length.
        k: the number of neighbours to compare.
        exclude_ids: hides from each query the rows of the same record.

    Returns:
        One share for all queries together.

    >>> from cone_jax.memory_bank import enqueue, init
    >>> bank = enqueue(init(3, 2, 0), jnp.eye(2), jnp.array([7, 8]), None)
    >>> float(recall(bank, jnp.array([[0.6, 0.8]]), k=1))
    1.0
    """
    found = neighbours(bank, queries, k, exclude_ids)
    true = neighbours(bank.replace(recall_target=1.0), queries, k, exclude_ids)
    hit = jnp.any(true.rows[:, :, None] == found.rows[:, None, :], axis=-1) & true.valid
    return jnp.sum(hit) / jnp.maximum(jnp.sum(true.valid), 1)


# Narrower rows gain nothing from a selection in two stages.
WIDE = 8192
SMALLEST_BLOCK = 8


def top_k(
    values: Float[Array, "B K"], k: int, *, recall_target: float = 1.0
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k largest values of each row and their positions, largest first.

    The same result as `jax.lax.top_k`, equal values included, but wide rows are selected from
    in two stages. With a `recall_target` below 1, `jax.lax.approx_max_k` is used instead, which
    is faster on a TPU and misses some.

    >>> print(*top_k(jnp.array([[3.0, 1.0, 2.0, 3.0]]), k=3))
    [[3. 3. 2.]] [[0 3 2]]
    """
    if recall_target < 1.0:
        return jax.lax.approx_max_k(values, k, recall_target=recall_target)
    block = _block(values.shape[-1], k)
    if values.shape[-1] < WIDE or block < SMALLEST_BLOCK:
        return jax.lax.top_k(values, k)
    return _top_k_in_blocks(values, k, block)


def _block(columns: int, k: int) -> int:
    """The power of two for which both stages choose from about as many candidates."""
    return 2 ** round(math.log2(columns / k) / 2)


def _top_k_in_blocks(
    values: Float[Array, "B K"], k: int, block: int
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k blocks with the largest maxima contain the k largest values.

    Were a value among the k largest in another block, the maxima of k blocks would be ahead of it.
    "Ahead" means larger, or equal and further left, as in `lax.top_k`; for this the second stage
    must see the chosen blocks from left to right.
    """
    rows, columns = values.shape
    count = -(-columns // block)
    padding = ((0, 0), (0, count * block - columns))
    lowest = jnp.finfo(values.dtype).min
    blocks = jnp.pad(values, padding, constant_values=lowest).reshape(rows, count, block)
    _, chosen = jax.lax.top_k(jnp.max(blocks, axis=-1), k)
    chosen = jnp.sort(chosen, axis=-1)
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(rows, k * block)
    top, place = jax.lax.top_k(candidates, k)
    return top, jnp.take_along_axis(chosen, place // block, axis=1) * block + place % block
