"""What every data set looks like to the rest of the project: records by index."""

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
