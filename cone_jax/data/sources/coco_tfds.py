"""Pictures with objects from TFDS: ``coco/2017``, or any set with a feature of its form.

The feature, `data.label_key` ("objects" in COCO), is a sequence of ``bbox`` (normalised), ``label``
and, where there are such, ``is_crowd`` and ``area``. TFDS keeps no masks of COCO's objects, so that
only boxes can be learnt and judged. It rounds areas to whole pixels, too, which can move an object
at the border of small, medium and large. Sizes of pictures are not stored either: the headers of
all pictures are read once, when the split is opened.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cone_jax.data import decode
from cone_jax.data.sources import coco, tfds
from cone_jax.data.sources.coco_source import CocoSource
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError

if TYPE_CHECKING:
    from tensorflow_datasets.core.dataset_builder import DatasetBuilder

# Ids from 1 to 90 that COCO's 80 categories leave out; TFDS numbers the categories through.
_GAPS = frozenset((12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
_CATEGORIES = tuple(number for number in range(1, 91) if number not in _GAPS)
_THREADS = 8


class TfdsObjects(CocoSource):
    """Pictures of a TFDS split, read when asked for; what is labelled on them is in memory."""

    def __init__(self, data: coco.CocoData, reader: Any, places: tuple[int, ...]) -> None:
        super().__init__(data, data.records)
        self._reader, self._places = reader, places

    def __getitem__(self, index: int) -> Record:
        record = tfds.read(self._reader, self._places[index])
        return Record(record[tfds.IMAGE_KEY], self.objects(index))


def has_objects(builder: "DatasetBuilder", key: str) -> bool:
    """Whether the feature `key` is a sequence of boxes with a class each."""
    features = builder.info.features
    each = getattr(features[key], "feature", None) if key in features else None
    return {"bbox", "label"} <= set(getattr(each, "keys", tuple)())


def open_objects(
    builder: "DatasetBuilder", split: str, key: str, *, keep_empty: bool
) -> TfdsObjects:
    """`split` of a prepared set whose feature `key` has objects, in the order of its records."""
    names = tuple(builder.info.features[key].feature["label"].names or ())
    if not names:
        raise UserError(f"data.label_key ({key!r}) of {builder.info.full_name} has no class names")
    reader, where = tfds.open_reader(builder, split), f"{builder.info.full_name}/{split}"
    found = list(_records(reader, key, where, len(names)))
    places = tuple(k for k, each in enumerate(found) if keep_empty or not np.all(each.crowd))
    if not places:
        raise UserError(f"{where}: no picture has an object; set data.empty_images to 'keep'")
    is_coco = builder.info.name == "coco" and len(names) == len(_CATEGORIES)
    data = coco.CocoData(
        tuple(found[place] for place in places),
        _CATEGORIES if is_coco else tuple(range(1, 1 + len(names))),
        names,
        len(found) - len(places),
        dropped_boxes=0,
        clipped_boxes=0,
    )
    return TfdsObjects(data, reader, places)


def _records(reader: Any, key: str, where: str, classes: int) -> Iterator[coco.Record]:
    def one(place: int) -> coco.Record:
        return _record(tfds.read(reader, place), key, f"{where}[{place}]", classes, place)

    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(one, range(len(reader)))


def _record(stored: Any, key: str, where: str, classes: int, place: int) -> coco.Record:
    """The objects of one stored record, in pixels."""
    try:
        width, height = decode.size_of(decode.open_image(stored[tfds.IMAGE_KEY]))
    except decode.DamagedImage as error:
        raise UserError(f"{where}: not a readable picture ({error}); prepare it again") from error
    objects = stored[key]
    # TFDS: ymin, xmin, ymax, xmax as shares of the sides.
    corners = np.asarray(objects["bbox"], np.float64).reshape(-1, 4)
    if not np.all(np.isfinite(corners)):
        raise UserError(f"{where}: {key}.bbox must be finite numbers; prepare it again")
    corners = corners[:, [1, 0, 3, 2]] * np.array([width, height, width, height])
    label = np.asarray(objects["label"], np.int64).reshape(-1)
    if np.any((label < 0) | (label >= classes)):
        raise UserError(f"{where}: {key}.label must be one of {classes} classes; choose a split")
    sides = np.maximum(corners[:, 2:] - corners[:, :2], 0.0)
    crowd = np.asarray(objects.get("is_crowd", np.zeros(len(label))), bool).reshape(-1)
    areas = np.asarray(objects.get("area", sides.prod(axis=1)), np.float64).reshape(-1)
    kept = np.all(sides > 0.0, axis=1)
    return coco.Record(
        image_id=int(stored.get("image/id", place)),
        path=Path(where) / _text(stored.get("image/filename", str(place))),
        size=(height, width),
        boxes=corners[kept].astype(np.float32),
        classes=(1 + label[kept]).astype(np.int32),
        crowd=crowd[kept],
        segmentations=(None,) * int(kept.sum()),
        stated=np.concatenate([corners[:, :2], sides], axis=1)[kept],
        areas=areas[kept],
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
