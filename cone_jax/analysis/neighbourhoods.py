"""A network and its bank: the neighbours of a picture, and how strongly its positives pull.

The bank knows the training record of each row, so both become sheets of pictures.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cone_jax import losses, memory_bank
from cone_jax.evaluation import inference
from cone_jax.evaluation.inference import Rows
from cone_jax.evaluation.registry import Variables
from cone_jax.memory_bank import MemoryBank
from cone_jax.models import EncoderOutput
from cone_jax.training.run import Run

# The paper's figure prints coefficients far above 1, although alpha is at most 1, and names no
# factor. A thousand is our reading.
ALPHA_SCALE = 1000.0

_neighbours = jax.jit(memory_bank.neighbours, static_argnums=2)


class NetworkAndBank(NamedTuple):
    """A network to inspect, from a checkpoint or while it trains."""

    run: Run  # the stage that it belongs to
    step: int
    variables: Variables  # of the network that is evaluated
    query_variables: Variables  # of the one that learns, which the bank belongs to
    bank: MemoryBank | None  # None for objectives without, or while there is nothing in it

    def look(self, images: np.ndarray) -> Rows:
        """The ``features`` [n, d] and ``logits`` [n, C] of uint8 [n, H, W, 3], whatever n."""
        return inference.infer(self.run.learner, self.variables, self._batches(images), _said)

    def look_at_test_split(self) -> Iterator[Rows]:
        """Every test picture once, a batch at a time, with ``label`` and ``id``."""
        stream = self.run.eval_stream(self.run.dataset.test, report=lambda line: None)
        return inference.infer_batches(self.run.learner, self.variables, stream, _said)

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Unit-norm embeddings [n, D] that can be compared with the bank."""
        batches = self._batches(images)
        rows = inference.infer(self.run.learner, self.query_variables, batches, _said)
        return np.asarray(losses.normalise(jnp.asarray(rows["embedding"])))

    def _batches(self, images: np.ndarray) -> Iterator[Rows]:
        return inference.batches_of(images, self.run.eval_batch_size)


def _said(out: EncoderOutput, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Everything that any caller needs, so that all share one program."""
    said = {"features": out.features, "embedding": out.embedding, "logits": out.logits}
    return said | {name: batch[name] for name in ("label", "id")}


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
    """The k records nearest to each unit-norm `embedding` [q, D], each by its nearest bank row.

    The bank may hold a record several times, of different epochs. Rows of unknown records count
    each for itself.
    """
    width = min(k, bank.size)
    near = jax.device_get(_neighbours(bank, embedding, bank.size))
    records = np.where(near.valid, np.asarray(bank.ids)[near.rows], memory_bank.NO_ID)
    chosen = np.stack([_first_of_each(row, width) for row in records])
    labels_of_rows = np.where(near.valid, near.labels, memory_bank.NO_ID)
    filled = chosen >= 0
    take = np.where(filled, chosen, 0)
    return NeighbourSheet(
        queries=queries,
        labels=labels,
        predictions=predictions,
        neighbours=np.where(filled, np.take_along_axis(records, take, 1), memory_bank.NO_ID),
        neighbour_labels=np.where(filled, np.take_along_axis(labels_of_rows, take, 1), -1),
        similarity=np.where(filled, np.take_along_axis(near.similarity, take, 1), -np.inf),
    )


def _first_of_each(records: np.ndarray, count: int) -> np.ndarray:
    """Columns of the first `count` different records, in order; -1 where there are fewer.

    >>> _first_of_each(np.array([7, 7, 3, -1, 7, 3, -1, 5]), 5).tolist()
    [0, 2, 3, 6, 7]
    """
    _, firsts = np.unique(records, return_index=True)
    unknown = np.flatnonzero(records == memory_bank.NO_ID)
    columns = np.union1d(firsts, unknown)[:count]
    return np.concatenate([columns, np.full(count - len(columns), -1)]).astype(int)


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
