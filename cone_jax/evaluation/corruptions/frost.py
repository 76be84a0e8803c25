"""Frost: the benchmark's photographs of it where the user has them, else a generated texture.

The benchmark lays a random cut of one of five photographs over the picture. They are not ours to
ship. The package ``imagecorruptions`` carries them, and so may a folder of the user's. Without them
ice is a texture whose colours, and whose contrast in each octave, are those measured of the five.
"""

import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from cone_jax import storage
from cone_jax.errors import UserError
from cone_jax.evaluation.corruptions import filters

# A field's words for the texture, and for photographs where the package is installed.
GENERATED, INSTALLED = "generated", "auto"
PACKAGE = "imagecorruptions"
SUFFIXES = (".png", ".jpg", ".jpeg")

# The benchmark ships six photographs and draws among the first five.
PHOTOGRAPHS = 5
# For pictures of 32 pixels it shrinks them to a fifth, which takes each fifth pixel.
SHRUNK, FIRST = 5, 2


class Ice(NamedTuple):
    """What was measured on one photograph, in cuts of 224 pixels."""

    colour: tuple[float, float, float]  # mean of red, green and blue
    # Deviation of the brightness by octave: 1 to 2 cycles per cut, 2 to 4, up to 64 and more.
    octaves: tuple[float, ...]
    sign: int = 1  # -1: dark gaps in bright ice


ICE = (
    Ice((0.312, 0.586, 0.648), (0.040, 0.023, 0.017, 0.014, 0.016, 0.024, 0.022)),
    Ice((0.776, 0.793, 0.829), (0.038, 0.025, 0.023, 0.030, 0.030, 0.031, 0.024), -1),
    Ice((0.772, 0.789, 0.825), (0.036, 0.028, 0.027, 0.032, 0.033, 0.034, 0.027), -1),
    Ice((0.568, 0.625, 0.675), (0.037, 0.022, 0.024, 0.033, 0.042, 0.053, 0.045), -1),
    Ice((0.397, 0.442, 0.488), (0.042, 0.045, 0.050, 0.051, 0.053, 0.052, 0.049)),
)


def frost(
    image: np.ndarray,
    weights: tuple[float, float],
    rng: np.random.Generator,
    photographs: tuple[np.ndarray, ...] = (),
) -> np.ndarray:
    """Ice over the picture: (share of the picture, share of the ice)."""
    picture, ice = weights
    layer = _cut(photographs, image.shape, rng) if photographs else _texture(image.shape, rng)
    return picture * image + ice * layer


def _cut(
    photographs: tuple[np.ndarray, ...], shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """A random part of a random photograph, which is enlarged where the picture is larger."""
    photograph = photographs[rng.integers(len(photographs))]
    factor = max(1.0, shape[0] / photograph.shape[0], shape[1] / photograph.shape[1])
    if factor > 1.0:
        height, width = (int(np.ceil(side * factor)) for side in photograph.shape[:2])
        enlarged = Image.fromarray(photograph).resize((width, height), Image.Resampling.BICUBIC)
        photograph = np.asarray(enlarged)
    top, left = (rng.integers(photograph.shape[axis] - shape[axis] + 1) for axis in (0, 1))
    return photograph[top : top + shape[0], left : left + shape[1]] / 255.0


def _texture(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Crystals grow along the ridges where a cloudy texture changes its sign."""
    ice = ICE[rng.integers(len(ICE))]
    coarse = filters.plasma_for(shape, 1.5, rng)
    fine = filters.plasma_for(shape, 1.1, rng)
    crystals = (0.25 + 0.75 * coarse) * (1.0 - np.abs(2.0 * fine - 1.0)) ** 2
    crystals = ice.sign * _with_octaves(crystals, np.array(ice.octaves))
    return np.clip(np.array(ice.colour) + crystals[..., None], 0.0, 1.0)


def _with_octaves(texture: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """`texture` around 0, with so much deviation in each octave from one cycle per picture on.

    A picture too small for the last octaves has their share in the others.
    """
    rows, columns = (np.fft.fftfreq(count) for count in texture.shape)
    cycles = max(texture.shape) * np.hypot(rows[:, None], columns)
    octaves = np.log2(np.maximum(cycles, 1.0)).astype(int).clip(max=len(deviations) - 1)
    spectrum = np.fft.fft2(texture - texture.mean())
    power = np.bincount(octaves.ravel(), np.abs(spectrum.ravel()) ** 2, len(deviations))
    least = np.finfo(float).tiny
    gains = deviations / np.sqrt(np.maximum(power, least))
    shaped = np.fft.ifft2(spectrum * gains[octaves]).real
    return shaped * np.linalg.norm(deviations) / max(float(shaped.std()), least)


def find(field: str) -> str:
    """The folder of photographs that a field names; empty for the generated texture."""
    if field == GENERATED:
        return ""
    if field == INSTALLED:
        package = importlib.util.find_spec(PACKAGE)  # looks, and imports nothing
        places = package.submodule_search_locations if package else None
        carried = Path(places[0]) / "frost" if places else None
        return str(carried) if carried is not None and _files(carried) else ""
    folder = storage.path(field, "frost")
    if not _files(folder):
        raise UserError(
            f"frost ({field}) holds no photographs ({', '.join(SUFFIXES)}); name the folder with "
            f"frost1.png to frost5.jpg, or {GENERATED!r}"
        )
    return str(folder)


def describe(folder: str) -> str:
    """Which frost it was, for people."""
    return f"photographs of {folder}" if folder else "a generated texture"


@functools.lru_cache(maxsize=4)
def photographs(folder: str, *, shrunk: bool) -> tuple[np.ndarray, ...]:
    """The photographs of a folder, uint8 [H, W, 3]; none for an empty name."""
    if not folder:
        return ()
    found = []
    for path in _files(storage.path(folder, "frost")):
        try:
            with path.open("rb") as file, Image.open(file) as opened:
                found.append(np.asarray(opened.convert("RGB")))
        except OSError as error:
            raise UserError(f"frost ({path}) is not a picture that can be read") from error
    step = slice(FIRST, None, SHRUNK)
    return tuple(each[step, step] if shrunk else each for each in found)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    paths = (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return sorted(paths)[:PHOTOGRAPHS]
