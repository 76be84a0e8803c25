"""Geometry on pictures, boxes and masks together, on the host, and the padded batch at the end.

A mask is cropped to its object once (`crop_mask`), so scaling a picture changes numbers only: the
frames of the masks. Flips mirror the crop.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from cone_jax.detection.batch import GroundTruth

MASK_SIDE = 112  # four values per value of a target of 28


@dataclasses.dataclass(frozen=True)
class Example:
    """One picture, RGB bytes [H, W, 3], and its n objects.

    `boxes` float32 [n, 4], `classes` int32 [n], `crowd` bool [n], `masks` uint8 [n, side, side],
    `frames` float32 [n, 4], the region that each mask covers.
    """

    image: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray
    crowd: np.ndarray
    masks: np.ndarray
    frames: np.ndarray

    @property
    def size(self) -> tuple[int, int]:
        return self.image.shape[0], self.image.shape[1]


def crop_mask(
    mask: np.ndarray, box: np.ndarray, side: int = MASK_SIDE
) -> tuple[np.ndarray, np.ndarray]:
    """A picture's mask [H, W] -> what is inside the box, uint8 [side, side], and its frame [4].

    The crop has a margin of one zero, since outside its box an object has no mask.

    >>> crop, frame = crop_mask(np.ones((8, 8), bool), np.array([0.0, 0.0, 4.0, 8.0]), side=4)
    >>> crop[1].tolist(), frame.tolist()
    ([0, 255, 255, 0], [-2.0, -4.0, 6.0, 12.0])
    """
    inner = side - 2
    height, width = mask.shape
    low = np.clip(box[:2], 0, [width - 1e-3, height - 1e-3])
    high = np.clip(box[2:], low + 1e-3, [width, height])
    region = (float(low[0]), float(low[1]), float(high[0]), float(high[1]))
    picture = Image.fromarray(np.where(mask, np.uint8(255), np.uint8(0)))
    resized = picture.resize((inner, inner), Image.Resampling.BILINEAR, box=region)
    cell = (high - low) / inner
    return np.pad(np.asarray(resized), 1), np.concatenate([low - cell, high + cell])


def resized_size(size: tuple[int, int], *, short: int, long: int) -> tuple[int, int]:
    """Height and width after scaling the short side to `short`, the long one to `long` at most.

    >>> resized_size((480, 640), short=800, long=1333)
    (800, 1067)
    >>> resized_size((300, 1000), short=800, long=1333)
    (400, 1333)
    """
    scale = min(short / min(size), long / max(size))
    return max(int(size[0] * scale + 0.5), 1), max(int(size[1] * scale + 0.5), 1)


def resize(example: Example, *, short: int, long: int) -> Example:
    """Scales the picture (bilinear, antialiased) and everything on it."""
    height, width = resized_size(example.size, short=short, long=long)
    picture = Image.fromarray(example.image).resize((width, height), Image.Resampling.BILINEAR)
    vertical, horizontal = height / example.size[0], width / example.size[1]
    factor = np.array([horizontal, vertical, horizontal, vertical], np.float32)
    return dataclasses.replace(
        example,
        image=np.asarray(picture),
        boxes=example.boxes * factor,
        frames=example.frames * factor,
    )


def flip(example: Example) -> Example:
    """Mirrors left and right."""
    width = example.size[1]
    return dataclasses.replace(
        example,
        image=example.image[:, ::-1],
        boxes=_mirrored(example.boxes, width),
        frames=_mirrored(example.frames, width),
        masks=example.masks[:, :, ::-1],
    )


def padded_shape(size: tuple[int, int], *, short: int, long: int) -> tuple[int, int]:
    """The one of two shapes, landscape or portrait, that a resized picture is padded to.

    >>> padded_shape((800, 1067), short=800, long=1333)
    (800, 1344)
    >>> padded_shape((1067, 800), short=800, long=1333)
    (1344, 800)
    """
    low, high = -(-short // 32) * 32, -(-long // 32) * 32
    return (low, high) if size[0] <= size[1] else (high, low)


def stack(
    examples: Sequence[Example], shape: tuple[int, int], *, objects: int = 100
) -> tuple[np.ndarray, np.ndarray, GroundTruth]:
    """Images uint8 [B, H, W, 3], sizes int32 [B, 2] and ground truth, all padded.

    Of more than `objects` the largest are kept.
    """
    number = len(examples)
    side = examples[0].masks.shape[-1]
    images = np.zeros((number, *shape, 3), np.uint8)
    sizes = np.array([example.size for example in examples], np.int32)
    truth: dict[str, Any] = {
        "boxes": np.zeros((number, objects, 4), np.float32),
        "classes": np.zeros((number, objects), np.int32),
        "valid": np.zeros((number, objects), bool),
        "crowd": np.zeros((number, objects), bool),
        "masks": np.zeros((number, objects, side, side), np.uint8),
        "mask_frames": np.zeros((number, objects, 4), np.float32),
    }
    for place, example in enumerate(examples):
        height, width = example.size
        if height > shape[0] or width > shape[1]:
            raise ValueError(f"a picture of {height} x {width} does not fit into {shape}")
        images[place, :height, :width] = example.image
        area = np.prod(example.boxes[:, 2:] - example.boxes[:, :2], axis=1)
        kept = np.sort(np.argsort(-area, kind="stable")[:objects])
        rows = slice(0, len(kept))
        truth["valid"][place, rows] = True
        truth["mask_frames"][place, rows] = example.frames[kept]
        for name in ("boxes", "classes", "crowd", "masks"):
            truth[name][place, rows] = getattr(example, name)[kept]
    return images, sizes, GroundTruth(**truth)


def _mirrored(boxes: np.ndarray, width: int) -> np.ndarray:
    return np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], axis=1)
