"""Who a picture's neighbours in the bank are, and how strongly its positives pull it.

The bank knows the training record of each row, so both become sheets of pictures.
"""

from typing import NamedTuple

import jax
import numpy as np

from cone_jax import losses, memory_bank
from cone_jax.memory_bank import MemoryBank

# The paper's figure prints coefficients far above 1, although alpha is at most 1, and names no
# factor. A thousand is our reading.
ALPHA_SCALE = 1000.0

_neighbours = jax.jit(memory_bank.neighbours, static_argnums=2)


class NeighbourSheet(NamedTuple):
    """Test pictures and the bank rows nearest to them, most similar first. q queries, k rows."""

    queries: np.ndarray  # [q], test records
    labels: np.ndarray  # [q]
    predictions: np.ndarray  # [q]
    neighbours: np.ndarray  # [q, k], training records; -1: no such row, or not known
    neighbour_labels: np.ndarray  # [q, k]; -1: no such row
    similarity: np.ndarray  # [q, k]


class PullSheet(NamedTuple):
    """Training pictures and all their positives in the bank, most similar first. q queries."""

    queries: np.ndarray  # [q], training records
    labels: np.ndarray  # [q]
    positives: np.ndarray  # [q, P], training records; -1 after the last
    similarity: np.ndarray  # [q, P]; NaN after the last
    alpha: np.ndarray  # [q, P], the coefficient of `losses.positive_gradient_coefficients`


def nearest(
    bank: MemoryBank,
    embedding: np.ndarray,
    queries: np.ndarray,
    labels: np.ndarray,
    predictions: np.ndarray,
    *,
    k: int = 8,
) -> NeighbourSheet:
    """The k bank rows nearest to each unit-norm `embedding` [q, D]."""
    near = jax.device_get(_neighbours(bank, embedding, min(k, bank.size)))
    records = np.asarray(bank.ids)[near.rows]
    return NeighbourSheet(
        queries=queries,
        labels=labels,
        predictions=predictions,
        neighbours=np.where(near.valid, records, memory_bank.NO_ID),
        neighbour_labels=near.labels,
        similarity=near.similarity,
    )


def pull(
    bank: MemoryBank,
    embedding: np.ndarray,
    queries: np.ndarray,
    labels: np.ndarray,
    *,
    temperature: float,
    most: int = 400,
) -> PullSheet:
    """Similarity and alpha of every bank row of each query's class.

    Anchors are all rows of the bank but the query's own older copies, so that positives far from
    the query are there too. Of more than `most` positives the middle ones are left out.
    """
    ids = np.asarray(bank.ids)
    cosines, positive, alpha = jax.device_get(
        _coefficients(bank, embedding, queries, labels, temperature)
    )
    width = int(np.minimum(positive.sum(axis=-1), most).max(initial=0))
    shape = (len(queries), width)
    records = np.full(shape, memory_bank.NO_ID)
    similarity, pulls = np.full(shape, np.nan), np.full(shape, np.nan)
    for index in range(len(queries)):
        rows = np.flatnonzero(positive[index])
        rows = rows[np.argsort(-cosines[index, rows], kind="stable")]
        if len(rows) > most:
            rows = np.concatenate([rows[: most // 2], rows[-(most - most // 2) :]])
        place = (index, slice(len(rows)))
        records[place] = ids[rows]
        similarity[place] = cosines[index, rows]
        pulls[place] = alpha[index, rows]
    return PullSheet(queries, labels, records, similarity, pulls)


@jax.jit
def _coefficients(
    bank: MemoryBank,
    embedding: jax.Array,
    queries: jax.Array,
    labels: jax.Array,
    temperature: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Similarity, whether it is a positive, and alpha, of each query to each row."""
    near = memory_bank.all_rows(bank, embedding, queries)
    positive = near.valid & (near.labels == labels[:, None])
    alpha = losses.positive_gradient_coefficients(
        near.similarity, positive, temperature=temperature, where=near.valid
    )
    return near.similarity, positive, alpha


def ends(sheet: PullSheet, index: int, each: int) -> list[int]:
    """Columns of the `each` most and the `each` least similar positives of one query."""
    count = int(np.isfinite(sheet.similarity[index]).sum())
    if count <= 2 * each:
        return list(range(count))
    return [*range(each), *range(count - each, count)]


def format_alpha(alpha: float) -> str:
    """Alpha times `ALPHA_SCALE`, three digits, without an exponent that one has to decode.

    >>> format_alpha(0.208123), format_alpha(4.567e-5), format_alpha(3.21e-8)
    ('208', '0.0457', '< 0.001')
    """
    scaled = alpha * ALPHA_SCALE
    return "< 0.001" if 0 < scaled < 1e-3 else f"{scaled:.3g}"
