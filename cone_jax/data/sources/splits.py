"""Parts of a data set: what they are called, which images form a hold-out, how they combine.

Folders and files name the same part differently (``val``, ``valid``, ``validation``), and many data
sets come without a part to test on. Both are settled here, once for all sources. Sources without
split expressions of their own (TFDS has some) take these:

    train+validation   both, one after the other
    train[held_out]    the fraction `data.holdout` of each class of train
    train[kept]        the rest of train

Which records are held out follows from `data.holdout_seed`, as wherever a test part is missing.
"""

import hashlib
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from cone_jax.data import decode
from cone_jax.data.sources.source import Record, Source
from cone_jax.errors import UserError

Part = Literal["train", "held-out"]

_TRAIN = ("train", "training")
_VALIDATION = ("validation", "val", "valid")
_TEST = ("test", "testing")


def part(split: str) -> Part:
    """Whether `split` names the images to train on or images held out from training.

    >>> part("train"), part("val")
    ('train', 'held-out')
    """
    if split.lower() in _TRAIN:
        return "train"
    if split.lower() in _VALIDATION + _TEST:
        return "held-out"
    known = ", ".join(_TRAIN + _VALIDATION + _TEST)
    raise UserError(
        f"data.train_split or data.test_split ({split!r}) is not a part of this data set; known "
        f"names: {known}"
    )


def match(split: str, present: Iterable[str]) -> str | None:
    """The name in `present` that stands for `split`, or None. Case does not matter.

    The name itself wins, then another spelling of it. A data set with only one held-out part is
    tested on that part, whether it is called validation or test.

    >>> match("test", ["train", "val"]), match("val", ["Train", "Validation", "test"])
    ('val', 'Validation')
    """
    wanted = split.lower()
    groups: list[tuple[str, ...]] = [(wanted,)]
    if wanted in _TRAIN:
        groups += [_TRAIN]
    elif wanted in _VALIDATION:
        groups += [_VALIDATION, _TEST]
    elif wanted in _TEST:
        groups += [_TEST, _VALIDATION]
    spelt = {name.lower(): name for name in sorted(present, reverse=True)}
    return next((spelt[name] for group in groups for name in group if name in spelt), None)


def check_holdout(holdout: float, split: str, where: str) -> None:
    """Refuses a fraction that leaves nothing to train on, or nothing to test on when asked to."""
    if not 0.0 <= holdout < 1.0:
        raise UserError(f"data.holdout ({holdout}) must be at least 0 and less than 1")
    if holdout == 0.0 and part(split) == "held-out":
        raise UserError(
            f"{where} has no part to test on and data.holdout is 0; "
            "set data.holdout (such as 0.1) or add a test folder"
        )


def held_out(keys: Sequence[bytes], fraction: float, seed: int) -> set[int]:
    """Positions in `keys` of the images of one class that are held out.

    The number is `fraction` of the class, at least one, and never all of it: one image alone is
    for training. Which ones follows from a hash of (seed, key), so images added to the
    class later move at most a few of the others, and other classes not at all.
    """
    if fraction == 0.0 or len(keys) < 2:
        return set()
    count = min(len(keys) - 1, max(1, int(fraction * len(keys) + 0.5)))
    salt = seed.to_bytes(8, "little", signed=True)

    def rank(position: int) -> tuple[bytes, bytes]:
        key = keys[position]
        return hashlib.blake2b(key, digest_size=8, key=salt).digest(), key

    return set(sorted(range(len(keys)), key=rank)[:count])


def folds_of(source: Source, count: int, seed: int) -> np.ndarray:
    """Which of `count` folds each record is in: each class is spread evenly over them.

    As with `held_out`, a hash of (seed, key) decides, and classes take turns in who begins.
    """
    labels, salt = labels_of(source), seed.to_bytes(8, "little", signed=True)
    folds, begin = np.zeros(len(source), np.int32), 0
    for label in np.unique(labels):
        keys = {
            member: os.fsencode(key_of(source, member))
            for member in np.flatnonzero(labels == label).tolist()
        }
        ranked = sorted(
            keys,
            key=lambda member: (
                hashlib.blake2b(keys[member], digest_size=8, key=salt, person=b"folds").digest(),
                keys[member],
            ),
        )
        folds[ranked] = (begin + np.arange(len(ranked))) % count
        begin += len(ranked)
    return folds


