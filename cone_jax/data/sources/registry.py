"""Sources by the name a config gives them, and small ones decoded once and kept in memory."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cone_jax import storage
from cone_jax.data import decode
from cone_jax.data.sources import (
    array,
    coco_source,
    coco_tfds,
    fgvc_aircraft,
    image_folder,
    packed,
    splits,
    tfds,
)
from cone_jax.data.sources.source import OBJECTS, Record, Source
from cone_jax.errors import UserError, closest
from cone_jax.settings import Data
from cone_jax.spec_strings import Registry


def _open_tfds(split: str, data: Data) -> Source:
    builder = tfds.prepared(data.name, data.path)
    if coco_tfds.has_objects(builder, data.label_key):
        keep_empty = data.empty_images == "keep" or split != data.train_split
        return coco_tfds.open_objects(builder, split, data.label_key, keep_empty=keep_empty)
    return tfds.TfdsSource(builder, split, data.label_key)


# Each opens a split of the data set that the section ``data`` of a config names.
_OWN: dict[str, Callable[[str, Data], Source] | str] = {
    "array": lambda split, data: array.open_npz(split, data.path, data.holdout, data.holdout_seed),
    "coco": lambda split, data: coco_source.open_coco(
        split, data.path, data.empty_images, data.holdout, data.holdout_seed
    ),
    "digits": lambda split, data: array.open_digits(split),
    "fgvc_aircraft": lambda split, data: fgvc_aircraft.open_fgvc_aircraft(split, data.path),
    "hf_datasets": "cone_jax.data.sources.hf_datasets:open_arrow",
    "image_folder": lambda split, data: image_folder.open_image_folder(
        split, data.path, data.holdout, data.holdout_seed
    ),
    "packed": lambda split, data: packed.open_packed(split, data.path),
    "table": "cone_jax.data.sources.table:open_table",
    "tfds": _open_tfds,
    "webdataset": "cone_jax.data.sources.webdataset:open_webdataset",
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
    if kind == "tfds" or split.isidentifier():  # TFDS reads expressions itself
        return _open_part(data, split)
    return splits.open_expression(
        split, lambda part: _open_part(data, part), data.holdout, data.holdout_seed
    )


def has_objects(source: Source) -> bool:
    """Whether records are pictures with objects, and not with one class each."""
    return getattr(source, "label_kind", "") == OBJECTS


def _open_part(data: Data, part: str) -> Source:
    if not storage.is_remote(data.path):
        return SOURCES[data.source](part, data)
    from cone_jax.data import staging

    here = staging.localised(data, part)
    source = SOURCES[data.source](part, here)
    # The copy of another machine is elsewhere, the data set is not.
    if here is not data and hasattr(source, "name"):
        source.name = source.name.replace(here.path, data.path.rstrip("/"), 1)
    return source


_CHANNELS = 3


class CachedSource:
    """`source`, with small pictures as uint8 [H, W, 3] instead of encoded. Safe in threads.

    Decoding a 32x32 PNG takes longer than augmenting it. So the pixels of every record are kept
    whose picture fits into its equal share of the memory allowed, ``max_bytes / records``; the
    others pass through encoded. Of CIFAR everything is kept, of ImageNet nothing; and whether a
    record is kept depends on nothing but the record and the limit, not on what was read before.
    That matters: a large JPEG is decoded at reduced size where the crop allows (`decode.Picture`),
    which gives slightly different pixels from the kept full-size picture, and a run that is
    resumed must see the same ones.

    The memory is taken as records are first read, once per process: each worker process has its
    own. A pickled source arrives empty.
    """

    def __init__(
        self,
        source: Source,
        max_bytes: int,
        *,
        max_pixels: int = decode.MAX_PIXELS,
        upright: bool = True,
    ) -> None:
        """Args:
        source: where records come from.
        max_bytes: the most that all kept pictures may take together.
        max_pixels: of a picture that is decoded at all, as for `decode.open_image`.
        upright: False where some reader wants pictures as stored: those to be turned stay encoded.
        """
        self._source = source
        self._upright = upright
        self._share = max_bytes // max(len(source), 1)
        self._max_pixels = max_pixels
        self._kept: list[Record | None] = [None] * len(source)
        self._is_passed = bytearray(len(source))  # 1: looked at before, and not to be kept
        self.class_names = source.class_names
        self.labels: np.ndarray | None = getattr(source, "labels", None)
        self.is_holdout: bool = getattr(source, "is_holdout", False)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Record:
        record = self._kept[index]
        if record is None:
            record = self._source[index]
            if not self._is_passed[index]:
                record = self._keep(index, record)
        return record

    def describe(self, index: int) -> str:
        return self._source.describe(index)

    def relative_path(self, index: int) -> str:
        return splits.key_of(self._source, index)

    def _keep(self, index: int, record: Record) -> Record:
        # Threads that come here together store equal values.
        pixels = self._small_picture(record.image)
        if pixels is None:
            self._is_passed[index] = 1
            return record
        # Every reader gets this very array; a transform that writes into it would spoil it.
        pixels.setflags(write=False)
        kept = self._kept[index] = Record(pixels, record.label)
        return kept

    def _small_picture(self, image: bytes | np.ndarray) -> np.ndarray | None:
        """The decoded picture; None when it is too large, damaged, or an array already."""
        if isinstance(image, np.ndarray):
            return None
        try:
            picture = decode.Picture(image, max_pixels=self._max_pixels)
            width, height = picture.size
            if width * height * _CHANNELS > self._share:
                return None
            if picture.is_marked and not self._upright:
                return None
            return np.array(picture.full())
        except decode.DamagedImage:
            return None  # the reader meets the damage when it decodes, and reports it

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_kept": [None] * len(self._source)}
