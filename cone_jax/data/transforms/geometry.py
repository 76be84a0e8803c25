"""Changes of geometry: crops, resizes and the flip."""

import dataclasses
import math

import numpy as np
from PIL import Image

from cone_jax import spec_strings
from cone_jax.data import decode
from cone_jax.data.decode import MAX_PIXELS, Box, DamagedImage, Raster
from cone_jax.data.transforms.transform import Transform


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """A crop of random area and aspect ratio, resized to a fixed size.

    Up to ten tries: area U(scale) of the image, log aspect ratio U(log ratio), sides rounded, at a
    uniform position; the first that fits is taken. If none does, the largest centred crop within
    the ratio range. Crop and resize are one antialiased pass, so at the border of the crop the
    filter sees the image beyond it.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        spec_strings.height_and_width("size", self.size)
        spec_strings.interval("scale", self.scale, 0, 1)
        spec_strings.interval("ratio", self.ratio, 1e-3)
        spec_strings.choice("interpolation", self.interpolation, decode.RESAMPLING)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Image.Image:
        width, height = decode.size_of(image)
        box = self.sample_box(width, height, rng)
        out_height, out_width = spec_strings.height_and_width("size", self.size)
        return decode.resized_region(image, box, (out_width, out_height), self.interpolation)

    def sample_box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = width * height * _uniform(rng, *self.scale)
            aspect = math.exp(_uniform(rng, log_low, log_high))
            crop_width = round(math.sqrt(area * aspect))
            crop_height = round(math.sqrt(area / aspect))
            if 0 < crop_width <= width and 0 < crop_height <= height:
                left = int(rng.random() * (width - crop_width + 1))
                top = int(rng.random() * (height - crop_height + 1))
                return left, top, left + crop_width, top + crop_height
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        crop_width = min(width, max(1, round(height * aspect)))
        crop_height = min(height, max(1, round(width / aspect)))
        left, top = (width - crop_width) // 2, (height - crop_height) // 2
        return left, top, left + crop_width, top + crop_height

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return spec_strings.height_and_width("size", self.size)


@dataclasses.dataclass(frozen=True)
class Resize(Transform):
    """An int resizes the short side to it, keeping the aspect ratio; (height, width) is exact."""

    size: int | tuple[int, int]
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        spec_strings.height_and_width("size", self.size)
        spec_strings.choice("interpolation", self.interpolation, decode.RESAMPLING)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        width, height = decode.size_of(image)
        out_height, out_width = self.output_size(height, width)
        if (out_height, out_width) == (height, width):
            return image
        if out_height * out_width > MAX_PIXELS:
            raise DamagedImage(
                f"{width} x {height} pixels would become {out_width} x {out_height} by resizing"
            )
        box = (0, 0, width, height)
        return decode.resized_region(image, box, (out_width, out_height), self.interpolation)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if isinstance(self.size, tuple):
            return self.size
        return None if size is None else self.output_size(*size)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size
        # Integer division truncates as torchvision does: a 500 x 375 image becomes 341 x 256.
        if width <= height:
            return self.size * height // width, self.size
        return self.size, self.size * width // height


@dataclasses.dataclass(frozen=True)
class CentreCrop(Transform):
    """The central window; black around an image that is smaller than it."""

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        spec_strings.height_and_width("size", self.size)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        width, height = decode.size_of(image)
        out_height, out_width = spec_strings.height_and_width("size", self.size)
        left, top = _centred(width, out_width), _centred(height, out_height)
        return decode.window(image, left, top, (out_width, out_height))

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return spec_strings.height_and_width("size", self.size)


@dataclasses.dataclass(frozen=True)
class ResizedCentreCrop(Transform):
    """`CentreCrop` after `Resize`, computing only the pixels that the crop keeps.

    Besides the time this saves, an image 20,000 pixels wide and 2 high can be evaluated at all:
    `exact` resizes the whole image first, as torchvision and timm do, unless it becomes too large.
    """

    resize: Resize
    crop: CentreCrop
    exact: bool = False

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        width, height = decode.size_of(image)
        resized_height, resized_width = self.resize.output_size(height, width)
        out_height, out_width = spec_strings.height_and_width("size", self.crop.size)
        too_small = out_height > resized_height or out_width > resized_width
        if too_small or (self.exact and resized_height * resized_width <= MAX_PIXELS):
            return self.crop(self.resize(image, rng), rng)
        left, top = _centred(resized_width, out_width), _centred(resized_height, out_height)
        x, y = width / resized_width, height / resized_height
        # The products may exceed the image by a rounding error, which Pillow refuses.
        right = min((left + out_width) * x, width)
        bottom = min((top + out_height) * y, height)
        box = (left * x, top * y, right, bottom)
        return decode.resized_region(image, box, (out_width, out_height), self.resize.interpolation)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return self.crop.size_after(size)


def fused(transforms: tuple[Transform, ...], exact: bool = False) -> tuple[Transform, ...]:
    """The same transforms with every centre crop of a resized image as one, `exact` or quick."""
    result: list[Transform] = []
    for transform in transforms:
        before = result[-1] if result else None
        if isinstance(before, Resize) and isinstance(transform, CentreCrop):
            result[-1] = ResizedCentreCrop(before, transform, exact)
        else:
            result.append(transform)
    return tuple(result)


@dataclasses.dataclass(frozen=True)
class RandomCrop(Transform):
    """A window at a uniform position over the image with `padding` black pixels on every side.

    An image that is still too small is padded, half on each side, until the window fits.
    """

    size: int | tuple[int, int]
    padding: int = 0

    def __post_init__(self) -> None:
        spec_strings.height_and_width("size", self.size)
        spec_strings.integer("padding", self.padding, low=0)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        width, height = decode.size_of(image)
        out_height, out_width = spec_strings.height_and_width("size", self.size)
        left = self._position(width, out_width, rng)
        top = self._position(height, out_height, rng)
        return decode.window(image, left, top, (out_width, out_height))

    def _position(self, length: int, window: int, rng: np.random.Generator) -> int:
        room = length + 2 * self.padding - window
        if room < 0:
            return _centred(length, window)
        return int(rng.random() * (room + 1)) - self.padding

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return spec_strings.height_and_width("size", self.size)


@dataclasses.dataclass(frozen=True)
class Flip(Transform):
    """Left and right exchanged, with probability p."""

    p: float = 0.5

    def __post_init__(self) -> None:
        spec_strings.number("p", self.p, 0, 1)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        if rng.random() >= self.p:
            return image
        if isinstance(image, np.ndarray):
            return image[:, ::-1]
        return decode.as_pil(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _uniform(rng: np.random.Generator, low: float, high: float) -> float:
    # Four times faster than rng.uniform for one number.
    return low + (high - low) * rng.random()


def _centred(length: int, window: int) -> int:
    """Where a centred window begins; a half pixel goes to the even side, as in torchvision."""
    if window > length:
        return -((window - length) // 2)
    return round((length - window) / 2)
