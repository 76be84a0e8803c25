"""Packs an image folder into ArrayRecord files that the source ``packed`` reads.

Files are copied byte for byte and never decoded: a damaged image stays a damaged image and is
reported when training meets it. A shard appears under its name only when it is complete, the
metadata only when all shards are; so a pack that was interrupted goes on where it stopped when
the same command is given again, and a reader never sees half of one.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cone_jax import storage
from cone_jax.console import Report
from cone_jax.data import array_record_file, decode
from cone_jax.data.sources import packed
from cone_jax.data.sources.image_folder import ImageFolderSource, open_image_folder, split_names
from cone_jax.errors import UserError

_PLAN = "packing.json"


class Shard(NamedTuple):
    """Records `start` to `stop` of a source, and the file they go to."""

    source: ImageFolderSource
    start: int
    stop: int
    file: Path


def pack_folder(
    path: str,
    out: str,
    *,
    holdout: float = 0.1,
    holdout_seed: int = 0,
    shard_size: int = 10_000,
    threads: int = 4,
    report: Report = print,
) -> None:
    """Packs all splits of the image folder `path` into the folder `out`.

    Args:
        path: an image folder of either layout.
        out: a folder, also in a bucket; new, or of a pack of the same images that was interrupted.
        holdout, holdout_seed: how to split a folder that has no part to test on; the split is
            then fixed in the pack.
        shard_size: images in one file.
        threads: files written at the same time.
        report: is given one line of text for each file and at the end.
    """
    if shard_size < 1:
        raise UserError(f"shard_size ({shard_size}) must be at least 1")
    sources = {
        split: open_image_folder(split, path, holdout, holdout_seed) for split in split_names(path)
    }
    target = storage.path(out, "--output")
    shards = {
        split: list(_shards(source, split, target, shard_size)) for split, source in sources.items()
    }
    metadata = {
        "format": packed.FORMAT,
        "class_names": next(iter(sources.values())).class_names,
        "splits": {split: _summary(sources[split], shards[split]) for split in sources},
    }
    plan = json.dumps(metadata, indent=1)
    if _claim(target, plan):
        report(f"{target} is already complete")
        return
    every = [shard for group in shards.values() for shard in group]
    with futures.ThreadPoolExecutor(threads) as pool:
        for done, shard in enumerate(pool.map(_write, every), start=1):
            report(f"{shard.file.name} ({done} of {len(every)})")
    with storage.replacing(target / packed.METADATA) as unfinished:
        unfinished.write_text(plan)
    (target / _PLAN).unlink()
    report(f"packed {sum(map(len, sources.values()))} images into {len(every)} files in {target}")


def _shards(
    source: ImageFolderSource, split: str, target: Path, shard_size: int
) -> Iterator[Shard]:
    count = -(-len(source) // shard_size)
    for index in range(count):
        start, stop = index * shard_size, min((index + 1) * shard_size, len(source))
        yield Shard(
            source, start, stop, target / f"{split}-{index:05d}-of-{count:05d}.array_record"
        )


def _summary(source: ImageFolderSource, shards: list[Shard]) -> dict:
    counts = np.bincount(source.labels, minlength=len(source.class_names))
    return {
        "images": len(source),
        "digest": _digest(source),
        "images_per_class": dict(zip(source.class_names, counts.tolist(), strict=True)),
        "shards": {shard.file.name: shard.stop - shard.start for shard in shards},
    }


def _digest(source: ImageFolderSource) -> str:
    """Tells two lists of files and labels apart."""
    digest = hashlib.blake2b(source.labels.tobytes(), digest_size=16)
    for index in range(len(source)):
        digest.update(os.fsencode(source.relative_path(index)) + b"\0")
    return digest.hexdigest()


def _claim(target: Path, plan: str) -> bool:
    """Reserves `target` for this pack; True when it is already there, complete."""
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{target} cannot be made: {error.strerror}") from error
    for name in (packed.METADATA, _PLAN):
        if (target / name).exists():
            if (target / name).read_text() == plan:
                return name == packed.METADATA
            raise UserError(f"{target} holds a pack of other images or other options; remove it")
    if target.is_dir() and any(target.iterdir()):
        raise UserError(f"{target} is not empty; give a new folder to pack into")
    with storage.replacing(target / _PLAN) as file:
        file.write_text(plan)
    return False


def _write(shard: Shard) -> Shard:
    if not shard.file.exists():
        count = shard.stop - shard.start
        array_record_file.write(shard.file, _records(shard), count, compress=False)
    return shard


def _records(shard: Shard) -> Iterator[bytes]:
    for index in range(shard.start, shard.stop):
        image, label = _read(shard.source, index)
        path = shard.source.relative_path(index)
        yield packed.to_bytes(packed.PackedRecord(label, path, image))


def _read(source: ImageFolderSource, index: int) -> tuple[bytes, int]:
    try:
        image, label = source[index]
    except decode.DamagedImage as error:
        raise UserError(f"{source.describe(index)} {error}; repair or remove it") from error
    return bytes(image), label
