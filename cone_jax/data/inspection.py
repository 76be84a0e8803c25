"""What is wrong with a data set of pictures: files, duplicates, classes, folders.

`inspect` looks at every picture of both splits, decoded whole. `quick_look` looks at as many as a
few seconds allow: can they be read, and were objects labelled on pictures of their size? It runs
before training.

Two pictures are near duplicates where their 64-bit difference hashes differ in few places and their
thumbnails agree: the same photograph resized, compressed again, or with a little more contrast.
"""

import hashlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from cone_jax.data import decode, image_container
from cone_jax.data.datasets import Dataset, known_labels
from cone_jax.data.sources import Source, coco, has_objects, splits
from cone_jax.data.sources.image_folder import EXTENSIONS
from cone_jax.errors import UserError

THUMBNAIL = 16  # pixels a side, of what near duplicates are compared by
_HASH_DISTANCE = 8  # bits of 64
_CORRELATION = 0.97  # of thumbnails that show something
_FLAT = 3.0  # grey levels; a thumbnail that varies by less shows nothing
_ROWS_AT_A_TIME = 512
_ELONGATED = 4.0
_FEW = 10  # training pictures of a class
_IMBALANCED = 10.0
# Problems, the gravest first. Copies that mislead stand behind what cannot be read.
_GRAVITY = (
    "wrong level",
    "single class",
    "unreadable",
    "few pictures",
    "imbalance",
    "not read",
    "duplicate",
    "near duplicate",
    "small",
    "elongated",
    "extension",
    "turned",
)
# Pictures that programs write and this one does not read.
_UNREAD = (".heic", ".heif", ".avif", ".gif", ".tif", ".tiff", ".jp2", ".raw", ".dng", ".cr2")
_FORMATS = {"JPEG": (".jpg", ".jpeg"), "PNG": (".png",), "WEBP": (".webp",), "BMP": (".bmp",)}


class Finding(NamedTuple):
    """A line of ``check.csv``."""

    path: str
    problem: str
    detail: str
    split: str = ""  # and the record in it, where a picture is meant
    record: int = -1
    original: tuple[str, int] | None = None  # split and record of what it is a copy of


class Facts(NamedTuple):
    """What is known of a picture; `problem` is the reason where it cannot be read."""

    split: str
    record: int
    path: str
    label: int  # -1: not known, since its record cannot be read
    problem: str = ""
    format: str = ""
    size: tuple[int, int] = (0, 0)  # upright
    orientation: int = 1  # as EXIF has it
    digest: bytes = b""
    pattern: int = 0  # the difference hash
    thumbnail: np.ndarray = np.zeros((0, 0, 3), np.float32)


class Inspection(NamedTuple):
    """All results of an inspection."""

    class_names: tuple[str, ...]
    pictures: Sequence[Facts]
    findings: Sequence[Finding]
    counts: dict[str, np.ndarray]  # split -> readable pictures of each class

    def tally(self) -> dict[str, int]:
        """How often each problem was found, the gravest first."""
        found: dict[str, int] = {}
        for finding in self.findings:
            found[finding.problem] = found.get(finding.problem, 0) + 1
        return found


def inspect(dataset: Dataset, image_size: int, *, root: str = "", threads: int = 4) -> Inspection:
    """Looks at every picture of both splits; `root` is the image folder where there is one."""
    if has_objects(dataset.train):
        raise UserError(
            "--mode=check looks at classes, and these pictures have objects; --mode=preview draws "
            "them, and training checks every entry of the JSON file first"
        )
    splits = {"train": dataset.train, "test": dataset.test}
    jobs = [(name, source, i) for name, source in splits.items() for i in range(len(source))]
    with ThreadPoolExecutor(threads) as pool:
        pictures = list(pool.map(lambda job: _look(*job), jobs))
    names = dataset.class_names
    counts = {
        split: np.bincount(
            [p.label for p in pictures if p.split == split and p.label >= 0 and not p.problem],
            minlength=len(names),
        )
        for split in splits
    }
    findings = [
        *_unreadable(pictures),
        *_duplicates(pictures, names),
        *_class_problems(names, counts, root),
        *(wrong_level(Path(root), names) if root else ()),
        *_odd_files(pictures, image_size),
        *(_unread_files(Path(root)) if root else ()),
    ]
    ordered = sorted(findings, key=lambda finding: _gravity(finding.problem))
    return Inspection(names, pictures, ordered, counts)


