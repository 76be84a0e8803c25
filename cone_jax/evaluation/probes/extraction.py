"""What a frozen network makes of a split: every example once, on any number of devices.

With several processes each reads its share of the pictures, and all of them end up with all rows.
"""

import functools
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.sharding import Mesh

from cone_jax import atomic_file, sharding
from cone_jax.data.normalisation import normalise_images
from cone_jax.errors import UserError
from cone_jax.models import Encoder, EncoderOutput


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
        outputs = _forward(variables, placed.pop("image"), encoder=encoder, mean=mean, std=std)
        features, embedding, rest = jax.device_get(gather((*outputs, placed)))
        real = rest["mask"]
        rows = (features, embedding, rest["label"], rest["id"])
        parts.append(Features(*(column[real] for column in rows)))
    if not parts:
        raise ValueError("nothing to extract features from: no batches")
    return Features(*map(np.concatenate, zip(*parts, strict=True)))


@functools.partial(jax.jit, static_argnames=("encoder", "mean", "std"))
def _forward(
    variables: dict[str, Any],
    images: jax.Array,
    *,
    encoder: Encoder,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> tuple[jax.Array, jax.Array]:
    pixels = normalise_images(images, mean, std)
    out = cast(EncoderOutput, encoder.apply(variables, pixels, train=False))
    return out.features, out.embedding


def export(path: Path, splits: dict[str, Features], class_names: tuple[str, ...]) -> None:
    """Writes the features of several splits to one ``.npz`` or ``.parquet`` file.

    An ``.npz`` holds ``<split>_features``, ``<split>_embedding``, ``<split>_labels`` and
    ``<split>_ids`` for each split, and ``class_names``. A ``.parquet`` table has a row for each
    example, with the columns split, id, label, class, features and embedding.
    """
    check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file.replacing(path) as unfinished:
        _WRITERS[path.suffix](unfinished, splits, class_names)


def check_path(path: Path) -> None:
    """Refuses a file that cannot be written, before the work of filling it."""
    if path.suffix not in _WRITERS:
        raise UserError(f"--output ({path}) must end in {' or '.join(_WRITERS)}")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"--output ({path}) needs pyarrow: pip install pyarrow, or write .npz")


def _write_npz(path: Path, splits: dict[str, Features], class_names: tuple[str, ...]) -> None:
    arrays = {
        f"{split}_{name}": column
        for split, rows in splits.items()
        for name, column in rows._asdict().items()
    }
    with path.open("wb") as file:  # NumPy adds .npz to a name that ends otherwise
        np.savez(file, class_names=np.array(class_names), **arrays)


def _write_parquet(path: Path, splits: dict[str, Features], class_names: tuple[str, ...]) -> None:
    import pyarrow
    from pyarrow import parquet

    tables = []
    for split, rows in splits.items():
        vectors = {
            name: pyarrow.FixedSizeListArray.from_arrays(
                pyarrow.array(column.reshape(-1)), column.shape[1]
            )
            for name, column in (("features", rows.features), ("embedding", rows.embedding))
        }
        names = [class_names[label] for label in rows.labels]
        columns = {"split": [split] * len(names), "id": rows.ids, "label": rows.labels}
        tables.append(pyarrow.table({**columns, "class": names, **vectors}))
    parquet.write_table(pyarrow.concat_tables(tables), path)


_WRITERS = {".npz": _write_npz, ".parquet": _write_parquet}
