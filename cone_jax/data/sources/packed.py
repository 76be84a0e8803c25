"""An image folder packed into a few large ArrayRecord files: the format, and reading it.

Folders of a million small files are slow on network disks and buckets. `packing.pack_folder`
writes them as::

    metadata.json                     format, class names, and the shards of each split
    train-00000-of-00042.array_record
    ...

A record is the label, the file's path below its split, and the file itself, byte for byte, in
the order of the image folder: record i of a packed split is record i of the folder it came from,
so a training run sees the same samples in the same order from either.
"""

import json
import struct
from typing import NamedTuple

from array_record.python import array_record_data_source
from etils import epath

from cone_jax.data import decode
from cone_jax.data.sources import splits
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError

METADATA = "metadata.json"
FORMAT = "cone_jax packed images, version 1"

_HEADER = struct.Struct("<IH")  # label, length of the path in bytes


class PackedRecord(NamedTuple):
    """One image of a pack: its label, where it came from, and its file."""

    label: int
    path: str
    image: bytes


def to_bytes(record: PackedRecord) -> bytes:
    """The record as it is stored."""
    path = record.path.encode("utf-8", "surrogateescape")
    return _HEADER.pack(record.label, len(path)) + path + record.image


def from_bytes(stored: bytes) -> PackedRecord:
    """Inverse of `to_bytes`."""
    label, length = _HEADER.unpack_from(stored)
    start = _HEADER.size + length
    path = stored[_HEADER.size : start].decode("utf-8", "surrogateescape")
    return PackedRecord(label, path, stored[start:])


class PackedSource:
    """A split of a packed folder. `name` is where it is, as records are described."""

    def __init__(self, shards: list[str], class_names: tuple[str, ...], name: str) -> None:
        self._records = array_record_data_source.ArrayRecordDataSource(shards)
        self.class_names = class_names
        self.name = name

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        record = self._read(index)
        return Record(record.image, record.label)

    def describe(self, index: int) -> str:
        place = f"{self.name}[{index}]"
        try:
            return f"{place} ({self._read(index).path})"
        except decode.DamagedImage:
            return place

    def _read(self, index: int) -> PackedRecord:
        try:
            return from_bytes(self._records[index])
        except (RuntimeError, struct.error) as error:
            raise decode.DamagedImage(f"cannot be read: {error}") from error


def open_packed(split: str, path: str) -> PackedSource:
    """`split` of the folder that was packed into `path` (a local folder or a ``gs://`` one)."""
    if not path:
        raise UserError("data.path is empty; give the folder that pack_folder has written")
    root = epath.Path(path).expanduser()
    metadata = _metadata(root)
    own = splits.match(split, metadata["splits"])
    if own is None:
        found = ", ".join(metadata["splits"])
        raise UserError(f"split {split!r} is not in data.path ({root}); it holds {found}")
    shards = metadata["splits"][own]["shards"]
    present = {file.name for file in root.iterdir()}
    missing = [name for name in shards if name not in present]
    if missing:
        raise UserError(
            f"{root / missing[0]} is missing ({len(missing)} of {len(shards)} shards are); "
            "copy it here or pack the folder again"
        )
    # With the number of records in the name no shard has to be opened to count them.
    counted = [f"{root / name}[0:{count}]" for name, count in shards.items()]
    return PackedSource(counted, tuple(metadata["class_names"]), f"{root}/{own}")


def _metadata(root: epath.Path) -> dict:
    file = root / METADATA
    try:
        metadata = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"data.path ({root}) is not a completely packed folder: "
            f"{METADATA} is missing or damaged; pack it (again)"
        ) from error
    if metadata.get("format") != FORMAT:
        raise UserError(f"{file} has format {metadata.get('format')!r}; it must be {FORMAT!r}")
    return metadata