def _gravity(problem: str) -> tuple[float, str]:
    """A place in the order of problems: what makes a result worthless comes first.

    >>> _gravity("unreadable") < _gravity("duplicate, other class") < _gravity("duplicate")
    True
    """
    kind = problem.partition(",")[0].removesuffix(" in train and test")
    misleads = "other class" in problem or "train and test" in problem
    return (_GRAVITY.index("unreadable") + 0.5 if misleads else _GRAVITY.index(kind)), problem


def quick_look(
    source: Source,
    *,
    seconds: float = 3.0,
    threads: int = 4,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[tuple[str, str]], int]:
    """Path and reason of each unreadable picture, and how many were looked at in the time.

    `UserError` where objects were labelled on a picture of another size.
    """
    end, looked = clock() + seconds, 0
    bad: list[tuple[str, str]] = []
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(source), 64):
            if clock() > end:
                break
            block = range(first, min(first + 64, len(source)))
            reasons = pool.map(lambda record: _reason_unusable(source, record), block)
            for record, reason in zip(block, reasons, strict=True):
                if reason:
                    bad.append((source.describe(record), reason))
            looked = block.stop
    return bad, looked


def _reason_unusable(source: Source, record: int) -> str:
    reason = decode.reason_unreadable(source, record)
    if has_objects(source) and not reason:
        image, label = source[record]
        coco.picture_of(label, image)
    return reason


