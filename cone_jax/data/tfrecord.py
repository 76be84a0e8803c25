"""Reads TFRecord files, the older format of TFDS, without TensorFlow.

A file is a sequence of: length (8 bytes, little-endian), its checksum (4), the record, its
checksum (4). The checksum of each length is verified, which finds truncation and lost
positions; those of the records are not, as that takes minutes a gigabyte in Python.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from cone_jax.errors import UserError

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a file, in order."""
    # Imports PyTorch where that is installed, which takes seconds.
    from tensorboardX.record_writer import masked_crc32c

    with open(path, "rb") as file:
        while header := file.read(_LENGTH.size):
            checksum = file.read(_CHECKSUM.size)
            if checksum != _CHECKSUM.pack(masked_crc32c(header)):
                raise UserError(f"{path} is not a TFRecord file, or is damaged at {file.tell()}")
            (length,) = _LENGTH.unpack(header)
            record = file.read(length)
            if len(record) + len(file.read(_CHECKSUM.size)) != length + _CHECKSUM.size:
                raise UserError(f"{path} ends in the middle of a record; copy or build it again")
            yield record
