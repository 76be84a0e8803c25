"""WebDataset shards: TAR files in which a sample is the files that share a name.

    DIR/train-000000.tar      owl/0017.jpg  owl/0017.cls   (``cls``: a class by number or name)
    DIR/train-000001.tar      tit/0003.png  tit/0003.cls
    DIR/test-000000.tar       ...
    DIR/classes.txt           the names of numbered classes, one per line

The headers are read once; a picture is then read from its place in the shard when it is asked for,
so that access is random and a run resumes at once. Records come by class, then by name: a folder
of these pictures gives the same records, bit for bit, whatever the order in the shards.
"""

import json
import os
import re
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cone_jax.data import decode
from cone_jax.data.sources import splits
from cone_jax.data.sources.image_folder import EXTENSIONS, PathTable
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError
from cone_jax.settings import Data

CLASSES_FILE = "classes.txt"


class Sample(NamedTuple):
    """A picture in a shard, before its class has a number."""

    label: str
    name: str  # of the picture in the shard
    shard: int
    offset: int
    size: int


class WebDatasetSource:
    """Pictures of one split, read from their place in its shards."""

    is_holdout = False  # whether it is what `data.holdout` leaves to test on

    def __init__(
        self, shards: list[str], class_names: tuple[str, ...], samples: list[Sample]
    ) -> None:
        self._shards = shards
        self._names = PathTable([os.fsencode(sample.name) for sample in samples])
        self._places = np.array([sample[2:] for sample in samples], np.int64).reshape(-1, 3)
        numbers = {name: label for label, name in enumerate(class_names)}
        self.labels = np.array([numbers[sample.label] for sample in samples], np.int32)
        self.class_names = class_names

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Record:
        shard, offset, size = self._places[index].tolist()
        try:
            with open(self._shards[shard], "rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise decode.DamagedImage(f"cannot be read: {error.strerror}") from error
        if len(data) < size:
            raise decode.DamagedImage(f"cannot be read: {self._shards[shard]} ends before it")
        return Record(data, int(self.labels[index]))

    def describe(self, index: int) -> str:
        return f"{self._shards[int(self._places[index][0])]}:{self._names[index]}"

    def relative_path(self, index: int) -> str:
        return self._names[index]


def open_webdataset(split: str, data: Data) -> WebDatasetSource:
    """The pictures of `split` in the shards of the folder ``data.path``."""
    if not data.path:
        raise UserError("data.path is empty; give the folder that holds the .tar shards")
    root = Path(data.path).expanduser()
    parts = _shards(root)
    train = splits.match("train", parts)
    if train is None:
        raise UserError(
            f"data.path ({root}) holds no train-*.tar, nor a folder train with .tar files; give "
            "the folder of the shards"
        )
    names = _class_names(root)
    trained = _read(parts[train])
    names = names or tuple(sorted({sample.label for sample in trained}))
    own = splits.match(split, parts)
    if own not in (None, train):
        return _source(parts[str(own)], _read(parts[str(own)]), names, root)
    is_holdout = False
    if splits.part(split) == "held-out" or splits.match("test", parts) is None:
        splits.check_holdout(data.holdout, split, f"data.path ({root})")
        trained = _held(trained, split, data)
        is_holdout = splits.part(split) == "held-out"
    source = _source(parts[train], trained, names, root)
    source.is_holdout = is_holdout
    return source


def _shards(root: Path) -> dict[str, list[str]]:
    """Shards by split: what their names begin with, or the folder they are in."""
    found: dict[str, list[str]] = {}
    for file in sorted([*root.glob("*.tar"), *root.glob("*/*.tar")]):
        name = file.parent.name if file.parent != root else re.split(r"[-_.]", file.name)[0]
        found.setdefault(name, []).append(str(file))
    return found


def _class_names(root: Path) -> tuple[str, ...]:
    file = root / CLASSES_FILE
    if not file.exists():
        return ()
    return tuple(filter(None, map(str.strip, file.read_text(encoding="utf-8").splitlines())))


def _read(shards: list[str]) -> list[Sample]:
    """The samples of all shards, with labels as the shards have them."""
    samples = []
    for number, shard in enumerate(shards):
        pictures: dict[str, tarfile.TarInfo] = {}
        labels: dict[str, str] = {}
        try:
            with tarfile.open(shard, "r:") as archive:
                for member in archive:
                    _file(archive, member, pictures, labels, shard)
        except (OSError, tarfile.TarError) as error:
            raise UserError(
                f"{shard} is not an uncompressed TAR file, or is cut off: {error}"
            ) from error
        for key, member in pictures.items():
            if key not in labels:
                raise UserError(f"{shard}: {member.name} has no label; add {key}.cls or {key}.json")
            samples.append(
                Sample(labels[key], member.name, number, member.offset_data, member.size)
            )
    return samples


def _file(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    pictures: dict[str, tarfile.TarInfo],
    labels: dict[str, str],
    shard: str,
) -> None:
    """Notes one member of a shard."""
    folder, _, file = member.name.rpartition("/")
    stem, _, kind = file.partition(".")
    if not member.isfile() or file.startswith("."):
        return
    key = f"{folder}/{stem}" if folder else stem
    if f".{kind.lower()}" in EXTENSIONS:
        if key in pictures:
            raise UserError(f"{shard}: {member.name} and {pictures[key].name} are one sample")
        pictures[key] = member
    elif kind in ("cls", "json"):
        opened = archive.extractfile(member)
        assert opened is not None
        text = opened.read().decode("utf-8", "replace").strip()
        labels[key] = _from_json(text, member.name, shard) if kind == "json" else text


def _from_json(text: str, member: str, shard: str) -> str:
    try:
        return str(json.loads(text)["label"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{shard}: {member} must hold an object with a 'label'") from error


def _held(samples: list[Sample], split: str, data: Data) -> list[Sample]:
    """The part of `samples` that a hold-out leaves for `split`."""
    kept = []
    for label in {sample.label for sample in samples}:
        members = sorted(
            (sample for sample in samples if sample.label == label),
            key=lambda sample: os.fsencode(sample.name),
        )
        keys = [os.fsencode(sample.name) for sample in members]
        out = splits.held_out(keys, data.holdout, data.holdout_seed)
        held = splits.part(split) == "held-out"
        kept += [one for place, one in enumerate(members) if (place in out) == held]
    return kept


def _source(
    shards: list[str], samples: list[Sample], names: tuple[str, ...], root: Path
) -> WebDatasetSource:
    known = {str(number): name for number, name in enumerate(names)}
    named = []
    for sample in samples:
        label = sample.label if sample.label in names else known.get(sample.label)
        if label is None:
            raise UserError(
                f"{shards[sample.shard]}: {sample.name} has label {sample.label!r}, which is "
                f"neither a class of train nor a number in {root / CLASSES_FILE}"
            )
        named.append(sample._replace(label=label))
    if not named:
        raise UserError(f"data.path ({root}): there is no picture in {shards[0]}")
    order = {name: place for place, name in enumerate(names)}
    named.sort(key=lambda sample: (order[sample.label], os.fsencode(sample.name)))
    return WebDatasetSource(shards, names, named)
