"""The forms an image takes between transforms, and the conversions between them.

A `decode.Picture` is an encoded file, of which a first crop may decode only a part. A Pillow image
is what resampling and colour work on. A uint8 [H, W, 3] array is what in-memory data sets hold and
what crops and flips handle for nothing. A transform takes any of the three and returns whichever
it ends up with, so no image is converted for the sake of uniformity.
"""

import numpy as np
from PIL import Image

from cone_jax.data.decode import Box, Picture, Size

Raster = Picture | Image.Image | np.ndarray

RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def as_pil(image: Raster) -> Image.Image:
    if isinstance(image, np.ndarray):
        return Image.fromarray(image)
    return image.full() if isinstance(image, Picture) else image


def as_array(image: Raster) -> np.ndarray:
    return image if isinstance(image, np.ndarray) else np.asarray(as_pil(image))


def size_of(image: Raster) -> Size:
    """Width and height."""
    if isinstance(image, np.ndarray):
        return image.shape[1], image.shape[0]
    return image.size


def resized_region(image: Raster, box: Box, size: Size, resampling: str) -> Image.Image:
    """The region `box` resized to `size`, antialiased, in one pass."""
    if isinstance(image, Picture):
        return image.region(box, size, RESAMPLING[resampling])
    return as_pil(image).resize(size, RESAMPLING[resampling], box)


def window(image: Raster, left: int, top: int, size: Size) -> Image.Image | np.ndarray:
    """The pixels of a window that may reach beyond the image, black where it does."""
    width, height = size
    if not isinstance(image, np.ndarray):
        return as_pil(image).crop((left, top, left + width, top + height))
    x0, x1 = max(left, 0), min(left + width, image.shape[1])
    y0, y1 = max(top, 0), min(top + height, image.shape[0])
    inside = image[y0:y1, x0:x1]
    if inside.shape[:2] == (height, width):
        return inside
    padded = np.zeros((height, width, 3), np.uint8)
    padded[y0 - top : y1 - top, x0 - left : x1 - left] = inside
    return padded
