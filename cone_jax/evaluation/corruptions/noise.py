"""Noise. Pictures are float [H, W, 3] in [0, 1], as in all modules of this package."""

import numpy as np


def gaussian_noise(image: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """Independent normal noise in every channel of every pixel."""
    return image + rng.normal(scale=deviation, size=image.shape)


def shot_noise(image: np.ndarray, photons: float, rng: np.random.Generator) -> np.ndarray:
    """Full brightness is so many photons on average, and they are counted."""
    return rng.poisson(image * photons) / photons


def impulse_noise(image: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A share of the values is replaced, half of them by black and half by white."""
    replaced = rng.random(image.shape) < share
    white = rng.random(image.shape) < 0.5
    return np.where(replaced, white.astype(image.dtype), image)
