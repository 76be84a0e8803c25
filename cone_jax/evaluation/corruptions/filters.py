"""What several corruptions are made of: blurs, enlargement, random textures."""

import math

import numpy as np
from scipy import ndimage


def gaussian(image: np.ndarray, sigma: float) -> np.ndarray:
    """A Gaussian blur of rows and columns; the border goes on as it is."""
    return ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest")


def motion(image: np.ndarray, radius: int, sigma: float, angle: float) -> np.ndarray:
    """A blur to one side along `angle`, in degrees: half of a Gaussian of 2 radius + 1 pixels.

    Beyond the border the picture goes on as at its edge. [H, W] or [H, W, C].
    """
    places = np.arange(2 * radius + 1)
    weights = np.exp(-(places**2) / (2.0 * sigma**2))
    weights /= weights.sum()
    turn = math.radians(angle)
    rows, columns = np.arange(image.shape[0]), np.arange(image.shape[1])
    blurred = np.zeros_like(image)
    for place, weight in zip(places.tolist(), weights.tolist(), strict=True):
        # The nearest pixel; halves go down.
        down = math.ceil(place * math.sin(turn) - 0.5)
        right = math.ceil(place * math.cos(turn) - 0.5)
        from_rows = np.clip(rows + down, 0, len(rows) - 1)
        from_columns = np.clip(columns + right, 0, len(columns) - 1)
        blurred += weight * image[from_rows[:, None], from_columns]
    return blurred


def enlarge_centre(image: np.ndarray, factor: float) -> np.ndarray:
    """The centre of the picture, enlarged linearly to the size of the whole. [H, W, C]."""
    lower, upper, share = _enlarged_places(image.shape[0], factor)
    share = share[:, None, None]
    image = image[lower] * (1.0 - share) + image[upper] * share
    lower, upper, share = _enlarged_places(image.shape[1], factor)
    share = share[:, None]
    return image[:, lower] * (1.0 - share) + image[:, upper] * share


def _enlarged_places(length: int, factor: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each point of an enlarged line: the points it lies between, and the upper one's share.

    The ends of the part that is enlarged fall on the ends of the enlargement, which is then cut
    to `length`.
    """
    inside = math.ceil(length / factor)
    first = (length - inside) // 2
    enlarged = max(round(inside * factor), length)
    place = (np.arange(length) + (enlarged - length) // 2) * ((inside - 1) / max(enlarged - 1, 1))
    lower = place.astype(int)
    return first + lower, first + np.minimum(lower + 1, inside - 1), place - lower


def plasma(side: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """A cloudy texture [side, side] from 0 to 1 that repeats at its borders; side a power of two.

    Diamond-square: the midpoints of a grid get the mean of four neighbours and a random part,
    then the grid is halved. The random part shrinks by the square of `decay` each time.
    """
    heights = np.zeros((side, side))
    step, scale = side, 100.0

    def displaced(total: np.ndarray) -> np.ndarray:
        return total / 4 + scale * rng.uniform(-scale, scale, total.shape)

    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        below = corners + np.roll(corners, -1, axis=0)
        heights[half::step, half::step] = displaced(below + np.roll(below, -1, axis=1))
        centres = heights[half::step, half::step]
        across = centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        heights[::step, half::step] = displaced(across)
        heights[half::step, ::step] = displaced(centres + np.roll(centres, 1, axis=1) + below)
        step, scale = half, scale / decay
    heights -= heights.min()
    return heights / max(heights.max(), np.finfo(float).tiny)


def plasma_for(shape: tuple[int, ...], decay: float, rng: np.random.Generator) -> np.ndarray:
    """A plasma that covers a picture, cut to its size: [H, W]."""
    side = 2 ** math.ceil(math.log2(max(*shape[:2], 2)))
    return plasma(side, decay, rng)[: shape[0], : shape[1]]
