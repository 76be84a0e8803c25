"""From a magnitude to the argument of an operation, in the two public parametrisations.

*Bins* (torchvision): index i of n stands for the fraction i / (n - 1) of the range. *Levels* (the
TPU code and timm): a real number from 0 to 10. They disagree about more than scale, for instance in
which direction Posterize and Solarize grow stronger, so each has a table of its own.
A random sign goes to every geometric operation, and to a blend factor that is written 1 +- v.
"""

import numpy as np

MAX_LEVEL = 10

_GEOMETRIC_RANGE = {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0}
_BLENDS = {"Brightness", "Color", "Contrast", "Sharpness"}
_WITHOUT_MAGNITUDE = {"Identity", "AutoContrast", "Equalize", "Invert"}


def from_bin(
    op: str, index: int, bins: int, size: tuple[int, int], rng: np.random.Generator
) -> float:
    """The argument at `index` of `bins`, for an image of `size` (width, height).

    Blend factors are 1 +- 0.9 * fraction, translations 150/331 of the side at the most.

    >>> rng = np.random.default_rng(0)
    >>> [from_bin("Posterize", index, 10, (32, 32), rng) for index in range(10)]
    [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    """
    fraction = index / (bins - 1)
    if op in _WITHOUT_MAGNITUDE:
        return 0
    if op == "Posterize":
        return 8 - round(4 * fraction)
    if op == "Solarize":
        return 255 * (1 - fraction)
    signed_fraction = _random_sign(rng) * fraction
    if op in _BLENDS:
        return 1 + 0.9 * signed_fraction
    if op in _GEOMETRIC_RANGE:
        return _GEOMETRIC_RANGE[op] * signed_fraction
    side = size["XY".index(op.removeprefix("Translate"))]
    return int(150 / 331 * side * signed_fraction)


def from_level(
    op: str,
    level: float,
    size: tuple[int, int],
    rng: np.random.Generator,
    *,
    translate_pixels: float = 0.0,
    increasing: bool = False,
) -> float:
    """The argument at `level` (0 to 10), for an image of `size` (width, height).

    Args:
        translate_pixels: what TranslateX/Y move at level 10; the relative forms, 45 % of the side.
        increasing: timm's variant in which a higher level is always a stronger change: blend
            factors 1 +- 0.9 * level/10, fewer bits, a lower solarize threshold.
    """
    fraction = level / MAX_LEVEL
    if op in _WITHOUT_MAGNITUDE:
        return 0
    if op in _BLENDS:
        if increasing:
            return 1 + 0.9 * _random_sign(rng) * fraction
        return 0.1 + 1.8 * fraction
    if op == "Posterize":
        return 4 - int(4 * fraction) if increasing else int(4 * fraction)
    if op == "Solarize":
        return 256 - int(256 * fraction) if increasing else int(256 * fraction)
    if op == "SolarizeAdd":
        return int(110 * fraction)
    if op in _GEOMETRIC_RANGE:
        reach = _GEOMETRIC_RANGE[op]
    elif op in ("TranslateXRel", "TranslateYRel"):
        reach = 0.45 * size["XY".index(op[len("Translate")])]
    else:
        reach = translate_pixels
    return _random_sign(rng) * fraction * reach


def _random_sign(rng: np.random.Generator) -> int:
    return 1 if rng.random() < 0.5 else -1
