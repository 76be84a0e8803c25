"""From masks over boxes to masks of whole images, and to COCO's run-length code: on the host."""

from typing import Any

import numpy as np

from cone_jax.errors import optional_module


def paste_mask(
    mask: np.ndarray, box: np.ndarray, size: tuple[int, int], *, threshold: float | None = 0.5
) -> np.ndarray:
    """A mask [M, M] of probabilities over `box`, as a picture of `size` (height, width).

    The mask gets a margin of one zero, the box grows accordingly and is cut to whole pixels;
    between the values it is interpolated, as torchvision does. With a `threshold` the result is
    boolean, without it float32.

    >>> paste_mask(np.ones((2, 2)), np.array([1.0, 0.0, 4.0, 3.0]), (3, 6)).astype(int).tolist()
    [[0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 0]]
    """
    height, width = size
    side = mask.shape[-1]
    bordered = np.pad(np.asarray(mask, np.float32), 1)
    x0, y0, x1, y1 = _expanded(np.asarray(box, np.float32), (side + 2) / side)
    rows = _interpolation(side + 2, max(y1 - y0 + 1, 1))
    columns = _interpolation(side + 2, max(x1 - x0 + 1, 1))
    top, bottom = max(y0, 0), min(y1 + 1, height)
    left, right = max(x0, 0), min(x1 + 1, width)
    picture = np.zeros(size, np.float32)
    if top < bottom and left < right:
        # Only the rows and columns inside the picture are computed.
        picture[top:bottom, left:right] = (
            rows[top - y0 : bottom - y0] @ bordered @ columns[left - x0 : right - x0].T
        )
    return picture if threshold is None else picture >= threshold


def rescale_boxes(
    boxes: np.ndarray, size: tuple[int, int], original: tuple[int, int]
) -> np.ndarray:
    """Boxes of a resized image of `size` (height, width), in pixels of the original.

    >>> rescale_boxes(np.array([[2.0, 2.0, 4.0, 4.0]]), (8, 8), (16, 4)).tolist()
    [[1.0, 4.0, 2.0, 8.0]]
    """
    vertical, horizontal = original[0] / size[0], original[1] / size[1]
    return np.asarray(boxes) * np.array([horizontal, vertical, horizontal, vertical])


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """COCO's compressed run-length code of a boolean picture, ready for JSON.

    >>> encode_mask(np.array([[False, True], [False, True]]))
    {'size': [2, 2], 'counts': '22'}
    """
    coco_mask = optional_module("pycocotools.mask", "detection")

    code = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": [int(side) for side in code["size"]], "counts": code["counts"].decode()}


def decode_mask(counts: bytes, size: tuple[int, int]) -> np.ndarray:
    """COCO's compressed run-length code -> bool [H, W].

    (pycocotools' own decoder warns with NumPy 2.)

    >>> decode_mask(b"22", (2, 2)).tolist()
    [[False, True], [False, True]]
    """
    height, width = size
    runs = run_lengths(counts, size)
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def run_lengths(counts: bytes, size: tuple[int, int]) -> list[int]:
    """The runs of COCO's compressed code; `ValueError` unless they fill a picture of `size`.

    Runs go down the columns, zeros first. Each is a number of 5-bit digits, and from the third
    on the difference to the run before the last.

    >>> run_lengths(b"22", (2, 2))
    [2, 2]
    """
    runs: list[int] = []
    value = shift = 0
    for byte in counts:
        digit = byte - 48
        if not 0 <= digit < 64 or shift > 30:
            raise ValueError("the runs of a mask are not in COCO's code")
        value |= (digit & 0x1F) << shift
        shift += 5
        if digit & 0x20:  # more digits follow
            continue
        if digit & 0x10:  # negative
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    height, width = size
    if min(runs, default=0) < 0 or sum(runs) != height * width:
        raise ValueError(f"the runs of a mask must add up to {height} x {width} pixels")
    return runs


def _expanded(box: np.ndarray, scale: float) -> tuple[int, int, int, int]:
    centre, half = (box[2:] + box[:2]) * np.float32(0.5), (box[2:] - box[:2]) * np.float32(0.5)
    half = half * np.float32(scale)
    # Towards zero, as a cast to integers does.
    x0, y0, x1, y1 = (int(value) for value in (*(centre - half), *(centre + half)))
    return x0, y0, x1, y1


def _interpolation(cells: int, length: int) -> np.ndarray:
    """[length, cells]: `cells` values interpolated linearly at the centres of `length` pixels."""
    position = (np.arange(length, dtype=np.float32) + np.float32(0.5)) * np.float32(cells / length)
    position = np.maximum(position - np.float32(0.5), 0)
    low = np.minimum(position.astype(int), cells - 1)
    share = position - low
    weights = np.zeros((length, cells), np.float32)
    pixel = np.arange(length)
    weights[pixel, low] += 1 - share
    weights[pixel, np.minimum(low + 1, cells - 1)] += share
    return weights
