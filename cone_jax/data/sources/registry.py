"""Sources by the name a config gives them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from cone_jax.data.sources import array, fgvc_aircraft, image_folder, packed, splits, tfds
from cone_jax.data.sources.source import Source
from cone_jax.errors import UserError, closest
from cone_jax.registry import Registry


@dataclasses.dataclass(frozen=True)
class Options:
    """The fields of config.data that say which data set is meant; each source reads its own."""

    name: str = ""  # of a TFDS set: name[/config][:version]
    path: str = ""  # image folder, .npz file or folder, packed or archive folder, TFDS data_dir
    label_key: str = "label"  # the TFDS feature to learn
    holdout: float = 0.1  # fraction of each class to test on where there is no test part
    holdout_seed: int = 0


_OWN: dict[str, Callable[[str, Options], Source]] = {
    "array": lambda split, o: array.open_npz(split, o.path, o.holdout, o.holdout_seed),
    "digits": lambda split, o: array.open_digits(split),
    "fgvc_aircraft": lambda split, o: fgvc_aircraft.open_fgvc_aircraft(split, o.path),
    "image_folder": lambda split, o: image_folder.open_image_folder(
        split, o.path, o.holdout, o.holdout_seed
    ),
    "packed": lambda split, o: packed.open_packed(split, o.path),
    "tfds": lambda split, o: tfds.open_tfds(split, o.name, o.path, o.label_key),
}
SOURCES = Registry("source", "cone_jax.sources", _OWN)


def names() -> tuple[str, ...]:
    """All kinds of source that `create` knows."""
    return tuple(SOURCES)


def create(kind: str, split: str, **options: Any) -> Source:
    """The part `split` of the data set that `kind` and `options` (see `Options`) name.

    `split` may be an expression: TFDS's own, or those of `split_expressions` for the others.

    >>> train = create("digits", "train")
    >>> len(train), train[0].image.shape, train.class_names[:3]
    (1437, (8, 8), ('0', '1', '2'))
    """
    if kind not in SOURCES:
        raise UserError(f"data.source ({kind!r}) is not a source; {closest(kind, SOURCES)}")
    settings = Options(**options)
    if kind == "tfds":
        return SOURCES[kind](split, settings)
    return splits.open_expression(
        split,
        lambda part: SOURCES[kind](part, settings),
        settings.holdout,
        settings.holdout_seed,
    )
