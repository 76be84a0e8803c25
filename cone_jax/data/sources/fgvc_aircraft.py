"""FGVC-Aircraft, as its archive unpacks: 10,000 photographs of 100 variants of aircraft.

    fgvc-aircraft-2013b/data/images/0034309.jpg
    fgvc-aircraft-2013b/data/variants.txt                one class a line, in the order of labels
    fgvc-aircraft-2013b/data/images_variant_train.txt    "0034309 707-320": picture and class

The lowest 20 rows of every photograph are a banner with its copyright, which the authors of the
data ask to remove: it is not part of the pixels that records hold.
"""

from pathlib import Path

import numpy as np

from cone_jax.data import decode
from cone_jax.data.sources import splits
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError

BANNER = 20
# Names of the parts, as the files spell them.
FILES = ("train", "val", "test")


class FgvcAircraftSource:
    """Photographs of one part, decoded and without their banner. Safe in threads."""

    def __init__(
        self, images: Path, class_names: tuple[str, ...], names: list[str], labels: list[int]
    ) -> None:
        self._images = images
        self._names = names
        self.labels = np.asarray(labels, np.int32)
        self.class_names = class_names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Record:
        try:
            data = Path(self.describe(index)).read_bytes()
        except OSError as error:
            raise decode.DamagedImage(f"cannot be read: {error.strerror}") from error
        pixels = np.asarray(decode.Picture(data).full())
        return Record(pixels[:-BANNER], int(self.labels[index]))

    def describe(self, index: int) -> str:
        return str(self._images / f"{self._names[index]}.jpg")

    def relative_path(self, index: int) -> str:
        """The name of the picture."""
        return self._names[index]


def open_fgvc_aircraft(split: str, path: str) -> FgvcAircraftSource:
    """The photographs of `split` (train, validation or test) below `path`.

    `path` is the unpacked archive, or its folder ``data``.
    """
    if not path:
        raise UserError("data.path is empty; give the unpacked archive fgvc-aircraft-2013b")
    root = Path(path).expanduser()
    folder = root / "data" if (root / "data").is_dir() else root
    part = splits.match(split, FILES)
    if part is None:
        raise UserError(f"split {split!r} is not a part of FGVC-Aircraft: {', '.join(FILES)}")
    class_names = tuple(_lines(folder / "variants.txt"))
    places = {name: label for label, name in enumerate(class_names)}
    names, labels = [], []
    listing = folder / f"images_variant_{part}.txt"
    for line in _lines(listing):
        name, _, variant = line.partition(" ")
        if variant not in places:
            raise UserError(f"{listing}: {variant!r} of {name} is not in variants.txt")
        names.append(name)
        labels.append(places[variant])
    return FgvcAircraftSource(folder / "images", class_names, names, labels)


def _lines(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}; data.path must be the unpacked archive "
            "fgvc-aircraft-2013b"
        ) from error
    return [line for line in lines if line]
