"""Corrected labels: a small CSV file beside a data set that stays as it is.

    path,label,corrected
    train/owl/0017.jpg,owl,tit
    train/owl/0042.jpg,owl,

The first column names a record as `name_of` does: a file by its path below ``data.path``. The
second is the label that the data set gives it, the third the right one; empty: the record is left
out. Nothing in the file is taken on trust. A record or a class that does not exist, a label that is
not the one the data set gives, and two lines for one record are errors.
"""

import csv
import difflib
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cone_jax import storage
from cone_jax.data.sources import splits
from cone_jax.data.sources.source import Record, Source
from cone_jax.errors import UserError, closest
from cone_jax.settings import Data

HEADER = ("path", "label", "corrected")
LEAVE_OUT = ""


class Correction(NamedTuple):
    """A line of the file."""

    line: int
    path: str
    label: str
    corrected: str  # a class, or LEAVE_OUT


def name_of(source: Source, index: int, root: str) -> str:
    """How a file of corrections calls a record: below `root`, ``data.path``, where it is there."""
    described = source.describe(index)
    if not root:
        return described
    folder = os.path.join(os.path.expanduser(root), "")
    return described.removeprefix(folder)


def read(file: str) -> tuple[Correction, ...]:
    """The lines of `file`, which is ``data.corrections``."""
    path = storage.path(file, "data.corrections")
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as stream:
            rows = list(csv.reader(stream))
    except OSError as error:
        raise UserError(
            f"data.corrections ({path}) cannot be read: {error.strerror or error}; give the file "
            "that the page of --mode=label_errors has saved"
        ) from error
    except csv.Error as error:
        raise UserError(f"data.corrections ({path}) is not a CSV file: {error}") from error
    if not rows or tuple(rows[0]) != HEADER:
        raise UserError(f"data.corrections ({path}) must begin with the line {','.join(HEADER)}")
    found: dict[str, Correction] = {}
    for line, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        if len(row) != len(HEADER):
            raise UserError(
                f"data.corrections ({path}), line {line}: {len(row)} values; there must be "
                f"{len(HEADER)}: {', '.join(HEADER)}"
            )
        correction = Correction(line, *row)
        earlier = found.setdefault(correction.path, correction)
        if earlier is not correction:
            raise UserError(
                f"data.corrections ({path}), line {line}: {correction.path} stands in line "
                f"{earlier.line} already; keep one of them"
            )
    return tuple(found.values())


class Corrected:
    """`source` with other labels."""

    def __init__(self, source: Source, labels: np.ndarray) -> None:
        self._source = source
        self.labels = labels
        self.class_names = source.class_names
        self.is_holdout = getattr(source, "is_holdout", False)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Record:
        return Record(self._source[index].image, int(self.labels[index]))

    def describe(self, index: int) -> str:
        return self._source.describe(index)

    def relative_path(self, index: int) -> str:
        return splits.key_of(self._source, index)


def apply(source: Source, lines: Sequence[Correction], root: str, file: str) -> Source:
    """`source` as corrected by those `lines` that are about one of its records."""
    wanted = {line.path: line for line in lines}
    labels = splits.labels_of(source).copy()
    kept = np.ones(len(source), bool)
    for index in range(len(source)):
        line = wanted.get(name_of(source, index, root))
        if line is None:
            continue
        where = f"data.corrections ({file}), line {line.line}"
        given = source.class_names[labels[index]] if labels[index] >= 0 else ""
        if line.label != given:
            raise UserError(
                f"{where}: {line.path} is labelled {given!r} in the data, not {line.label!r}; the "
                "data have changed since: correct them anew"
            )
        if line.corrected == LEAVE_OUT:
            kept[index] = False
            continue
        if line.corrected not in source.class_names:
            cure = closest(line.corrected, source.class_names)
            raise UserError(f"{where}: {line.corrected!r} is not a class; {cure}")
        labels[index] = source.class_names.index(line.corrected)
    corrected = Corrected(source, labels)
    return corrected if kept.all() else splits.Subset(corrected, np.flatnonzero(kept))


def check_all_found(parts: Sequence[Source], lines: Sequence[Correction], data: Data) -> None:
    """Refuses lines about records that are in none of the parts as the data set has them."""
    known = {name_of(part, index, data.path) for part in parts for index in range(len(part))}
    for line in lines:
        if line.path not in known:
            near = difflib.get_close_matches(line.path, known, n=1)
            raise UserError(
                f"data.corrections ({data.corrections}), line {line.line}: {line.path} is neither "
                "in data.train_split nor in data.test_split"
                + (f"; did you mean {near[0]}?" if near else "; remove the line")
            )
