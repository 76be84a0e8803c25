"""Learnt and random augmentation policies: AutoAugment and RandAugment."""

import csv
import dataclasses
import functools
import pathlib
from typing import NamedTuple

import numpy as np

from cone_jax import spec_strings
from cone_jax.data import decode
from cone_jax.data.decode import Raster
from cone_jax.data.transforms import magnitudes
from cone_jax.data.transforms.occlusion import erase_square
from cone_jax.data.transforms.pixel_ops import PIXEL_OPS
from cone_jax.data.transforms.transform import Transform

_POLICY_FILE = pathlib.Path(__file__).with_name("auto_augment_policies.csv")
_POLICIES = ("imagenet", "cifar10", "v0")
_V0_TRANSLATE_PIXELS = 250


class Step(NamedTuple):
    """Half of a sub-policy: the operation, how often it is applied, and how strongly."""

    op: str
    probability: float
    magnitude: int


@functools.cache
def policy_table(name: str) -> tuple[tuple[Step, Step], ...]:
    """The 25 sub-policies of `imagenet`, `cifar10` or `v0`."""

    def step(row: dict[str, str], half: str) -> Step:
        # Operations without a magnitude have an empty field.
        return Step(row["op" + half], float(row["p" + half]), int(row["mag" + half] or 0))

    with _POLICY_FILE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] == name]
    return tuple((step(row, "1"), step(row, "2")) for row in rows)


@dataclasses.dataclass(frozen=True)
class AutoAugment(Transform):
    """One of 25 sub-policies of two operations, uniformly; each operation with its probability.

    `imagenet` and `cifar10` are the paper's policies with torchvision's ten magnitude bins. `v0` is
    the policy of the TPU code, in levels, with its quirks: TranslateY at level 9 moves 225 pixels,
    out of a 224-pixel image, and Posterize at level 2 keeps no bit.
    """

    policy: str = "imagenet"
    fill: int | tuple[int, int, int] = 128

    def __post_init__(self) -> None:
        spec_strings.choice("policy", self.policy, _POLICIES)
        spec_strings.colour("fill", self.fill)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        table = policy_table(self.policy)
        fill = spec_strings.colour("fill", self.fill)
        for op, probability, magnitude in table[int(rng.random() * len(table))]:
            if rng.random() >= probability:
                continue
            image = decode.as_pil(image)
            if self.policy == "v0":
                argument = magnitudes.from_level(
                    op, magnitude, image.size, rng, translate_pixels=_V0_TRANSLATE_PIXELS
                )
            else:
                argument = magnitudes.from_bin(op, magnitude, 10, image.size, rng)
            image = PIXEL_OPS[op](image, argument, fill)
        return image


_TORCHVISION_OPS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness"),
    *("Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
_LEVEL_OPS = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd"),
    *("Color", "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY"),
)
_FORMS = {
    "torchvision": _TORCHVISION_OPS,
    "timm": (*_LEVEL_OPS, "TranslateXRel", "TranslateYRel"),
    "tf": (*_LEVEL_OPS, "TranslateX", "TranslateY", "Cutout", "Identity"),
}
_TF_TRANSLATE_PIXELS = 100
_TF_CUTOUT_HALF_SIDE = 40


@dataclasses.dataclass(frozen=True)
class RandAugment(Transform):
    """`n` operations chosen uniformly with replacement, at magnitude `m`.

    Three public forms:

    * `torchvision`: 14 operations, always applied; `m` is an index into `bins`.
    * `timm` (also PaCo's and InfoMin's): 15 operations, each applied with probability 1/2; level
      N(m, std) clipped to 0..10. `increasing` makes a higher level always a stronger change.
    * `tf`: those 15 with translation by up to 100 pixels, Cutout of up to 80 pixels a side, and
      the identity; always applied, at level `m`.
    """

    n: int = 2
    m: float = 9
    form: str = "torchvision"
    bins: int = 31
    std: float = 0.5
    increasing: bool = False
    fill: int | tuple[int, int, int] = 128

    def __post_init__(self) -> None:
        spec_strings.choice("form", self.form, _FORMS)
        spec_strings.integer("n", self.n, low=0)
        spec_strings.integer("bins", self.bins, low=2)
        if self.form == "torchvision":
            spec_strings.integer("m", self.m, low=0)
            spec_strings.number("m", self.m, 0, self.bins - 1)
        else:
            spec_strings.number("m", self.m, 0)
        spec_strings.number("std", self.std, 0)
        if self.increasing not in (True, False) or (self.increasing and self.form != "timm"):
            raise ValueError("increasing must be True or False, and True only with form='timm'")
        spec_strings.colour("fill", self.fill)

    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        ops = _FORMS[self.form]
        for _ in range(self.n):
            op = ops[int(rng.random() * len(ops))]
            if self.form != "timm" or rng.random() < 0.5:
                image = self._apply(op, image, rng)
        return image

    def _apply(self, op: str, image: Raster, rng: np.random.Generator) -> Raster:
        fill = spec_strings.colour("fill", self.fill)
        if op == "Cutout":
            half_side = int(_TF_CUTOUT_HALF_SIDE * self._level(rng) / magnitudes.MAX_LEVEL)
            return erase_square(image, half_side, fill, rng)
        image = decode.as_pil(image)
        if self.form == "torchvision":
            argument = magnitudes.from_bin(op, int(self.m), self.bins, image.size, rng)
        else:
            argument = magnitudes.from_level(
                op,
                self._level(rng),
                image.size,
                rng,
                translate_pixels=_TF_TRANSLATE_PIXELS,
                increasing=self.increasing,
            )
        return PIXEL_OPS[op](image, argument, fill)

    def _level(self, rng: np.random.Generator) -> float:
        level = rng.normal(self.m, self.std) if self.form == "timm" else self.m
        return min(max(level, 0.0), magnitudes.MAX_LEVEL)
