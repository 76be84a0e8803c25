"""A table of paths and labels, as CSV or Parquet: pictures where they are, labels beside them.

    path,label,split
    owl/0017.jpg,owl,train
    tit/0003.png,tit,test

Paths are relative to the table, or absolute. Without the column ``split``, and without a part to
test on in it, a hold-out of each class is tested on. A folder may have a table for each split
instead: ``train.csv`` and ``test.csv``, or ``.parquet``.

Records are what an image folder of these files would give, bit for bit: by class, then by path,
with the same hold-out where paths are the same.
"""

import csv
import os
from pathlib import Path
from typing import NamedTuple

from cone_jax.data.sources import splits
from cone_jax.data.sources.image_folder import ImageFolderSource
from cone_jax.errors import UserError, closest
from cone_jax.settings import Data

KINDS = (".csv", ".parquet")
COLUMNS = ("path", "label")


class Row(NamedTuple):
    path: str
    label: str
    split: str  # "": the table does not say


def open_table(split: str, data: Data) -> ImageFolderSource:
    """The pictures of `split` that the table or tables at ``data.path`` list."""
    if not data.path:
        raise UserError("data.path is empty; give a .csv or .parquet file of paths and labels")
    root = Path(data.path).expanduser()
    if root.is_dir():
        rows = _tables_of(root)
    elif root.suffix.lower() in KINDS and root.exists():
        rows, root = _read(root), root.parent
    else:
        raise UserError(f"data.path ({root}) is not a .csv or .parquet file, nor a folder of them")
    return _select(rows, split, root, data)


def _tables_of(folder: Path) -> list[Row]:
    files = {file.stem: file for kind in KINDS for file in sorted(folder.glob(f"*{kind}"))}
    if splits.match("train", files) is None:
        raise UserError(
            f"data.path ({folder}) holds no train.csv or train.parquet; give a table of paths and "
            "labels"
        )
    return [row._replace(split=name) for name, file in files.items() for row in _read(file)]


def _read(file: Path) -> list[Row]:
    """All rows of a table, checked."""
    try:
        columns = _parquet(file) if file.suffix.lower() == ".parquet" else _csv(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    for name in COLUMNS:
        if name not in columns:
            raise UserError(f"{file} has no column {name!r}; {closest(name, columns)}")
    count = len(columns["path"])
    given = columns.get("split", [""] * count)
    rows = [
        Row(*map(_text, each))
        for each in zip(columns["path"], columns["label"], given, strict=True)
    ]
    first_line: dict[str, int] = {}
    for line, row in enumerate(rows, start=2 if file.suffix.lower() == ".csv" else 1):
        if not row.path or not row.label:
            what = "label" if row.path else "path"
            raise UserError(f"{file}, line {line}: the {what} is empty; fill it in")
        earlier = first_line.setdefault(row.path, line)
        if earlier != line:
            raise UserError(
                f"{file}, line {line}: {row.path} stands in line {earlier} already; keep one"
            )
    if not rows:
        raise UserError(f"{file} lists no picture")
    return rows


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _csv(file: Path) -> dict[str, list]:
    with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as stream:
        try:
            lines = [line for line in csv.reader(stream) if line]
        except csv.Error as error:
            raise UserError(f"{file} is not a CSV file: {error}") from error
    if not lines:
        raise UserError(f"{file} is empty; it must begin with the line {','.join(COLUMNS)}")
    header = lines[0]
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            raise UserError(
                f"{file}, line {number}: {len(line)} values, but the first line names {len(header)}"
            )
    return {name: [line[place] for line in lines[1:]] for place, name in enumerate(header)}


def _parquet(file: Path) -> dict[str, list]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(file)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{file} is not a Parquet file: {error}") from error
    known = [name for name in (*COLUMNS, "split") if name in table.column_names]
    return {name: table.column(name).to_pylist() for name in known or table.column_names}


def _select(rows: list[Row], split: str, root: Path, data: Data) -> ImageFolderSource:
    parts = sorted({row.split for row in rows})
    train = rows
    if parts != [""]:
        name = splits.match("train", parts)
        if name is None:
            found = ", ".join(map(repr, parts))
            raise UserError(f"data.path ({data.path}): no row has split 'train', only {found}")
        train = [row for row in rows if row.split == name]
    names = tuple(sorted({row.label for row in train}))
    own = splits.match(split, parts) if parts != [""] else None
    if own is not None and (splits.part(split) == "train") == (own == splits.match("train", parts)):
        chosen = [row for row in rows if row.split == own]
        tested = splits.match("test", parts)
        hold = own == splits.match("train", parts) and tested is None
    else:
        chosen, hold = train, True
    if hold:
        splits.check_holdout(data.holdout, split, f"data.path ({data.path})")
        chosen = _held(chosen, split, data)
    is_holdout = hold and splits.part(split) == "held-out"
    return _source(chosen, names, root, data, is_holdout)


def _held(rows: list[Row], split: str, data: Data) -> list[Row]:
    """The part of `rows` that a hold-out leaves for `split`."""
    kept = []
    for label in {row.label for row in rows}:
        members = sorted(row for row in rows if row.label == label)
        keys = [os.fsencode(row.path) for row in members]
        out = splits.held_out(keys, data.holdout, data.holdout_seed)
        held = splits.part(split) == "held-out"
        kept += [row for place, row in enumerate(members) if (place in out) == held]
    return kept


def _source(
    rows: list[Row], names: tuple[str, ...], root: Path, data: Data, is_holdout: bool
) -> ImageFolderSource:
    places = {name: label for label, name in enumerate(names)}
    ordered = sorted(rows, key=lambda row: (row.label, os.fsencode(row.path)))
    missing = [row.path for row in ordered if not os.path.exists(os.path.join(root, row.path))]
    if missing:
        raise UserError(
            f"data.path ({data.path}): {len(missing)} of {len(ordered)} files do not exist, such "
            f"as {os.path.join(root, missing[0])}; paths are relative to the table"
        )
    for row in ordered:
        if row.label not in places:
            raise UserError(
                f"data.path ({data.path}): {row.path} has label {row.label!r}, a class that train "
                "lacks; add it to train or remove the line"
            )
    if not ordered:
        raise UserError(f"data.path ({data.path}) leaves nothing to test on; add more pictures")
    paths = [os.fsencode(row.path) for row in ordered]
    labels = [places[row.label] for row in ordered]
    return ImageFolderSource(root, names, paths, labels, is_holdout)
