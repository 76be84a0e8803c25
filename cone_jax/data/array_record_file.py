"""Writes ArrayRecord files that are meant for random access."""

import os
from collections.abc import Iterable
from pathlib import Path

from array_record.python import array_record_module

from cone_jax import storage
from cone_jax.errors import UserError


def write(path: Path, records: Iterable[bytes], count: int, *, compress: bool) -> None:
    """Writes `records`, which must be `count`, to a file that appears only when complete.

    Args:
        path: the file.
        records: what to write, in order.
        count: the number of records there should be.
        compress: whether to compress each record; encoded photographs do not get smaller.
    """
    # One record a chunk: a reader fetches what it asks for and no more.
    options = "group_size:1" if compress else "group_size:1,uncompressed"
    with storage.replacing(path) as unfinished:
        writer = array_record_module.ArrayRecordWriter(os.fspath(unfinished), options)
        try:
            for record in records:
                writer.write(record)
        finally:
            writer.close()
        # The writer does not raise on a full disk, so the file itself is asked.
        written = array_record_module.ArrayRecordReader(os.fspath(unfinished)).num_records()
        if written != count:
            raise UserError(
                f"{path}: {written} of {count} records were written; "
                "is the disk full, or the input cut short?"
            )
