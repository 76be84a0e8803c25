"""Occlusion: Cutout and random erasing.

Published recipes erase after normalisation; here images stay uint8 until they are on the device.
The two meet as follows. "Zero after normalisation" is the mean colour, rounded to a level: at most
0.5 / (255 * std), about 0.009, away from zero. "Normal noise after normalisation" is
`mean + std * N(0, 1)`, rounded and clipped to 0..255, which cuts the noise where no real pixel can
be either (ImageNet statistics: about -2.1 and +2.2 to +2.6).
"""

import dataclasses
import math

import numpy as np

from cone_jax import spec_strings
from cone_jax.data import decode
from cone_jax.data.decode import Raster
from cone_jax.data.transforms.transform import Transform

_FILLS = ("noise", "mean")


def erase_square(
    image: Raster, half_side: int, fill: tuple[int, int, int], rng: np.random.Generator
) -> np.ndarray:
    """A square of 2 * half_side around a uniform pixel, cut off at the border, set to `fill`."""
    array = decode.as_array(image).copy()
    height, width = array.shape[:2]
    y, x = int(rng.random() * height), int(rng.random() * width)
    array[max(y - half_side, 0) : y + half_side, max(x - half_side, 0) : x + half_side] = fill
    return array


@dataclasses.dataclass(frozen=True)
class Cutout(Transform):
    """`holes` squares of `size` pixels a side, each around a uniform pixel, set to `fill`.

    The default fill, black, is the published Cutout before normalisation. For Cutout after it, give
    the mean colour.
    """

    size: int
    holes: int = 1
    fill: int | tuple[int, int, int] = 0

    def __post_init__(self) -> None:
        spec_strings.integer("size", self.size, low=1)
        spec_strings.integer("holes", self.holes, low=1)
        spec_strings.colour("fill", self.fill)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        fill = spec_strings.colour("fill", self.fill)
        for _ in range(self.holes):
            image = erase_square(image, self.size // 2, fill, rng)
        return image


@dataclasses.dataclass(frozen=True)
class RandomErasing(Transform):
    """With probability p, one rectangle set to noise or to the mean colour.

    Up to ten tries: area U(area) of the image, log of height/width U(log ratio), sides rounded, at
    a uniform position; the first that is smaller than the image both ways is taken, if any.

    `mean` and `std` are those the images are normalised with, in units of 0..1; see the module's
    docstring for what noise and zero after normalisation become in uint8.
    """

    p: float = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)
    ratio: tuple[float, float] = (0.3, 3.33)
    fill: str = "noise"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        spec_strings.number("p", self.p, 0, 1)
        spec_strings.interval("area", self.area, 0, 1)
        spec_strings.interval("ratio", self.ratio, 1e-3)
        spec_strings.choice("fill", self.fill, _FILLS)
        spec_strings.unit_triple("mean", self.mean)
        spec_strings.unit_triple("std", self.std)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        if rng.random() >= self.p:
            return image
        width, height = decode.size_of(image)
        log_ratio = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = width * height * rng.uniform(*self.area)
            aspect = math.exp(rng.uniform(*log_ratio))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < h < height and 0 < w < width:
                top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
                array = decode.as_array(image).copy()
                array[top : top + h, left : left + w] = self._patch(h, w, rng)
                return array
        return image

    def _patch(self, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
        noise = np.zeros((height, width, 3))
        if self.fill == "noise":
            noise = rng.standard_normal((height, width, 3))
        values = 255 * (np.array(self.mean) + np.array(self.std) * noise)
        return np.clip(np.rint(values), 0, 255).astype(np.uint8)
