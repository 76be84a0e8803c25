"""Requests and bytes of an epoch on data in a bucket: read remotely, or staged first.

    python benchmarks/remote_data.py --data=FOLDER

Packs the pictures of FOLDER, puts the pack into a GCS emulator on this machine, and reads every
record once, in the order of training, in three ways:

* staged: the files are fetched whole (`cone_jax.data.staging`), then read from the disk;
* records: one request for exactly the bytes of each record, as if its place were known; no reader
  of ArrayRecord can do with less;
* file object: the same reads through fsspec's file object, which fetches blocks ahead.

Counted at the server: requests for contents, and the bytes sent. No seconds: a loopback has none of
the latency of a bucket.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parent.parent))

from cone_jax.data import packing
from cone_jax.data.pipeline import TrainOrder
from cone_jax.data.sources import create
from tests import object_stores

BATCH = 16
SAMPLE = 64  # bytes that no two pictures share


def count_staged(store: object_stores.Store, url: str, order: list[int]) -> None:
    with tempfile.TemporaryDirectory() as stage:
        source = create("packed", "train", path=url, stage=stage)
        for index in order:
            _ = source[index]


def places(packed: Path) -> list[tuple[str, int, int]]:
    """The file, the start and the length of every training record, found by its content.

    To a few bytes: the format puts a header between the blocks of a file, hence into a record.
    """
    source = create("packed", "train", path=os.fspath(packed))
    files = [(file.name, file.read_bytes()) for file in sorted(packed.glob("train*"))]
    found = []
    for index in range(len(source)):
        content = bytes(source[index].image)
        spots = range(len(content) // 4, len(content) - SAMPLE, SAMPLE)
        name, start = next(
            (name, whole.find(content[spot : spot + SAMPLE]) - spot)
            for spot in spots
            for name, whole in files
            if content[spot : spot + SAMPLE] in whole
        )
        found.append((name, start, len(content)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="an image folder")
    parser.add_argument("--shard_size", type=int, default=500, help="pictures in a file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, object_stores.gcs() as store:
        packed = Path(scratch, "packed")
        packing.pack_folder(
            arguments.data,
            os.fspath(packed),
            shard_size=arguments.shard_size,
            report=lambda line: None,
        )
        url = store.put(packed, "packed")
        where = places(packed)
        train = TrainOrder(len(where), BATCH, seed=0)
        order = [train[position].record for position in range(len(where) // BATCH * BATCH)]
        files = store.files
        ways = {
            "staged": lambda: count_staged(store, url, order),
            "records": lambda: [
                files.cat_file(f"{url}/{name}", start=start, end=start + length)
                for name, start, length in map(where.__getitem__, order)
            ],
            "file object": lambda: [_read_ahead(files, url, *where[index]) for index in order],
        }
        total = sum(file.stat().st_size for file in packed.glob("train*"))
        print(f"{len(order)} records, {len(list(packed.glob('train*')))} files, {total:,} bytes")
        for name, read in ways.items():
            store.requests = store.sent = 0
            read()
            print(f"{name:12} {store.requests:7,} requests {store.sent:15,} bytes")


def _read_ahead(files, url: str, name: str, start: int, length: int) -> bytes:
    with files.open(f"{url}/{name}", "rb") as file:
        file.seek(start)
        return file.read(length)


if __name__ == "__main__":
    main()
