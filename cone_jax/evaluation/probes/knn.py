"""Weighted nearest-neighbour classification: exact, in blocks that fit on the devices.

Each of the k training examples most similar to a query votes for its class with the weight
``exp(cosine / temperature)``. The result is that of a full, stable sort: of equally similar
examples the one with the lower index comes first, of classes with equal votes the lower one.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cone_jax import distributed, losses
from cone_jax.evaluation.accuracy import RANKS, ranked_accuracies
from cone_jax.evaluation.probes.extraction import Labelled

KS = (20, 200)
TEMPERATURE = 0.07


class Nearest(NamedTuple):
    """The most similar examples found so far, best first."""

    similarity: jax.Array  # [q, k], -inf where there are fewer
    labels: jax.Array  # [q, k]


def knn_scores(train: Labelled, test: Labelled, **settings: Any) -> dict[str, float]:
    """Accuracies such as ``knn20/top1``, with features of any length.

    A k that is larger than the training set is replaced by its size, in the name too. `settings`
    are those of `knn_classes`.
    """
    queries, labels = test
    return {
        f"knn{k}/{name}": value
        for k, classes in knn_classes(train, queries, **settings).items()
        for name, value in ranked_accuracies(classes, labels).items()
    }


def knn_classes(
    train: Labelled,
    queries: np.ndarray,
    *,
    num_classes: int,
    mesh: Mesh,
    ks: Sequence[int] = KS,
    temperature: float = TEMPERATURE,
    query_rows: int = 1024,
    train_rows: int = 8192,
) -> dict[int, np.ndarray]:
    """For each k the most probable classes [n, min(5, C)] of every query, best first.

    A block of `query_rows` queries is split over the devices and meets `train_rows` training
    examples at a time, so that memory does not grow with either set.
    """
    counts = sorted({min(k, len(train[1])) for k in ks})
    block = max(query_rows // mesh.size, 1) * mesh.size
    gather = jax.jit(lambda rows: rows, out_shardings=distributed.replicated(mesh))
    found: dict[int, list[np.ndarray]] = {k: [] for k in counts}
    for first in range(0, len(queries), block):
        rows = queries[first : first + block]
        placed = jax.device_put(_padded(rows, block), distributed.split(mesh))
        near = _nearest(placed, _chunks(*train, train_rows, mesh), counts[-1])
        for k in counts:
            ranked = _rank(near, k=k, num_classes=num_classes, temperature=temperature)
            found[k].append(jax.device_get(gather(ranked))[: len(rows)])
    return {k: np.concatenate(parts) for k, parts in found.items()}


def _chunks(
    train: np.ndarray, labels: np.ndarray, size: int, mesh: Mesh
) -> Iterator[tuple[jax.Array, jax.Array, jax.Array]]:
    """Training examples on every device: features, labels, and which rows are not padding."""
    size = min(size, len(train))
    for first in range(0, len(train), size):
        rows, names = train[first : first + size], labels[first : first + size]
        chunk = _padded(rows, size), _padded(names, size), np.arange(size) < len(rows)
        yield jax.device_put(chunk, distributed.replicated(mesh))


def _nearest(
    queries: jax.Array, chunks: Iterator[tuple[jax.Array, jax.Array, jax.Array]], k: int
) -> Nearest:
    shape = (len(queries), k)
    near = Nearest(
        jnp.full_like(queries, -jnp.inf, shape=shape, dtype=jnp.float32),
        jnp.zeros_like(queries, shape=shape, dtype=jnp.int32),
    )
    for features, labels, real in chunks:
        near = _merge(near, queries, features, labels, real)
    return near


@jax.jit
def _merge(
    near: Nearest, queries: jax.Array, features: jax.Array, labels: jax.Array, real: jax.Array
) -> Nearest:
    """The k nearest among those known and a chunk of others, which come later in the order."""
    k = near.labels.shape[1]
    cosines = losses.cosines(losses.normalise(queries), losses.normalise(features))
    cosines = jnp.where(real, cosines, -jnp.inf)
    # top_k puts the first of equals first: those known, then the chunk's, each in order.
    similarity, places = jax.lax.top_k(jnp.concatenate([near.similarity, cosines], axis=1), k)
    known = jnp.take_along_axis(near.labels, jnp.minimum(places, k - 1), axis=1)
    return Nearest(similarity, jnp.where(places < k, known, labels[jnp.maximum(places - k, 0)]))


@functools.partial(jax.jit, static_argnames=("k", "num_classes"))
def _rank(near: Nearest, *, k: int, num_classes: int, temperature: float) -> jax.Array:
    classes = jnp.arange(num_classes)
    # All weights relative to that of an identical example: they stay below 1.
    weights = jnp.exp((near.similarity[:, :k] - 1.0) / temperature)

    # One neighbour at a time: a fixed order of additions, hence the same votes on any device.
    def vote(index: jax.Array, votes: jax.Array) -> jax.Array:
        chosen = near.labels[:, index, None] == classes
        return votes + jnp.where(chosen, weights[:, index, None], 0.0)

    start = jnp.zeros_like(near.similarity, shape=(len(near.labels), num_classes))
    votes = jax.lax.fori_loop(0, k, vote, start)
    return jax.lax.top_k(votes, min(RANKS, num_classes))[1]


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    return np.pad(rows, [(0, size - len(rows)), *[(0, 0)] * (rows.ndim - 1)])
