"""Small data sets, decoded once and kept in memory.

Decoding a 32x32 PNG takes longer than augmenting it. `CachedSource` keeps the pixels of every
record whose picture fits into its equal share of the memory allowed, ``max_bytes / records``;
the others pass through encoded. So of CIFAR everything is kept, of ImageNet nothing; and whether
a record is kept depends on nothing but the record and the limit, not on what was read before.
That matters: a large JPEG is decoded at reduced size where the crop allows (`decode.Picture`),
which gives slightly different pixels from the kept full-size picture, and a run that is
resumed must see the same ones.

The memory is taken as records are first read, once a process: worker processes have each their
own. A pickled source arrives empty.
"""

import numpy as np

from cone_jax.data import decode
from cone_jax.data.sources.source import Record, Source

_CHANNELS = 3


class CachedSource:
    """`source`, with small pictures as uint8 [H, W, 3] instead of encoded. Safe in threads."""

    def __init__(
        self, source: Source, max_bytes: int, *, max_pixels: int = decode.MAX_PIXELS
    ) -> None:
        """Args:
        source: where records come from.
        max_bytes: the most that all kept pictures may take together.
        max_pixels: of a picture that is decoded at all, as for `decode.open_image`.
        """
        self._source = source
        self._share = max_bytes // max(len(source), 1)
        self._max_pixels = max_pixels
        self._kept: list[Record | None] = [None] * len(source)
        self._is_passed = bytearray(len(source))  # 1: looked at before, and not to be kept
        self.class_names = source.class_names

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
            return np.array(picture.full())
        except decode.DamagedImage:
            return None  # the reader meets the damage when it decodes, and reports it

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_kept": [None] * len(self._source)}
