"""What a frozen network makes of a split: every example once, on any number of devices.

With several processes each reads its share of the pictures, and all of them end up with all rows.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from cone_jax import sharding
from cone_jax.evaluation.inference import infer_compiled
from cone_jax.models import Encoder


class Features(NamedTuple):
    """The examples of a split in the order of its records, on the host."""

    features: np.ndarray  # [n, d] float32, pooled backbone features
    embedding: np.ndarray  # [n, D] float32, z, as it is; the features where there is no head
    labels: np.ndarray  # [n] int32
    ids: np.ndarray  # [n] int32, positions in the source


def extract(
    encoder: Encoder,
    variables: dict[str, Any],
    batches: Iterable[dict[str, np.ndarray]],
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    mesh: Mesh,
) -> Features:
    """Features of host batches of ``image``, ``label``, ``id`` and ``mask``; padding is dropped."""
    # With several processes, each can read only what is replicated.
    gather = jax.jit(lambda rows: rows, out_shardings=sharding.replicated(mesh))
    parts = []
    for batch in batches:
        wanted = {name: batch[name] for name in ("image", "label", "id", "mask")}
        placed = sharding.to_devices(mesh, wanted)
        out = infer_compiled(variables, placed["image"], encoder=encoder, mean=mean, std=std)
        columns = (out.features, out.embedding, placed["label"], placed["id"])
        rows, real = jax.device_get(gather((columns, placed["mask"])))
        parts.append(Features(*(column[real] for column in rows)))
    if not parts:
        raise ValueError("nothing to extract features from: no batches")
    return Features(*map(np.concatenate, zip(*parts, strict=True)))
