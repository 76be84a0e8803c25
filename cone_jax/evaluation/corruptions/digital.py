"""What sensors and files do to a picture: noise, contrast, distortion, pixels, JPEG.

Pictures are float [H, W, 3] in [0, 1], as in all modules of this package.
"""

import io

import numpy as np
from PIL import Image
from scipy import ndimage


def contrast(image: np.ndarray, kept: float, rng: np.random.Generator) -> np.ndarray:
    """Differences from the mean of each channel shrink."""
    mean = image.mean(axis=(0, 1), keepdims=True)
    return (image - mean) * kept + mean


def elastic_transform(
    image: np.ndarray, stretch: tuple[float, float, float], rng: np.random.Generator
) -> np.ndarray:
    """A random affine map, then a random smooth displacement of every pixel.

    (Height of the displacement before smoothing, sigma of its smoothing, how far the three
    points that define the affine map move), as fractions of the shorter side.
    """
    height, sigma, jitter = (part * min(image.shape[:2]) for part in stretch)
    image = _random_affine(image, jitter, rng)
    grid = np.indices(image.shape[:2]).astype(float)
    for axis in (0, 1):
        field = rng.uniform(-1, 1, image.shape[:2])
        grid[axis] += height * ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3)
    return _sample(image, grid, mode="reflect")


def _random_affine(image: np.ndarray, jitter: float, rng: np.random.Generator) -> np.ndarray:
    """The map that moves three corners of a square in the middle by up to `jitter` each way."""
    centre = np.array(image.shape[:2]) // 2
    reach = min(image.shape[:2]) // 3
    if reach == 0:
        return image
    corners = centre + reach * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = corners + rng.uniform(-jitter, jitter, corners.shape)
    # A pixel's source: the inverse map, from moved corners (with a 1 for the shift) to corners.
    inverse = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)
    grid = np.indices(image.shape[:2]).reshape(2, -1)
    places = np.column_stack([grid.T, np.ones(grid.shape[1])]) @ inverse
    return _sample(image, places.T.reshape(2, *image.shape[:2]), mode="mirror")


def _sample(image: np.ndarray, places: np.ndarray, mode: str) -> np.ndarray:
    """The picture at [2, H, W] places between pixels, linearly."""
    channels = [
        ndimage.map_coordinates(image[..., channel], places, order=1, mode=mode)
        for channel in range(image.shape[-1])
    ]
    return np.stack(channels, axis=-1)


def pixelate(image: np.ndarray, kept: float, rng: np.random.Generator) -> np.ndarray:
    """The picture at a fraction of its resolution, by averaging, and back."""
    height, width = image.shape[:2]
    small = (max(int(width * kept), 1), max(int(height * kept), 1))
    picture = _as_picture(image).resize(small, Image.Resampling.BOX)
    return np.asarray(picture.resize((width, height), Image.Resampling.BOX)) / 255.0


def jpeg_compression(image: np.ndarray, quality: int, rng: np.random.Generator) -> np.ndarray:
    """Through a JPEG file."""
    file = io.BytesIO()
    _as_picture(image).save(file, "JPEG", quality=quality)
    with Image.open(file) as picture:
        return np.asarray(picture) / 255.0


def _as_picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(np.round(image * 255.0).astype(np.uint8))


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
