"""Corruptions by name, for one picture or for all of a source."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from cone_jax.data import decode
from cone_jax.data.sources import Source
from cone_jax.data.sources.source import Record
from cone_jax.data.transforms import Pipeline
from cone_jax.evaluation.corruptions import blur, digital, frost, weather
from cone_jax.evaluation.corruptions.parameters import PARAMETERS, table_for

Corruption = Callable[[np.ndarray, Any, np.random.Generator], np.ndarray]

# In the order of the benchmark, which is part of the seed of every picture.
CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": digital.gaussian_noise,
    "shot_noise": digital.shot_noise,
    "impulse_noise": digital.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": frost.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
SEVERITIES = (1, 2, 3, 4, 5)
# Of a record that cannot be read at all: it is not scored.
NO_LABEL = -1


def corrupt(
    image: np.ndarray,
    corruption: str,
    severity: int,
    rng: np.random.Generator,
    parameters: str = "auto",
    frost_folder: str = "",
) -> np.ndarray:
    """A corrupted copy of a picture.

    Args:
        image: uint8 [H, W, 3].
        corruption: one of `CORRUPTIONS`.
        severity: 1 to 5.
        rng: where the randomness comes from; some corruptions need none.
        parameters: ``imagenet``, ``cifar``, or ``auto``: the one for pictures of this size.
        frost_folder: where the benchmark's photographs of frost are; empty: a generated texture.
    """
    table = table_for(*image.shape[:2]) if parameters == "auto" else parameters
    strength = PARAMETERS[table][corruption][severity - 1]
    function: Corruption = CORRUPTIONS[corruption]
    if corruption == "frost":
        photographs = frost.photographs(frost_folder, shrunk=table == "cifar")
        function = functools.partial(frost.frost, photographs=photographs)
    corrupted = function(image / 255.0, strength, rng)
    return np.round(np.clip(corrupted, 0.0, 1.0) * 255.0).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class CorruptedSource:
    """The pictures of a source as the network would see them, corrupted.

    A picture is a function of (seed, record, corruption, severity) and of what it was.
    """

    source: Source
    transform: Pipeline  # comes first: the benchmark corrupts what is cropped already
    corruption: str
    severity: int
    seed: int = 0
    parameters: str = "auto"
    frost_folder: str = ""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.source.class_names

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Record:
        label = NO_LABEL
        kind = tuple(CORRUPTIONS).index(self.corruption)
        rng = np.random.default_rng((self.seed, index, kind, self.severity))
        try:
            image, label = self.source[index]
            pixels = self.transform(self.transform.open(image), rng)
        except decode.DamagedImage:  # black, as in an evaluation of the clean pictures
            pixels = self.transform(np.zeros((256, 256, 3), np.uint8), rng)
        strength = (self.corruption, self.severity, rng, self.parameters)
        return Record(corrupt(pixels, *strength, self.frost_folder), label)

    def describe(self, index: int) -> str:
        return f"{self.source.describe(index)}, {self.corruption} {self.severity}"
