"""Contact sheets: pictures in rows, a line of text below each, as one picture.

A sheet of training samples shows what the network will see, with the names of the classes. Wrong
labels, crops that miss the object and augmentations gone wild show in a second here, and after a
week of training otherwise.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict
from PIL import Image, ImageDraw, ImageFont

from cone_jax import atomic_file
from cone_jax.data import datasets
from cone_jax.errors import UserError

_PAPER, _INK = (255, 255, 255), (20, 20, 20)
_GAP = 12
_TEXT_SIZE = 14
_TEXT_HEIGHT = 20
# Smaller pictures are enlarged by a whole factor to at least this side: pixels and names show.
_COMFORTABLE = 96


def draw(images: np.ndarray, captions: Sequence[str], *, columns: int | None = None) -> Image.Image:
    """Draws the samples in rows, each with its caption below; two views stand side by side.

    Args:
        images: uint8 [N, H, W, 3], or [N, V, H, W, 3] with V views of each sample.
        captions: N texts; one that is too wide for its picture is cut short.
        columns: samples in a row; by default as many as make the sheet about square.
    """
    if images.ndim not in (4, 5) or images.dtype != np.uint8 or len(images) != len(captions):
        raise ValueError(
            f"images {images.dtype} {images.shape} must be uint8 [N, H, W, 3] or "
            f"[N, V, H, W, 3], with one caption each, not {len(captions)}"
        )
    if not len(images):
        raise ValueError("there is no image to draw")
    views = images if images.ndim == 5 else images[:, None]
    count, num_views, height, width, _ = views.shape
    zoom = -(-_COMFORTABLE // max(height, width))
    # [N, V, H, W, 3] -> [N, H, V * W, 3]: the views of a sample as one strip
    strips = views.transpose(0, 2, 1, 3, 4).reshape(count, height, num_views * width, 3)
    strip_width, strip_height = num_views * width * zoom, height * zoom
    cell = (strip_width + _GAP, strip_height + _TEXT_HEIGHT + _GAP)
    columns = columns or max(1, round((count * cell[1] / cell[0]) ** 0.5))
    rows = -(-count // columns)
    sheet = Image.new("RGB", (columns * cell[0] + _GAP, rows * cell[1] + _GAP), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(_TEXT_SIZE)
    for index, (strip, caption) in enumerate(zip(strips, captions, strict=True)):
        left = _GAP + index % columns * cell[0]
        top = _GAP + index // columns * cell[1]
        picture = Image.fromarray(strip).resize(
            (strip_width, strip_height), Image.Resampling.NEAREST
        )
        sheet.paste(picture, (left, top))
        text = _fitting(caption, font, strip_width)
        pen.text((left, top + strip_height + 2), text, _INK, font)
    return sheet


def _fitting(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """`text`, or as much of its beginning as fits, with an ellipsis."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def write_training_samples(
    config: ConfigDict, path: str | os.PathLike[str], limit: int = 64
) -> Path:
    """Writes the first `limit` samples that training with `config` will see. Returns the path."""
    source = datasets.open_split(config.data, config.data.train_split)
    config = config.copy_and_resolve_references()
    # The order of samples does not depend on how they are batched.
    config.batch_size = min(limit, len(source))
    batch = datasets.train_batches(config, source, num_steps=1)[0]
    return write(path, batch["image"], [source.class_names[label] for label in batch["label"]])


def write(path: str | os.PathLike[str], images: np.ndarray, captions: Sequence[str]) -> Path:
    """Writes the contact sheet of a batch as a PNG file; returns its path."""
    target = Path(path).expanduser()
    sheet = draw(images, captions)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.replacing(target) as file:
            sheet.save(file, "PNG")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error
    return target