def long_tail(source: Source, ratio: float, seed: int) -> np.ndarray:
    """The records that are left of a balanced set when it is thinned out to a long tail, in order.

    Of C classes with up to n records, class c keeps ``n * ratio ** (-c / (C - 1))`` of its own,
    rounded down (Cao et al., 2019), and at least one; which, a hash of (seed, key) decides.
    """
    labels, salt = labels_of(source), seed.to_bytes(8, "little", signed=True)
    counts = np.bincount(labels[labels >= 0], minlength=len(source.class_names))
    last = max(len(counts) - 1, 1)
    kept: list[int] = []
    for label in range(len(counts)):
        room = max(1, int(counts.max() * ratio ** (-label / last)))
        keys = {m: os.fsencode(key_of(source, m)) for m in np.flatnonzero(labels == label).tolist()}

        def rank(member: int, keys: dict[int, bytes] = keys) -> tuple[bytes, bytes]:
            digest = hashlib.blake2b(keys[member], digest_size=8, key=salt, person=b"long tail")
            return digest.digest(), keys[member]

        kept += sorted(keys, key=rank)[:room]
    return np.array(sorted(kept), np.int64)


def labels_of(source: Source) -> np.ndarray:
    """The label of each record; -1 where it cannot be read. Reads them all if it has to."""
    labels = getattr(source, "labels", None)
    return np.array([_label(source, i) for i in range(len(source))]) if labels is None else labels


def _label(source: Source, index: int) -> int:
    try:
        return source[index].label
    except decode.DamagedImage:
        return -1


def key_of(source: Source, index: int) -> str:
    """By its path where it has one, a file stays on its side when others are added."""
    return getattr(source, "relative_path", str)(index)


PARTS = ("kept", "held_out")


class Subset:
    """Some records of another source, in the order given."""

    def __init__(self, source: Source, records: np.ndarray) -> None:
        self._source = source
        self._records = records
        self.class_names = source.class_names
        self.label_kind = getattr(source, "label_kind", "class")
        self.is_holdout = getattr(source, "is_holdout", False)
        labels = getattr(source, "labels", None)
        self.labels = None if labels is None else labels[records]

    def objects(self, index: int) -> Any:
        return self._source.objects(int(self._records[index]))  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        return self._source[int(self._records[index])]

    def describe(self, index: int) -> str:
        return self._source.describe(int(self._records[index]))

    def relative_path(self, index: int) -> str:
        return key_of(self._source, int(self._records[index]))


class Concatenation:
    """Sources with the same classes, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._ends = tuple(accumulate(len(source) for source in sources))
        self.class_names = sources[0].class_names
        self.label_kind = getattr(sources[0], "label_kind", "class")
        labels = [getattr(source, "labels", None) for source in sources]
        known = [each for each in labels if each is not None]
        self.labels = np.concatenate(known) if len(known) == len(labels) else None

    def objects(self, index: int) -> Any:
        source, own = self._find(index)
        return source.objects(own)  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Record:
        source, own = self._find(index)
        return source[own]

    def describe(self, index: int) -> str:
        source, own = self._find(index)
        return source.describe(own)

    def relative_path(self, index: int) -> str:
        source, own = self._find(index)
        return f"{self._sources.index(source)}/{key_of(source, own)}"

    def _find(self, index: int) -> tuple[Source, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = bisect_right(self._ends, index)
        return self._sources[place], index - (self._ends[place - 1] if place else 0)


def open_expression(
    split: str, open_part: Callable[[str], Source], holdout: float, seed: int
) -> Source:
    """What `split` means, where `open_part` opens a part by its plain name."""
    terms = [_open_term(term.strip(), open_part, holdout, seed) for term in split.split("+")]
    if len(terms) == 1:
        return terms[0]
    for term in terms[1:]:
        if term.class_names != terms[0].class_names:
            raise UserError(f"split {split!r}: its parts have different classes")
    return Concatenation(terms)


def _open_term(term: str, open_part: Callable[[str], Source], holdout: float, seed: int) -> Source:
    match = re.fullmatch(r"(.+)\[(\w+)\]", term)
    if match is None:
        return open_part(term)
    name, part = match.groups()
    if part not in PARTS:
        raise UserError(f"split {term!r} must be {name}[{PARTS[0]}] or {name}[{PARTS[1]}]")
    check_holdout(holdout, "test", f"split {term!r}")
    source = open_part(name)
    held = _held_out(source, holdout, seed)
    subset = Subset(source, np.flatnonzero(held == (part == "held_out")))
    subset.is_holdout = part == "held_out"
    return subset


def _held_out(source: Source, holdout: float, seed: int) -> np.ndarray:
    """Of each record whether it is held out."""
    labels = labels_of(source)
    held = np.zeros(len(source), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        keys = [os.fsencode(key_of(source, member)) for member in members.tolist()]
        held[members[sorted(held_out(keys, holdout, seed))]] = True
    return held
