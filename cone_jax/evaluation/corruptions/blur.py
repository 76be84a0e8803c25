"""Blurs: lenses out of focus, rippled glass, motion."""

import functools

import numpy as np
from scipy import ndimage

from cone_jax.evaluation.corruptions import filters

# Half of the side of the benchmark's frame for a disc, unless the disc is larger.
FRAME = 8


def defocus_blur(
    image: np.ndarray, lens: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
    """A disc of (radius, softness of its edge) for every point."""
    from scipy.signal import fftconvolve  # takes half a second to import

    kernel = _disc(*lens)
    reach = kernel.shape[0] // 2
    framed = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    return fftconvolve(framed, kernel[..., None], mode="valid", axes=(0, 1))


@functools.lru_cache(maxsize=32)
def _disc(radius: float, softness: float) -> np.ndarray:
    """The disc as a kernel, softened by a small Gaussian, without the empty frame.

    The benchmark softens it in a frame that is mirrored at its border. Discs of radius 8 and 10
    touch the border, so their kernels sum to 1.013 and 1.011: such pictures are a little brighter.
    """
    frame = max(int(np.ceil(radius)), FRAME)
    line = np.arange(-frame, frame + 1)
    disc = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    # The Gaussian has three taps, for a large disc five.
    taps = np.arange(-1, 2) if radius <= FRAME else np.arange(-2, 3)
    weights = np.exp(-(taps**2) / (2 * softness**2))
    weights /= weights.sum()
    kernel = disc / disc.sum()
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, weights, axis=axis, mode="mirror")
    empty = max(frame - int(np.ceil(radius)) - len(taps) // 2, 0)
    kernel = kernel[empty : 2 * frame + 1 - empty, empty : 2 * frame + 1 - empty]
    kernel.flags.writeable = False
    return kernel


def glass_blur(
    image: np.ndarray, glass: tuple[float, int, int], rng: np.random.Generator
) -> np.ndarray:
    """Pixels from nearby places, between two blurs: (sigma of the blurs, reach, times).

    One after the other, from the last to the first, each pixel inside the border becomes what
    is then at a random place at most `reach` away. (The benchmark means to exchange the two, and
    its pictures come from this.)
    """
    sigma, reach, times = glass
    image = np.floor(filters.gaussian(image, sigma) * 255.0) / 255.0
    for _ in range(times):
        image = _scatter(image, reach, rng)
    return filters.gaussian(image, sigma)


def _scatter(image: np.ndarray, reach: int, rng: np.random.Generator) -> np.ndarray:
    height, width = image.shape[:2]
    rows = np.arange(reach + 1, height - reach + 1)
    columns = np.arange(reach + 1, width - reach + 1)
    if not (len(rows) and len(columns)):
        return image
    offsets = rng.integers(-reach, reach, size=(2, len(rows), len(columns)))
    own = rows[:, None] * width + columns
    source = (rows[:, None] + offsets[0]) * width + columns + offsets[1]
    # Nodes 0..n-1 are pixels as they end, n..2n-1 as they began. A pixel whose source comes
    # before it in the order of work (a larger index) takes what that one has ended as.
    count = height * width
    earlier = (source > own) & _inside(source, width, rows, columns)
    points_to = np.concatenate([np.arange(count), np.arange(count)]) + count
    points_to[own] = np.where(earlier, source, source + count)
    while True:
        further = points_to[points_to]
        if np.array_equal(further, points_to):
            return image.reshape(count, -1)[points_to[:count] - count].reshape(image.shape)
        points_to = further


def _inside(index: np.ndarray, width: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Whether a pixel is among those that move."""
    row, column = index // width, index % width
    in_rows = (row >= rows[0]) & (row <= rows[-1])
    return in_rows & (column >= columns[0]) & (column <= columns[-1])


def motion_blur(
    image: np.ndarray, shake: tuple[int, float], rng: np.random.Generator
) -> np.ndarray:
    """A movement of (radius, sigma) in a random direction up to 45 degrees off the horizontal."""
    return filters.motion(image, *shake, angle=rng.uniform(-45, 45))


def zoom_blur(image: np.ndarray, zoom: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """The mean of the picture and its enlargements by 1 up to (what, in which steps)."""
    end, step = zoom
    # Rounding decides whether `end` itself is in it, here as in the definition.
    factors = np.arange(1.0, end, step)
    enlarged = sum(filters.enlarge_centre(image, float(factor)) for factor in factors)
    return (image + enlarged) / (len(factors) + 1)
