"""Sources by the name a config gives them."""

from collections.abc import Callable
from typing import Any

from cone_jax.data.sources import array, fgvc_aircraft, image_folder, packed, splits, tfds
from cone_jax.data.sources.source import Source
from cone_jax.errors import UserError, closest
from cone_jax.registry import Registry
from cone_jax.settings import Data

# Each opens a split of the data set that the section ``data`` of a config names.
_OWN: dict[str, Callable[[str, Data], Source]] = {
    "array": lambda split, data: array.open_npz(split, data.path, data.holdout, data.holdout_seed),
    "digits": lambda split, data: array.open_digits(split),
    "fgvc_aircraft": lambda split, data: fgvc_aircraft.open_fgvc_aircraft(split, data.path),
    "image_folder": lambda split, data: image_folder.open_image_folder(
        split, data.path, data.holdout, data.holdout_seed
    ),
    "packed": lambda split, data: packed.open_packed(split, data.path),
    "tfds": lambda split, data: tfds.open_tfds(split, data.name, data.path, data.label_key),
}
SOURCES = Registry("source", "cone_jax.sources", _OWN)


def names() -> tuple[str, ...]:
    """All kinds of source that `create` knows."""
    return tuple(SOURCES)


def create(kind: str, split: str, **options: Any) -> Source:
    """The part `split` of the data set that `kind` and `options` name.

    `options` are fields of `cone_jax.settings.Data`: name, path, label_key, holdout, holdout_seed.
    `split` may be an expression: TFDS's own, or those of `cone_jax.data.sources.splits`.

    >>> train = create("digits", "train")
    >>> len(train), train[0].image.shape, train.class_names[:3]
    (1437, (8, 8), ('0', '1', '2'))
    """
    return open_source(Data(source=kind, **options), split)


def open_source(data: Data, split: str) -> Source:
    """The part `split` of the data set that a config's section describes."""
    kind = data.source
    if kind not in SOURCES:
        raise UserError(f"data.source ({kind!r}) is not a source; {closest(kind, SOURCES)}")
    if kind == "tfds":
        return SOURCES[kind](split, data)
    return splits.open_expression(
        split, lambda part: SOURCES[kind](part, data), data.holdout, data.holdout_seed
    )
