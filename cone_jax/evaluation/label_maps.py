"""Other data sets in the classes of the run: labels are matched by name, never by number alone."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from cone_jax.data.datasets import known_labels
from cone_jax.data.decode import DamagedImage
from cone_jax.data.sources import Source
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class RelabelledSource:
    """The records of a source, with the labels that training gave their classes."""

    source: Source
    class_names: tuple[str, ...]  # training's
    label_of: tuple[int, ...]  # training's label of each of the source's own classes
    class_ids: tuple[str, ...] = ()  # other names of the classes, such as WordNet's

    @property
    def labels(self) -> np.ndarray | None:
        """The label of each record; None if the source does not know it without reading."""
        own = known_labels(self.source)
        # The last place is that of -1, a record without a label.
        return None if own is None else np.array((*self.label_of, -1))[own]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Record:
        image, label = self.source[index]
        return Record(image, self.label_of[label])

    def describe(self, index: int) -> str:
        return self.source.describe(index)


def relabel(source: Source, trained: Source, field: str) -> RelabelledSource:
    """`source` in the classes of `trained`; `field` is what a user would have to change.

    A source whose classes are only numbered, as those of some TFDS sets are, has to have as many.
    """
    names, own = trained.class_names, source.class_names
    if own == tuple(map(str, range(len(own)))) and len(own) == len(names):
        return RelabelledSource(source, names, tuple(range(len(names))), class_ids(trained))
    return by_name(source, names, class_ids(trained), field)


def by_name(
    source: Source, names: tuple[str, ...], ids: tuple[str, ...], field: str
) -> RelabelledSource:
    """`source` in the classes `names`, which may also be called by `ids`, such as WordNet's."""
    return RelabelledSource(
        source, names, match_classes(source.class_names, names, ids, field), ids
    )


def class_ids(source: Source) -> tuple[str, ...]:
    """Other names of the source's classes, by label; empty where there are none."""
    return getattr(source, "class_ids", ())


def match_classes(
    own: Sequence[str], names: Sequence[str], ids: Sequence[str] = (), field: str = "data.path"
) -> tuple[int, ...]:
    """The label among `names` or `ids` of each class in `own`; case and underscores do not count.

    >>> match_classes(["n02", "Great_white shark"], ["tench", "great white shark"], ["n01", "n02"])
    (1, 1)
    """
    every = [*enumerate(ids), *enumerate(names)]
    places = {_plain(name): label for label, name in every} | {name: label for label, name in every}
    found = [places.get(name, places.get(_plain(name))) for name in own]
    unknown = [name for name, label in zip(own, found, strict=True) if label is None]
    if unknown:
        cure = ", or their ids" if ids else ""
        raise UserError(
            f"{field}: class {unknown[0]!r} ({len(unknown)} in all) is not one of the {len(names)} "
            f"classes of the network, such as {names[0]!r}; use its names for the folders{cure}"
        )
    return tuple(label for label in found if label is not None)


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("_", " ").split())


def present_labels(source: Source) -> tuple[int, ...]:
    """The labels that occur. Reads every record."""
    found: set[int] = set()
    for index in range(len(source)):
        try:
            found.add(source[index].label)
        except DamagedImage:
            continue
    return tuple(sorted(found))
