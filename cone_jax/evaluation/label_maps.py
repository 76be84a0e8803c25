"""Other data sets in the classes of the run: labels are matched by name, never by number alone."""

import dataclasses
from collections.abc import Sequence

from cone_jax.data.decode import DamagedImage
from cone_jax.data.sources import Source
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class RelabelledSource:
    """The records of a source, with the labels that training gave their classes."""

    source: Source
    class_names: tuple[str, ...]  # training's
    labels: tuple[int, ...]  # training's label of each of the source's own

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Record:
        image, label = self.source[index]
        return Record(image, self.labels[label])

    def describe(self, index: int) -> str:
        return self.source.describe(index)


def relabel(source: Source, class_names: Sequence[str], field: str) -> RelabelledSource:
    """`source` in the classes of training; `field` is what a user would have to change.

    A source whose classes are only numbered, as those of some TFDS sets are, has to have as many.
    """
    names = tuple(class_names)
    own = source.class_names
    numbered = own == tuple(map(str, range(len(own))))
    if own == names or (numbered and len(own) == len(names)):
        return RelabelledSource(source, names, tuple(range(len(names))))
    unknown = [name for name in own if name not in names]
    if unknown:
        raise UserError(
            f"{field}: class {unknown[0]!r} ({len(unknown)} such) is none of the "
            f"{len(names)} classes of training, such as {names[0]!r}"
        )
    place = {name: label for label, name in enumerate(names)}
    return RelabelledSource(source, names, tuple(place[name] for name in own))


def present_labels(source: Source) -> tuple[int, ...]:
    """The labels that occur. Reads every record."""
    found: set[int] = set()
    for index in range(len(source)):
        try:
            found.add(source[index].label)
        except DamagedImage:
            continue
    return tuple(sorted(found))
