"""Boxes and masks drawn on pictures: what a detector is shown, and what it finds."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# Distinct to most kinds of colour vision, also side by side.
_COLOURS = np.array(
    [(0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233)]
)
_MASK_SHARE = 0.45
# At least so large, in a small picture and otherwise; at most so many lines in a picture.
_SMALLEST_TEXT, _TEXT_SIZE, _LINES_OF_TEXT = 8, 12, 40


class Drawn(NamedTuple):
    """One object: its box x0 y0 x1 y1, a caption, a mask bool [H, W] or None, and its class."""

    box: np.ndarray
    caption: str
    mask: np.ndarray | None
    label: int


def draw(image: np.ndarray, objects: Sequence[Drawn]) -> np.ndarray:
    """A copy of the picture uint8 [H, W, 3] with the objects on it, the first on top.

    >>> one = Drawn(np.array([1.0, 1.0, 6.0, 6.0]), "", None, 1)
    >>> picture = draw(np.zeros((8, 8, 3), np.uint8), [one])
    >>> picture[1, 3].any(), picture[3, 3].any()
    (np.True_, np.False_)
    """
    pixels = image.astype(np.float32)
    for each in reversed(objects):
        if each.mask is not None:
            tint = _colour(each.label).astype(np.float32)
            pixels[each.mask] = (1 - _MASK_SHARE) * pixels[each.mask] + _MASK_SHARE * tint
    picture = Image.fromarray(pixels.astype(np.uint8))
    shorter = min(picture.size)
    least = _TEXT_SIZE if shorter >= 160 else _SMALLEST_TEXT
    font = ImageFont.load_default(max(least, shorter // _LINES_OF_TEXT))
    pen, wide = ImageDraw.Draw(picture), 1 + (shorter >= 200) + (shorter >= 600)
    for each in reversed(objects):
        x0, y0, x1, y1 = (float(value) for value in each.box)
        colour = tuple(_colour(each.label).tolist())
        pen.rectangle((x0, y0, max(x1 - 1, x0), max(y1 - 1, y0)), outline=colour, width=wide)
        if each.caption:
            left, _, right, bottom = font.getbbox(each.caption)
            top_of_text = y0 - bottom if y0 >= bottom else y0
            corner = (x0, top_of_text, x0 + right - left + 2, top_of_text + bottom)
            pen.rectangle(corner, fill=colour)
            pen.text((x0 + 1, top_of_text), each.caption, (255, 255, 255), font)
    return np.asarray(picture)


def draw_batch(
    batch: Mapping[str, np.ndarray], class_names: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """The pictures of a training batch with their objects, uint8 [B, H, W, 3], and captions."""
    pictures, captions = [], []
    for place, image in enumerate(batch["image"]):
        objects = []
        for index in np.flatnonzero(batch["valid"][place]):
            label = int(batch["classes"][place, index])
            crowd = " (crowd)" if batch["crowd"][place, index] else ""
            mask = _framed(
                batch["masks"][place, index], batch["mask_frames"][place, index], image.shape[:2]
            )
            name = class_names[label - 1] + crowd
            objects.append(Drawn(batch["boxes"][place, index], name, mask, label))
        pictures.append(draw(image, objects))
        captions.append(f"{batch['id'][place]}: {len(objects)} objects")
    return np.stack(pictures), captions


def _framed(crop: np.ndarray, frame: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """The mask of a whole picture: `crop` uint8 [s, s] covers `frame`."""
    rows, columns = (np.arange(side) + 0.5 for side in size)
    x0, y0, x1, y1 = (float(value) for value in frame)
    inside = np.zeros(size, bool)
    if x1 <= x0 or y1 <= y0:
        return inside
    row = np.floor((rows - y0) / (y1 - y0) * crop.shape[0]).astype(int)
    column = np.floor((columns - x0) / (x1 - x0) * crop.shape[1]).astype(int)
    in_rows = np.flatnonzero((row >= 0) & (row < crop.shape[0]))
    in_columns = np.flatnonzero((column >= 0) & (column < crop.shape[1]))
    inside[np.ix_(in_rows, in_columns)] = crop[np.ix_(row[in_rows], column[in_columns])] >= 128
    return inside


def _colour(label: int) -> np.ndarray:
    return _COLOURS[label % len(_COLOURS)]
