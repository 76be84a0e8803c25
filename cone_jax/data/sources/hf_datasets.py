"""Hugging Face ``datasets`` on disk, as ``save_to_disk`` writes them: Arrow files, read by pyarrow.

    DIR/dataset_dict.json    {"splits": ["train", "test"]}
    DIR/train/               dataset_info.json, state.json, data-00000-of-00001.arrow

or one split alone, whose hold-out is tested on. Columns are ``image`` (a picture with its bytes, or
with a path) and ``data.label_key`` (a class label). The package ``datasets`` is not needed. Records
keep the order they are stored in; files are mapped into memory, so that access is random.
"""

import json
import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from cone_jax.data import decode
from cone_jax.data.sources import splits
from cone_jax.data.sources.source import Record, Source
from cone_jax.errors import UserError, closest
from cone_jax.settings import Data

IMAGE_KEY = "image"


class ArrowSource:
    """Pictures of one split."""

    def __init__(self, folder: Path, label_key: str) -> None:
        self._folder, self._label_key = folder, label_key
        self.class_names = _class_names(folder, label_key)
        self._files = _files(folder)
        self._open()
        self.labels = np.concatenate(
            [np.asarray(batch.column(label_key).to_pylist()) for batch in self._batches]
        )
        wrong = [label for label in self.labels if label is None or not 0 <= label < self._count]
        if wrong:
            raise UserError(
                f"{folder} has label {wrong[0]}, not one of its {self._count} classes; choose a "
                "split with labels"
            )
        self.labels = self.labels.astype(np.int32)

    @property
    def _count(self) -> int:
        return len(self.class_names)

    def _open(self) -> None:
        import pyarrow

        self._batches: list[Any] = []
        for file in self._files:
            try:
                with pyarrow.memory_map(file) as mapped:
                    self._batches += list(pyarrow.ipc.open_stream(mapped))
            except (OSError, pyarrow.ArrowInvalid) as error:
                raise UserError(f"{file} cannot be read: {error}; save the set again") from error
        self._batches = [batch for batch in self._batches if batch.num_rows]
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))
        if not self._ends:
            raise UserError(f"{self._folder}: there is no picture in it")

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Record:
        stored, label = self._stored(index), int(self.labels[index])
        if stored is None:
            raise decode.DamagedImage("there is no picture in the record")
        if stored.get("bytes") is not None:
            return Record(stored["bytes"], label)
        try:
            return Record(Path(stored["path"]).read_bytes(), label)
        except (OSError, TypeError) as error:
            raise decode.DamagedImage(f"cannot be read: {error}") from error

    def describe(self, index: int) -> str:
        path = (self._stored(index) or {}).get("path")
        return f"{self._folder}[{index}]" + (f" ({path})" if path else "")

    def _stored(self, index: int) -> dict[str, Any] | None:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = bisect_right(self._ends, index)
        row = index - (self._ends[place - 1] if place else 0)
        return self._batches[place].column(IMAGE_KEY)[row].as_py()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None}  # a worker process maps the files itself

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def open_arrow(split: str, data: Data) -> Source:
    """`split` of the set that ``save_to_disk`` has written to ``data.path``."""
    if not data.path:
        raise UserError("data.path is empty; give the folder that save_to_disk has written")
    root = Path(data.path).expanduser()
    if (root / "dataset_dict.json").exists():
        parts = _json(root / "dataset_dict.json").get("splits", [])
        own, train = splits.match(split, parts), splits.match("train", parts)
        if train is None:
            raise UserError(f"data.path ({root}) has no split train, only {', '.join(parts)}")
        if own not in (None, train):
            return ArrowSource(root / str(own), data.label_key)
        whole = ArrowSource(root / train, data.label_key)
        if splits.part(split) == "train" and splits.match("test", parts) is not None:
            return whole
    elif (root / "state.json").exists():
        whole = ArrowSource(root, data.label_key)
    else:
        raise UserError(
            f"data.path ({root}) holds neither dataset_dict.json nor state.json; give the folder "
            "that save_to_disk has written"
        )
    splits.check_holdout(data.holdout, split, f"data.path ({root})")
    part = "kept" if splits.part(split) == "train" else "held_out"
    return splits.open_expression(
        f"train[{part}]", lambda name: whole, data.holdout, data.holdout_seed
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}; save the set again") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} must hold an object; save the set again")
    return found


def _class_names(folder: Path, label_key: str) -> tuple[str, ...]:
    features = _json(folder / "dataset_info.json").get("features") or {}
    for field, key in (("image column", IMAGE_KEY), ("data.label_key", label_key)):
        if key not in features:
            raise UserError(f"{field} ({key!r}) is not in {folder}; {closest(key, features)}")
    if features[IMAGE_KEY].get("_type") != "Image":
        raise UserError(f"{folder}: the column {IMAGE_KEY!r} is not of type Image; cast it")
    names = features[label_key].get("names")
    if not names:
        raise UserError(
            f"data.label_key ({label_key!r}) of {folder} is not a ClassLabel; use "
            "class_encode_column before save_to_disk"
        )
    return tuple(names)


def _files(folder: Path) -> list[str]:
    state = _json(folder / "state.json")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UserError(
            f"{folder} is a selection of a larger set; call flatten_indices() before save_to_disk"
        )
    files = [folder / entry["filename"] for entry in state.get("_data_files", ())]
    for file in files:
        if not os.path.exists(file):
            raise UserError(f"{file} is missing; copy it here, or save the set again")
    return [str(file) for file in files]
