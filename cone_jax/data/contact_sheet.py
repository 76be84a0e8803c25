"""Contact sheets: pictures in rows, a line of text below each, as one picture.

A sheet of training samples shows what the network will see, with the names of the classes. Wrong
labels, crops that miss the object and augmentations gone wild show in a second here, and after a
week of training otherwise.
"""

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict
from PIL import Image, ImageDraw, ImageFont

from cone_jax import storage
from cone_jax.console import Report
from cone_jax.data import datasets, object_drawing
from cone_jax.data.sources import Source, has_objects
from cone_jax.errors import UserError

_PAPER, _INK = (255, 255, 255), (20, 20, 20)
_GAP = 12
_TEXT_SIZE = 14
_TEXT_HEIGHT = 20
_MOST_LINES = 6  # of a paragraph, such as the name of a class
# Smaller pictures are enlarged by a whole factor to at least this side: pixels and names show.
_COMFORTABLE = 96
# They are large: a sheet of so many has about 16 million pixels.
_PICTURES_WITH_OBJECTS = 16


def draw(images: np.ndarray, captions: Sequence[str], *, columns: int | None = None) -> Image.Image:
    """Draws the samples in rows, each with its caption below; two views stand side by side.

    Args:
        images: uint8 [N, H, W, 3], or [N, V, H, W, 3] with V views of each sample.
        captions: N texts; one that is too wide for its picture goes on in the next line.
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
    fonts = [_font(caption)[0] for caption in captions]  # names may be of several scripts
    texts = [
        _lines(caption, font, strip_width) for caption, font in zip(captions, fonts, strict=True)
    ]
    text_height = _TEXT_HEIGHT * max(1, *map(len, texts))
    cell = (strip_width + _GAP, strip_height + text_height + _GAP)
    columns = columns or max(1, round((count * cell[1] / cell[0]) ** 0.5))
    rows = -(-count // columns)
    sheet = Image.new("RGB", (columns * cell[0] + _GAP, rows * cell[1] + _GAP), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for index, (strip, lines) in enumerate(zip(strips, texts, strict=True)):
        left = _GAP + index % columns * cell[0]
        top = _GAP + index // columns * cell[1]
        picture = Image.fromarray(strip).resize(
            (strip_width, strip_height), Image.Resampling.NEAREST
        )
        sheet.paste(picture, (left, top))
        for place, line in enumerate(lines):
            below = top + strip_height + 2 + place * _TEXT_HEIGHT
            # A name in Arabic or Hebrew is read from the right, the caption that has it is not.
            pen.text((left, below), line, _INK, fonts[index], direction=_direction(fonts[index]))
    return sheet


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _direction(font: Font) -> str | None:
    """Left to right, if this layout engine takes a direction."""
    raqm = ImageFont.Layout.RAQM
    return "ltr" if getattr(font, "layout_engine", None) == raqm else None


def missing_characters(texts: Sequence[str]) -> str:
    """The characters that no font on this machine has; they show as boxes."""
    return "".join(sorted({character for text in texts for character in _font(text)[1]}))


def say_missing_characters(texts: Sequence[str], say: Report) -> None:
    """Warns that some characters of a sheet show as boxes, and names the cure."""
    missing = missing_characters(texts)
    if missing:
        say(
            f"warning: no font on this machine has {missing[:10]!r}, so these show as boxes; "
            "install one that does, such as Noto Sans CJK"
        )


def font_files(texts: Iterable[str]) -> list[str]:
    """The fonts to draw `texts` with, where DejaVu Sans alone does not do."""
    own = next(_fonts())
    found = dict.fromkeys(_best_font(text)[0] for text in texts if not text.isascii())
    return [path for path in found if path not in ("", own)]


def _font(text: str) -> tuple[Font, str]:
    """A font that has the characters of `text`, and those that it lacks."""
    path, lacking = _best_font(text)
    font = ImageFont.truetype(path, _TEXT_SIZE) if path else ImageFont.load_default(_TEXT_SIZE)
    return font, lacking


def _best_font(text: str) -> tuple[str, str]:
    """The file of that font, "" for Pillow's own.

    Pillow's own has ASCII; DejaVu Sans, which comes with matplotlib, Latin, Greek and Cyrillic. For
    the rest the fonts of the system are searched: the one that has the most of it.
    """
    wanted = {character for character in text if character.isprintable()} - {" "}
    if all(character.isascii() for character in wanted):
        return "", ""
    best, lacking = "", wanted
    for path in _fonts():
        known = _known_to(path)
        absent = {character for character in wanted if ord(character) not in known}
        if known and (not best or len(absent) < len(lacking)):
            best, lacking = path, absent
        if not lacking:
            break
    return best, "".join(sorted(lacking))


def _fonts() -> Iterator[str]:
    from matplotlib import font_manager, get_data_path  # takes a while to import

    yield os.path.join(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    yield from sorted(font_manager.findSystemFonts())


@functools.cache
def _known_to(path: str) -> frozenset[int]:
    """The characters of a font; none of one that cannot be used."""
    from matplotlib.ft2font import FT2Font

    try:
        ImageFont.truetype(path, _TEXT_SIZE)
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # one of the two cannot read it
        return frozenset()


def _lines(text: str, font: Font, width: int) -> list[str]:
    """`text` in lines that fit, broken between words where that is possible.

    Names that begin alike stay apart: of one that takes too many lines the middle is left out.
    """
    lines: list[str] = []
    for paragraph in text.split("\n"):
        lines += _shortened(_broken(paragraph, font, width), font, width)
    return lines


def _broken(paragraph: str, font: Font, width: int) -> list[str]:
    lines: list[str] = []
    line = ""
    for word in re.findall(r"[^\s_-]*[\s_-]?", paragraph):
        if line and font.getlength((line + word).rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += word
        while font.getlength(line.rstrip()) > width and len(line) > 1:
            fit = max(n for n in range(1, len(line)) if n == 1 or _fits(line[:n], font, width))
            lines.append(line[:fit])
            line = line[fit:]
    return [*lines, line.rstrip()]


def _shortened(lines: list[str], font: Font, width: int) -> list[str]:
    if len(lines) <= _MOST_LINES:
        return lines
    half = _MOST_LINES // 2
    last = lines[half - 1]
    while last and not _fits(last + "…", font, width):
        last = last[:-1]
    return [*lines[: half - 1], last + "…", *lines[half - _MOST_LINES :]]


def _fits(text: str, font: Font, width: int) -> bool:
    return font.getlength(text) <= width


def write_training_samples(
    config: ConfigDict, path: str | os.PathLike[str], limit: int = 64
) -> Path:
    """Writes the first `limit` samples that training with `config` will see. Returns the path."""
    source = datasets.open_split(config.data, config.data.train_split)
    config = config.copy_and_resolve_references()
    if has_objects(source):
        return write(path, *labelled(_first_objects(config, source), source.class_names))
    # The order of samples does not depend on how they are batched.
    config.batch_size = min(limit, len(source))
    batch = datasets.train_batches(config, source, num_steps=1)[0]
    return write(path, *labelled(batch, source.class_names))


def _first_objects(config: ConfigDict, source: Source) -> dict[str, np.ndarray]:
    """The first batches, as far as they are of the first one's shape and there is room."""
    number = max(min(_PICTURES_WITH_OBJECTS, len(source)) // config.batch_size, 1)
    batches = datasets.train_batches(config, source, num_steps=number)
    parts = [batches[step] for step in range(number)]
    shape = parts[0]["image"].shape
    alike = [part for part in parts if part["image"].shape == shape]
    return {name: np.concatenate([part[name] for part in alike]) for name in parts[0]}


def labelled(
    batch: Mapping[str, np.ndarray], class_names: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """The images of a training batch and what is known of them: classes, or objects drawn."""
    if "boxes" in batch:
        return object_drawing.draw_batch(batch, class_names)
    return batch["image"], [class_names[label] for label in batch["label"]]


def write(path: str | os.PathLike[str], images: np.ndarray, captions: Sequence[str]) -> Path:
    """Writes the contact sheet of a batch as a PNG file; returns its path."""
    target = storage.path(path, "--output")
    sheet = draw(images, captions)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with storage.replacing(target) as file:
            sheet.save(file, "PNG")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error
    return target