def _look(split: str, source: Source, record: int) -> Facts:
    path, labels = source.describe(record), known_labels(source)
    label = -1 if labels is None else int(labels[record])
    try:
        image, label = source[record]
        picture = decode.open_image(image)
        upright = decode.as_pil(picture)
        grey = np.asarray(upright.convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
        small = upright.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    except decode.DamagedImage as damage:
        return Facts(split, record, path, label, str(damage))
    is_file = isinstance(image, bytes)
    container = image_container.inspect(image) if isinstance(image, bytes) else None
    data = image if isinstance(image, bytes) else image.tobytes()
    bits = np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes()
    return Facts(
        split=split,
        record=record,
        path=path,
        label=label,
        format=container.format if container and is_file else "",
        size=upright.size,
        orientation=container.orientation if container else 1,
        digest=hashlib.blake2b(data, digest_size=16).digest(),
        pattern=int.from_bytes(bits, "big"),
        thumbnail=np.asarray(small, np.float32),
    )


def _unreadable(pictures: Sequence[Facts]) -> Iterator[Finding]:
    for facts in pictures:
        if facts.problem:
            yield Finding(facts.path, "unreadable", facts.problem, facts.split, facts.record)


def _duplicates(pictures: Sequence[Facts], names: Sequence[str]) -> Iterator[Finding]:
    """Exact and near copies, each with the first picture that it is a copy of."""
    readable = [facts for facts in pictures if not facts.problem]
    first_of: dict[bytes, int] = {}
    copies: dict[int, tuple[int, str]] = {}
    for place, facts in enumerate(readable):
        original = first_of.setdefault(facts.digest, place)
        if original != place:
            copies[place] = (original, "duplicate")
    for place, original in _near_duplicates(readable):
        copies.setdefault(place, (original, "near duplicate"))
    for place, (original, kind) in sorted(copies.items()):
        copy, model = readable[place], readable[original]
        remarks = []
        if copy.split != model.split:
            kind += " in train and test"
            remarks.append(f"of {model.path} ({model.split})")
        else:
            remarks.append(f"of {model.path}")
        if copy.label != model.label:
            kind += ", other class"
            remarks.append(f"{names[copy.label]}, there {names[model.label]}")
        where = (copy.split, copy.record, (model.split, model.record))
        yield Finding(copy.path, kind, "; ".join(remarks), *where)


def _near_duplicates(pictures: Sequence[Facts]) -> Iterator[tuple[int, int]]:
    """Pairs (later, earlier) of positions; of several earlier ones the first."""
    if not pictures:
        return
    patterns = np.array([facts.pattern for facts in pictures], np.uint64)
    flat = np.stack([np.ravel(facts.thumbnail) for facts in pictures if not facts.problem])
    spread = flat.std(axis=1)
    unit = (flat - flat.mean(axis=1, keepdims=True)) / np.maximum(spread, 1e-6)[:, None]
    for first in range(0, len(pictures), _ROWS_AT_A_TIME):
        block = slice(first, first + _ROWS_AT_A_TIME)
        distance = np.bitwise_count(patterns[block, None] ^ patterns[None, : block.stop])
        rows, columns = np.nonzero(distance <= _HASH_DISTANCE)
        rows += first
        earlier = columns < rows
        seen: set[int] = set()
        for later, other in zip(rows[earlier].tolist(), columns[earlier].tolist(), strict=True):
            if later not in seen and _alike(unit, flat, spread, later, other):
                seen.add(later)
                yield later, other


def _alike(unit: np.ndarray, flat: np.ndarray, spread: np.ndarray, a: int, b: int) -> bool:
    if min(spread[a], spread[b]) < _FLAT:  # nothing to correlate: the colour decides
        return bool(np.abs(flat[a] - flat[b]).max() < _FLAT)
    return float(unit[a] @ unit[b]) / unit.shape[1] >= _CORRELATION


def _class_problems(
    names: Sequence[str], counts: dict[str, np.ndarray], root: str
) -> Iterator[Finding]:
    if len(names) == 1:
        yield Finding(root or names[0], "single class", f"{names[0]} is the only class")
    for label, name in enumerate(names):
        for split, least in (("train", _FEW), ("test", 2)):
            count = int(counts[split][label])
            if count < least:
                place = _class_folder(root, name, split)
                yield Finding(place, "few pictures", f"{count} in {split}")
    largest, smallest = int(counts["train"].max()), int(counts["train"].min())
    if len(names) > 1 and largest >= _IMBALANCED * max(smallest, 1):
        rare = names[int(counts["train"].argmin())]
        yield Finding(
            _class_folder(root, rare, "train"),
            "imbalance",
            f"{smallest} training pictures, the largest class has {largest}",
        )


def _class_folder(root: str, name: str, split: str) -> str:
    """Where the pictures of a class are, in either layout; its name where there is no folder."""
    if not root:
        return name
    part = splits.match(split, [folder.name for folder in _folders(Path(root))])
    inside = os.path.join(root, part or "", name)
    return inside if os.path.isdir(inside) else os.path.join(root, name)


def wrong_level(root: Path, names: Sequence[str]) -> list[Finding]:
    """Whether what was taken for classes are folders of classes."""
    parents = [root / name for name in names if (root / name).is_dir()]
    if not parents:
        parents = [folder / name for folder in _folders(root) for name in names]
        parents = [parent for parent in parents if parent.is_dir()]
    below: list[tuple[str, ...]] = []
    for parent in parents:
        below.append(tuple(folder.name for folder in _folders(parent)))
        if len(below[-1]) < 2:  # a class of pictures, as most are: the others need no look
            break
    if len(names) == 1 and below and len(below[0]) > 1:
        flag = f"--config.data.path={shlex.quote(str(parents[0]))}"
        return [
            Finding(str(parents[0]), "wrong level", f"its folders look like the classes: {flag}")
        ]
    if len(names) > 1 and len(parents) > 1 and len(below[-1]) > 1:
        shared = set(below[0]).intersection(*below[1:])
        if shared:
            detail = (
                f"every class holds folders of the same names ({', '.join(sorted(shared)[:3])}); "
                "if these are the classes, give a folder that holds them, with the pictures of "
                "one class together"
            )
            return [Finding(str(root), "wrong level", detail)]
    return []


def _folders(path: Path) -> list[Path]:
    with os.scandir(path) as entries:  # asks nothing of each of a million files
        found = [entry.path for entry in entries if entry.name[0] != "." and entry.is_dir()]
    return sorted(map(Path, found))


def _odd_files(pictures: Sequence[Facts], image_size: int) -> Iterator[Finding]:
    for facts in pictures:
        if facts.problem:
            continue
        (width, height), where = facts.size, (facts.split, facts.record)
        sized = f"{width} x {height} pixels"
        if min(width, height) < image_size / 2:
            detail = f"{sized}; training enlarges it to {image_size}"
            yield Finding(facts.path, "small", detail, *where)
        if max(width, height) >= _ELONGATED * min(width, height):
            yield Finding(facts.path, "elongated", f"{sized}; crops see a part", *where)
        if facts.orientation != 1:
            detail = f"EXIF orientation {facts.orientation}; read upright"
            yield Finding(facts.path, "turned", detail, *where)
        suffix = os.path.splitext(facts.path)[1].lower()
        if suffix in EXTENSIONS and suffix not in _FORMATS.get(facts.format, EXTENSIONS):
            yield Finding(facts.path, "extension", f"{suffix}, but a {facts.format} file", *where)


def _unread_files(root: Path) -> Iterator[Finding]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and name.lower().endswith(_UNREAD):
                kind = os.path.splitext(name)[1]
                detail = f"{kind} is not read; convert it to JPEG or PNG"
                yield Finding(os.path.join(folder, name), "not read", detail)
