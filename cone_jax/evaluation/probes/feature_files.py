"""The features of splits as files, for programs other than this one."""

import importlib.util
from pathlib import Path

import numpy as np

from cone_jax import storage
from cone_jax.errors import UserError
from cone_jax.evaluation.probes.extraction import Features


def write(path: Path, splits: dict[str, Features], class_names: tuple[str, ...]) -> None:
    """Writes the features of several splits to one ``.npz`` or ``.parquet`` file.

    An ``.npz`` holds ``<split>_features``, ``<split>_embedding``, ``<split>_labels`` and
    ``<split>_ids`` for each split, and ``class_names``. A ``.parquet`` table has a row for each
    example, with the columns split, id, label, class, features and embedding.
    """
    check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.replacing(path) as unfinished:
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
