"""Error under corruption as ImageNet-C counts it: per corruption, relative to another network's.

With E(c, s) the top-1 error under corruption c at severity s, E(c) its mean over severities and E
the error on clean pictures, all of a network, and B those of a baseline:

    CE(c) = 100 E(c) / B(c)                     mCE           = mean of CE over corruptions
    relative CE(c) = 100 (E(c) - E) / (B(c) - B)    relative mCE  = mean of relative CE

AlexNet is the benchmark's baseline. (Hendrycks and Dietterich, 2019.)
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cone_jax.errors import UserError

# Mean error over the five severities of ImageNet-C, as published.
ALEXNET_ERRORS = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
# On the clean validation set: top-1 56.55 %.
ALEXNET_CLEAN_ERROR = 0.4345

CLEAN = "clean"
ERRORS_FILE = "errors.csv"
ERRORS_HEADER = ("corruption", "severity", "error")


class CorruptionErrors(NamedTuple):
    """Top-1 errors of one network, as fractions."""

    clean: float
    corrupted: Mapping[str, tuple[float, ...]]  # one a severity

    def mean(self, corruption: str) -> float:
        return float(np.mean(self.corrupted[corruption]))

    def overall(self) -> float:
        """The mean over corruptions of the mean over severities."""
        return float(np.mean([self.mean(corruption) for corruption in self.corrupted]))

    def rows(self) -> list[tuple[str, int, float]]:
        """The rows of `ERRORS_FILE`, in which clean pictures have severity 0."""
        listed = [
            (corruption, severity, error)
            for corruption, errors in self.corrupted.items()
            for severity, error in enumerate(errors, start=1)
        ]
        return [(CLEAN, 0, self.clean), *listed]


# Its means count, not its severities.
ALEXNET = CorruptionErrors(
    ALEXNET_CLEAN_ERROR, {name: (error,) for name, error in ALEXNET_ERRORS.items()}
)


class Normalised(NamedTuple):
    """Errors in per cent of a baseline's, by corruption."""

    ce: dict[str, float]
    relative_ce: dict[str, float]  # NaN where the corruption does not hurt the baseline

    @property
    def mce(self) -> float:
        return float(np.mean(list(self.ce.values())))

    @property
    def relative_mce(self) -> float:
        return float(np.mean(list(self.relative_ce.values())))


def normalise(errors: CorruptionErrors, baseline: CorruptionErrors) -> Normalised:
    """The corruption errors of a network by those of a baseline."""
    missing = [
        corruption for corruption in errors.corrupted if corruption not in baseline.corrupted
    ]
    if missing:
        raise UserError(f"baseline: has no errors under {missing[0]}; evaluate it the same way")
    ce: dict[str, float] = {}
    relative: dict[str, float] = {}
    for corruption in errors.corrupted:
        unit, own = baseline.mean(corruption), errors.mean(corruption)
        if unit == 0:
            raise UserError(
                f"baseline: makes no error under {corruption}, so it cannot be the unit; choose "
                "another or none"
            )
        ce[corruption] = 100.0 * own / unit
        harm = unit - baseline.clean
        relative[corruption] = 100.0 * (own - errors.clean) / harm if harm > 0 else float("nan")
    return Normalised(ce, relative)


def read(path: Path) -> CorruptionErrors:
    """The errors that an evaluation wrote to `path`."""
    clean, corrupted = float("nan"), dict[str, list[float]]()
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                error = float(row["error"])
                if row["corruption"] == CLEAN:
                    clean = error
                else:
                    corrupted.setdefault(row["corruption"], []).append(error)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"baseline ({path}) cannot be read; make it with --mode=robustness"
        ) from error
    return CorruptionErrors(clean, {name: tuple(errors) for name, errors in corrupted.items()})
