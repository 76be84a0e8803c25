"""Changes of pixel values: colour jitter, grey, blur."""

import dataclasses

import numpy as np
from PIL import Image, ImageFilter

from cone_jax import spec_strings
from cone_jax.data import decode
from cone_jax.data.decode import Raster
from cone_jax.data.transforms import pixel_ops
from cone_jax.data.transforms.transform import Transform


@dataclasses.dataclass(frozen=True)
class ColourJitter(Transform):
    """With probability p, the four adjustments in random order.

    Brightness, contrast and saturation x: a blend factor U(max(0, 1 - x), 1 + x), see `pixel_ops`.
    Hue x: a turn of the colour circle by U(-x, x). An adjustment of 0 is left out.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        spec_strings.number("brightness", self.brightness, 0)
        spec_strings.number("contrast", self.contrast, 0)
        spec_strings.number("saturation", self.saturation, 0)
        spec_strings.number("hue", self.hue, 0, 0.5)
        spec_strings.number("p", self.p, 0, 1)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        if rng.random() >= self.p:
            return image
        image = decode.as_pil(image)
        blends = (
            (pixel_ops.brightness, self.brightness),
            (pixel_ops.contrast, self.contrast),
            (pixel_ops.color, self.saturation),
        )
        for index in rng.permutation(4):
            if index == 3:
                image = turn_hue(image, rng.uniform(-self.hue, self.hue))
            else:
                blend, strength = blends[index]
                if strength:
                    image = blend(image, rng.uniform(max(0.0, 1 - strength), 1 + strength))
        return image


def turn_hue(image: Image.Image, turn: float) -> Image.Image:
    """Turns the hue by a fraction of the circle, in Pillow's 256 steps of HSV."""
    steps = int(turn * 255)  # as torchvision: 255, and towards zero
    if steps == 0:
        return image
    hsv = np.array(image.convert("HSV"))
    hsv[..., 0] += np.uint8(steps % 256)  # wraps around, as the circle does
    return Image.frombuffer("HSV", image.size, hsv, "raw", "HSV", 0, 1).convert("RGB")


@dataclasses.dataclass(frozen=True)
class Grey(Transform):
    """With probability p, three equal channels of luma."""

    p: float = 0.2

    def __post_init__(self) -> None:
        spec_strings.number("p", self.p, 0, 1)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        if rng.random() >= self.p:
            return image
        return decode.as_pil(image).convert("L").convert("RGB")


@dataclasses.dataclass(frozen=True)
class Blur(Transform):
    """With probability p, a Gaussian blur of standard deviation U(sigma) pixels.

    Pillow's, which repeats box filters and does not truncate. A kernel of 10 % of the side, as some
    recipes have it, reaches 4 sigma or more from 176 pixels up and makes no visible difference.
    """

    p: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        spec_strings.number("p", self.p, 0, 1)
        spec_strings.interval("sigma", self.sigma, 0)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        if rng.random() >= self.p:
            return image
        return decode.as_pil(image).filter(ImageFilter.GaussianBlur(rng.uniform(*self.sigma)))
