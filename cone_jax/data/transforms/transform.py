"""The two types of this package: a `Transform` is one step, a `Pipeline` the steps of one view.

Both are frozen dataclasses of plain values: hashable, picklable, comparable, shared by threads.
All randomness comes from the generator passed in, so equal generators give equal pixels.
"""

import abc
import dataclasses

import numpy as np

from cone_jax.data import decode
from cone_jax.data.decode import Raster


class Transform(abc.ABC):
    """One step. Subclasses are frozen dataclasses that check their fields on construction."""

    @abc.abstractmethod
    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        """The transformed image; never changes the one it was given."""

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """(height, width) of the result, given that of the input; None = varies by image."""
        return size


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The transforms of one view, in order.

    `pixels` "fast" decodes no more of a JPEG than is needed, and crops and resizes in one pass.
    "exact" gives bit for bit what Pillow gives on the whole picture, step after step, which is how
    torchvision and timm evaluate. "stored" does the same without turning a picture by its EXIF
    orientation: so do their loaders of folders.
    """

    transforms: tuple[Transform, ...]
    pixels: str = "fast"

    def open(self, data: bytes | np.ndarray) -> "decode.Picture | np.ndarray":
        """What `__call__` takes, of an encoded file or an array."""
        return decode.open_image(data, upright=self.pixels != "stored")

    def __call__(self, image: Raster, rng: np.random.Generator) -> np.ndarray:
        """Augments one image.

        Args:
            image: what `decode.open_image` returned (or an RGB Pillow image). Not modified; it may
                be passed again for another view, and is then not decoded again.
            rng: the generator of this record and view; nothing else may draw from it.

        Returns:
            uint8 [H, W, 3], C-contiguous, possibly read-only or the input array itself.

        Raises:
            decode.DamagedImage: the pixels of an encoded picture turn out to be unreadable.
        """
        if self.pixels != "fast" and isinstance(image, decode.Picture):
            image = image.full()
        for transform in self.transforms:
            image = transform(image, rng)
        return np.ascontiguousarray(decode.as_array(image))

    def output_size(self, size: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """(height, width) of every result, or None where it depends on the image.

        Args:
            size: (height, width) of the inputs if they are all alike, as in CIFAR.
        """
        for transform in self.transforms:
            size = transform.size_after(size)
        return size
