"""Geometry on pictures, boxes and masks together, on the host, and the padded batch at the end.

A mask is cropped to its object once (`crop_mask`), so scaling a picture changes numbers only: the
frames of the masks. Flips mirror the crop.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from cone_jax import spec_strings
from cone_jax.errors import UserError

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


def stack(
    examples: Sequence[Example], shape: tuple[int, int], *, objects: int = 100
) -> dict[str, np.ndarray]:
    """``image`` uint8 [B, H, W, 3], ``size`` int32 [B, 2], and the ground truth, all padded.

    The ground truth has the names of `cone_jax.detection.GroundTruth`. Of more than `objects` the
    largest are kept.
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
    return {"image": images, "size": sizes, **truth}


def _mirrored(boxes: np.ndarray, width: int) -> np.ndarray:
    return np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], axis=1)


@dataclasses.dataclass(frozen=True)
class ShortSide:
    """Scales the short side to `low` to `high` pixels in steps of `step`, drawn evenly.

    The long side has at most `longest` pixels. Without `high` nothing is drawn.
    """

    low: int
    high: int | None = None
    step: int = 32
    longest: int = 1333

    def __post_init__(self) -> None:
        for name in ("low", "step", "longest"):
            spec_strings.integer(name, getattr(self, name), 1)
        if self.high is not None:
            spec_strings.integer("high", self.high, self.low)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        choices = range(self.low, (self.high or self.low) + 1, self.step)
        return resize(example, short=int(rng.choice(choices)), long=self.longest)


@dataclasses.dataclass(frozen=True)
class Flip:
    """Mirrors left and right with `probability`."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        spec_strings.number("probability", self.probability, 0.0, 1.0)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        return flip(example) if rng.random() < self.probability else example


@dataclasses.dataclass(frozen=True)
class Pad:
    """The shape that pictures are padded to, and the places for objects; comes last.

    With `height` less than `width` upright pictures are padded to width x height instead: two
    shapes, hence two compiled programs, and no batch mixes them. With equal sides there is one.
    """

    height: int
    width: int
    objects: int = 100
    mask_side: int = MASK_SIDE

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            value = getattr(self, name)
            spec_strings.integer(name, value, 32)
            if value % 32:
                raise ValueError(f"{name} must be a multiple of 32, not {value}")
        if self.height > self.width:
            raise ValueError(f"height ({self.height}) must be at most width ({self.width})")
        spec_strings.integer("objects", self.objects, 1)
        spec_strings.integer("mask_side", self.mask_side, 4)

    @property
    def one_shape(self) -> bool:
        return self.height == self.width

    def shape(self, upright: bool) -> tuple[int, int]:
        return (self.width, self.height) if upright else (self.height, self.width)


OPERATIONS: dict[str, Any] = {"short_side": ShortSide, "flip": Flip, "pad": Pad}


@dataclasses.dataclass(frozen=True)
class ObjectPipeline:
    """What happens to a picture with its objects before it is part of a batch."""

    operations: tuple[ShortSide | Flip, ...]
    pad: Pad
    field: str = "transform"

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        for operation in self.operations:
            example = operation(example, rng)
        return example

    def blank(self) -> dict[str, np.ndarray]:
        """A batch of one black landscape picture: names, shapes and types of every batch."""
        none = np.zeros((0, 4), np.float32)
        masks = np.zeros((0, self.pad.mask_side, self.pad.mask_side), np.uint8)
        black = np.zeros((1, 1, 3), np.uint8)
        example = Example(black, none, np.zeros(0, np.int32), np.zeros(0, bool), masks, none)
        return self.stack([example], upright=False)

    def stack(self, examples: Sequence[Example], *, upright: bool) -> dict[str, np.ndarray]:
        """A batch of pictures, all landscape or all portrait unless both have one shape."""
        heights, widths = zip(*(example.size for example in examples), strict=True)
        shape = self.pad.shape(upright)
        if max(heights) > shape[0] or max(widths) > shape[1]:
            raise UserError(
                f"{self.field}: a picture of {max(heights)} x {max(widths)} does not fit into "
                f"pad{shape}; raise it, or lower short_side"
            )
        return stack(examples, shape, objects=self.pad.objects)


def parse(specs: Sequence[str], field: str) -> ObjectPipeline:
    """The pipeline that a config's list describes.

    >>> pipeline = parse(("short_side(640, 800)", "flip", "pad(800, 1344)"), "transform")
    >>> pipeline.pad.shape(upright=True)
    (1344, 800)
    """
    if isinstance(specs, str):
        raise UserError(f"{field} must be a list of strings, not the one string {specs!r}")
    operations = [
        spec_strings.build(
            spec,
            OPERATIONS,
            where=f"{field} {spec!r}",
            noun="operation on pictures with objects",
            example="short_side(640, 800, longest=1333)",
        )
        for spec in specs
    ]
    if not operations or not isinstance(operations[-1], Pad):
        raise UserError(f"{field} ({tuple(specs)}) must end with pad, such as 'pad(800, 1344)'")
    if any(isinstance(operation, Pad) for operation in operations[:-1]):
        raise UserError(f"{field} ({tuple(specs)}) must have one pad, the last")
    return ObjectPipeline(tuple(operations[:-1]), operations[-1], field)
