"""Split expressions for the sources that have none of their own (TFDS has):

    train+validation   both, one after the other
    train[held_out]    the fraction `data.holdout` of each class of train
    train[kept]        the rest of train

Which records are held out follows from `data.holdout_seed`, as wherever a test part is missing.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from cone_jax.data.sources import splits
from cone_jax.data.sources.source import Record, Source
from cone_jax.errors import UserError

PARTS = ("kept", "held_out")


class Subset:
    """Some records of another source, in the order given."""

    def __init__(self, source: Source, records: np.ndarray) -> None:
        self._source = source
        self._records = records
        self.class_names = source.class_names

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        return self._source[int(self._records[index])]

    def describe(self, index: int) -> str:
        return self._source.describe(int(self._records[index]))


class Concatenation:
    """Sources with the same classes, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._ends = tuple(accumulate(len(source) for source in sources))
        self.class_names = sources[0].class_names

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Record:
        source, own = self._find(index)
        return source[own]

    def describe(self, index: int) -> str:
        source, own = self._find(index)
        return source.describe(own)

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
    splits.check_holdout(holdout, "test", f"split {term!r}")
    source = open_part(name)
    held = _held_out(source, holdout, seed)
    return Subset(source, np.flatnonzero(held == (part == "held_out")))


def _held_out(source: Source, holdout: float, seed: int) -> np.ndarray:
    """Of each record whether it is held out."""
    labels = getattr(source, "labels", None)
    if labels is None:
        labels = np.array([source[index].label for index in range(len(source))])
    # By its path where it has one, a file stays on its side when others are added.
    key = getattr(source, "relative_path", str)
    held = np.zeros(len(source), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        keys = [key(member).encode() for member in members.tolist()]
        held[members[sorted(splits.held_out(keys, holdout, seed))]] = True
    return held
