"""What a frozen network makes of a split, for probes of its features."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from cone_jax.evaluation.inference import Network, infer
from cone_jax.models import EncoderOutput

# Rows [n, d] to learn from or to be tested on, and their labels [n].
Labelled = tuple[np.ndarray, np.ndarray]
SPACES = ("features", "embedding")


class Features(NamedTuple):
    """The examples of a split in the order of its records, on the host."""

    features: np.ndarray  # [n, d] float32, pooled backbone features
    embedding: np.ndarray  # [n, D] float32, z, as it is; the features where there is no head
    labels: np.ndarray  # [n] int32
    ids: np.ndarray  # [n] int32, positions in the source

    def labelled(self, space: str) -> Labelled:
        """The rows of one of `SPACES`, with their labels."""
        return getattr(self, space), self.labels


def extract(
    network: Network, variables: Mapping[str, Any], batches: Iterable[Mapping[str, np.ndarray]]
) -> Features:
    """Features of host batches of ``image``, ``label``, ``id`` and ``mask``; padding is dropped."""
    return Features(**infer(network, variables, batches, _features))


def _features(out: EncoderOutput, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {
        "features": out.features,
        "embedding": out.embedding,
        "labels": batch["label"],
        "ids": batch["id"],
    }
