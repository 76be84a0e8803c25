"""What every data set looks like to the rest of the project: records by index."""

import re
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np


class Record(NamedTuple):
    """One labelled image: an encoded file, or pixels as uint8 [H, W, 3] or [H, W].

    A source whose `label_kind` is "objects" has all objects of the image in place of its class.
    """

    image: bytes | np.ndarray
    label: Any


class Source(Protocol):
    """A split of a data set with random access. The index of a record is its id."""

    @property
    def class_names(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record:
        """Record `index`; `decode.DamagedImage` when it cannot be read. Safe in threads."""
        ...

    def describe(self, index: int) -> str:
        """Where record `index` comes from, for messages: a path, or ``cifar100/train[12]``."""
        ...


OBJECTS = "objects"  # the `label_kind` of sources whose records are pictures with objects


def file_name(source: Source, index: int) -> str:
    """The last part of a record's path, for a caption.

    Sources that keep files within others describe a record by its place and, in brackets, its path.
    """
    described = source.describe(index)
    inside = re.search(r"\[\d+\] \((.+)\)$", described)
    return Path(inside[1] if inside else described).name
