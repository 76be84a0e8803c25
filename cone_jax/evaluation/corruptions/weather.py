"""Snow, fog, glare; frost has a file of its own."""

import numpy as np

from cone_jax.evaluation.corruptions import filters

# Weights of red, green and blue in the brightness of a pixel (ITU-R BT.601).
_LUMA = np.array([0.299, 0.587, 0.114])


def snow(
    image: np.ndarray,
    flakes: tuple[float, float, float, float, int, float, float],
    rng: np.random.Generator,
) -> np.ndarray:
    """Flakes that fall, before a whitened picture.

    A layer of normal noise (mean, deviation), enlarged, without what is below a threshold, and
    blurred by motion (radius, sigma); the picture keeps the last number of its colours.
    """
    mean, deviation, zoom, threshold, radius, sigma, kept = flakes
    layer = rng.normal(mean, deviation, image.shape[:2])
    layer = filters.enlarge_centre(layer[..., None], zoom)[..., 0]
    layer = np.clip(np.where(layer < threshold, 0.0, layer), 0.0, 1.0)
    layer = filters.motion(layer, radius, sigma, angle=rng.uniform(-135, -45))[..., None]
    whitened = np.maximum(image, (image @ _LUMA)[..., None] * 1.5 + 0.5)
    return kept * image + (1.0 - kept) * whitened + layer + np.rot90(layer, 2)


def fog(image: np.ndarray, air: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """Clouds of (density, decay of their detail) before the picture; its white stays as it was."""
    density, decay = air
    white = image.max()
    clouds = density * filters.plasma_for(image.shape, decay, rng)[..., None]
    return (image + clouds) * white / (white + density)


def brightness(image: np.ndarray, added: float, rng: np.random.Generator) -> np.ndarray:
    """The value of hue, saturation, value is raised, up to 1."""
    value = image.max(axis=-1, keepdims=True)
    raised = np.minimum(value + added, 1.0)
    # At a given hue and saturation all channels are proportional to the value.
    return np.where(value > 0, image * (raised / np.where(value > 0, value, 1.0)), raised)
