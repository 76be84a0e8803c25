"""The operations AutoAugment and RandAugment choose from, by the names their papers use.

Pillow's pixels throughout. Each function takes an RGB image, one argument (ignored by operations
that have none) and the colour that fills what a geometric operation uncovers.

* ShearX/Y keep the top-left corner in place; TranslateX/Y take pixels; Rotate takes degrees about
  the centre. All three sample bilinearly.
* Brightness, Color, Contrast and Sharpness blend the image with black, its grey version, the
  constant mean of its grey version, and a 3x3 smoothing that leaves the border alone.
  Factor 1 is the image itself, 0 the other.
* Posterize keeps that many high bits. Solarize inverts values at or above the threshold;
  SolarizeAdd adds to values below 128.
"""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

Colour = tuple[int, int, int]
PixelOp = Callable[[Image.Image, float, Colour], Image.Image]


def _look_up(image: Image.Image, table: Sequence[int]) -> Image.Image:
    return image.point(list(table) * 3)


def _affine(image: Image.Image, matrix: tuple[float, ...], fill: Colour) -> Image.Image:
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill
    )


def shear_x(image: Image.Image, shear: float, fill: Colour) -> Image.Image:
    return _affine(image, (1, shear, 0, 0, 1, 0), fill)


def shear_y(image: Image.Image, shear: float, fill: Colour) -> Image.Image:
    return _affine(image, (1, 0, 0, shear, 1, 0), fill)


def translate_x(image: Image.Image, pixels: float, fill: Colour) -> Image.Image:
    return _affine(image, (1, 0, pixels, 0, 1, 0), fill)


def translate_y(image: Image.Image, pixels: float, fill: Colour) -> Image.Image:
    return _affine(image, (1, 0, 0, 0, 1, pixels), fill)


def rotate(image: Image.Image, degrees: float, fill: Colour) -> Image.Image:
    return image.rotate(degrees, Image.Resampling.BILINEAR, fillcolor=fill)


def brightness(image: Image.Image, factor: float, fill: Colour = (0, 0, 0)) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


def color(image: Image.Image, factor: float, fill: Colour = (0, 0, 0)) -> Image.Image:
    return ImageEnhance.Color(image).enhance(factor)


def contrast(image: Image.Image, factor: float, fill: Colour = (0, 0, 0)) -> Image.Image:
    # ImageEnhance.Contrast to the pixel, but it takes the mean of a small image in Python.
    mean = int(np.asarray(image.convert("L")).mean() + 0.5)
    return Image.blend(Image.new("RGB", image.size, (mean, mean, mean)), image, factor)


def sharpness(image: Image.Image, factor: float, fill: Colour = (0, 0, 0)) -> Image.Image:
    return ImageEnhance.Sharpness(image).enhance(factor)


def posterize(image: Image.Image, bits: float, fill: Colour = (0, 0, 0)) -> Image.Image:
    mask = 0xFF & ~(0xFF >> int(bits))
    return _look_up(image, [value & mask for value in range(256)])


def solarize(image: Image.Image, threshold: float, fill: Colour = (0, 0, 0)) -> Image.Image:
    return _look_up(image, [v if v < threshold else 255 - v for v in range(256)])


def solarize_add(image: Image.Image, addend: float, fill: Colour = (0, 0, 0)) -> Image.Image:
    return _look_up(image, [min(v + int(addend), 255) if v < 128 else v for v in range(256)])


def auto_contrast(image: Image.Image, _: float = 0, fill: Colour = (0, 0, 0)) -> Image.Image:
    return ImageOps.autocontrast(image)


def equalize(image: Image.Image, _: float = 0, fill: Colour = (0, 0, 0)) -> Image.Image:
    return ImageOps.equalize(image)


def invert(image: Image.Image, _: float = 0, fill: Colour = (0, 0, 0)) -> Image.Image:
    return ImageOps.invert(image)


def identity(image: Image.Image, _: float = 0, fill: Colour = (0, 0, 0)) -> Image.Image:
    return image


PIXEL_OPS: dict[str, PixelOp] = {
    "Identity": identity,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "TranslateXRel": translate_x,
    "TranslateYRel": translate_y,
    "Rotate": rotate,
    "Brightness": brightness,
    "Color": color,
    "Contrast": contrast,
    "Sharpness": sharpness,
    "Posterize": posterize,
    "Solarize": solarize,
    "SolarizeAdd": solarize_add,
    "AutoContrast": auto_contrast,
    "Equalize": equalize,
    "Invert": invert,
}
