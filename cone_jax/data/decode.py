"""Pictures from bytes: upright, RGB, 8 bits, and no more of them decoded than is asked for.

`open_image` reads a header and promises:

* JPEG, PNG, WebP and BMP, recognised by content. EXIF orientation is applied unless told
  otherwise. An animation is its first frame (an animated PNG: its still picture).
* Grey becomes three equal channels; 16 bits keep their high byte; a palette is resolved; CMYK is
  converted by Pillow, in the Adobe (inverted) convention all CMYK JPEGs follow in practice;
  transparency is composited on white, since the colours behind it are arbitrary.
* What cannot be decoded, and what has more than `max_pixels` pixels, raises `DamagedImage` with
  the reason. It is raised by `open_image` where the header shows it, later where the pixels do.
* No Pillow warning, no global setting of Pillow: safe in threads.

A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size at a fraction of the cost. `Picture.region`
uses that whenever the region asked for keeps at least the resolution asked for.

Between transforms an image is a `Raster`, one of three things. A `Picture` is an encoded file, of
which a first crop may decode only a part. A Pillow image is what resampling and colour work on. A
uint8 [H, W, 3] array is what in-memory data sets hold and what crops and flips handle for nothing.
A transform takes any of the three and returns whichever it ends up with, so no image is converted
for the sake of uniformity.
"""

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import BmpImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from cone_jax.data import image_container
from cone_jax.errors import UserError

# Where Pillow's own default draws the line: 0.7 GB once decoded. For WebP it stays Pillow's line,
# since the decoder makes room for the whole picture as it reads the header.
MAX_PIXELS = 178_956_970

Box = tuple[float, float, float, float]  # left, top, right, bottom, as in Pillow
Size = tuple[int, int]  # width, height, as in Pillow

_PLUGINS: dict[str, type[ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
}
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_MIRRORED_X, _MIRRORED_Y, _SWAPPED = {2, 3, 6, 7}, {3, 4, 7, 8}, {5, 6, 7, 8}


class DamagedImage(Exception):  # noqa: N818 - names what was found, not a fault of the program
    """A picture that cannot be used; the message is the reason, without the file's name."""


def open_image(
    data: bytes | np.ndarray, *, max_pixels: int = MAX_PIXELS, upright: bool = True
) -> "Picture | np.ndarray":
    """What a transform pipeline starts from: a `Picture` of a file, or the [H, W, 3] array itself.

    Args:
        data: an encoded file, or uint8 [H, W, 3], [H, W, 1] or [H, W].
        max_pixels: files with more pixels than this are refused before they are decoded.
        upright: whether the EXIF orientation of a file is applied.
    """
    if isinstance(data, np.ndarray):
        return _rgb_array(data)
    return Picture(data, max_pixels=max_pixels, upright=upright)


def reason_unreadable(source: Any, record: int) -> str:
    """The reason why a record of a source cannot be read, or nothing."""
    try:
        picture = open_image(source[record].image)
        if isinstance(picture, Picture):
            picture.verify()
    except DamagedImage as damage:
        return str(damage)
    return ""


class Picture:
    """An encoded file whose header has been read; pixels are decoded when asked for, once.

    Attributes:
        size: width and height of the upright picture.
        is_marked: whether the file asks to be turned or mirrored, by its EXIF orientation.
    """

    def __init__(self, data: bytes, *, max_pixels: int = MAX_PIXELS, upright: bool = True):
        if not data:
            raise DamagedImage("the file is empty")
        self._container = image_container.inspect(bytes(data))
        if not self._container.format:
            raise DamagedImage(_not_read(bytes(data[:64])))
        self._orientation = self._container.orientation if upright else 1
        self.is_marked = self._container.orientation in _UPRIGHT
        self._unread: ImageFile.ImageFile | None = self._open()
        width, height = self._unread.size
        if width * height > max_pixels:
            raise DamagedImage(f"{width} x {height} pixels, the limit is {max_pixels} in all")
        self._decoded: dict[int, Image.Image] = {}
        self.size: Size = (height, width) if self._is_turned else (width, height)

    def verify(self) -> None:
        """Raises `DamagedImage` if the pixels cannot be decoded, as cheaply as possible."""
        self._decode(reduction=8 if self._container.format == "JPEG" else 1)

    def full(self) -> Image.Image:
        """The whole picture, mode RGB."""
        return self._upright(self._decode(reduction=1))

    def region(
        self, box: Box, size: Size, resample: Image.Resampling = Image.Resampling.BILINEAR
    ) -> Image.Image:
        """`full().resize(size, resample, box)` without decoding detail that the resize discards.

        Of a JPEG the result is close to that, not equal: its reduced decoding averages blocks of
        2, 4 or 8 pixels, where the resize alone weighs them by its own filter.
        """
        shrink = min((box[2] - box[0]) / size[0], (box[3] - box[1]) / size[1])
        reduction = 1
        if self._container.format == "JPEG":
            reduction = max(step for step in (1, 2, 4, 8) if step <= max(shrink, 1))
        image = self._decode(reduction)
        left, top, right, bottom = (edge / reduction for edge in self._stored_box(box))
        stored_size = size[::-1] if self._is_turned else size
        resized = image.resize(stored_size, resample, (left, top, right, bottom))
        return self._upright(resized)

    @property
    def _is_turned(self) -> bool:
        return self._orientation in _SWAPPED

    def _open(self) -> ImageFile.ImageFile:
        # The plugin itself, not Image.open: that warns about large pictures by a global threshold.
        with _damage_reported():
            return _PLUGINS[self._container.format](io.BytesIO(self._container.data))

    def _decode(self, reduction: int) -> Image.Image:
        """The picture as stored, not upright, `reduction` times smaller, in RGB."""
        if reduction not in self._decoded:
            file, self._unread = self._unread or self._open(), None
            with _damage_reported():
                if reduction > 1:
                    file.draft(None, (file.width // reduction, file.height // reduction))
                file.load()
                self._decoded[reduction] = _to_rgb(file)
        return self._decoded[reduction]

    def _stored_box(self, box: Box) -> Box:
        """An upright box in the coordinates of the picture as stored."""
        (left, top, right, bottom), (width, height) = box, self.size
        if self._orientation in _MIRRORED_X:
            left, right = width - right, width - left
        if self._orientation in _MIRRORED_Y:
            top, bottom = height - bottom, height - top
        if self._is_turned:
            left, top, right, bottom = top, left, bottom, right
        return left, top, right, bottom

    def _upright(self, image: Image.Image) -> Image.Image:
        turn = _UPRIGHT.get(self._orientation)
        return image if turn is None else image.transpose(turn)


def _not_read(beginning: bytes) -> str:
    """Why a file that no decoder recognises cannot be used."""
    name = image_container.name_unread(beginning)
    if not name:
        return "not a JPEG, PNG, WebP or BMP file"
    cure = "; convert it to JPEG or PNG" if name.endswith("picture") else ""
    return f"{name}, not a JPEG, PNG, WebP or BMP file{cure}"


@contextlib.contextmanager
def _damage_reported() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except SyntaxError as error:  # how Pillow says that a structure makes no sense
        raise DamagedImage("cannot be decoded: the file is damaged or cut off") from error
    except Exception as error:
        # Hostile bytes make Pillow raise almost anything: OSError, ValueError, struct.error,
        # zlib.error, IndexError. All of them mean the same here.
        raise DamagedImage(f"cannot be decoded: {error or type(error).__name__}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow's own conversion clips 16 bits at 255 instead of scaling them.
        high_byte = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        return Image.fromarray(high_byte).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _rgb_array(array: np.ndarray) -> np.ndarray:
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in (1, 3):
        raise UserError(
            f"image array {array.dtype} {list(array.shape)} must be uint8 "
            "[height, width], [height, width, 1] or [height, width, 3]"
        )
    if array.size == 0:
        raise DamagedImage(f"an array of shape {list(array.shape)} has no pixels")
    if channels == 3:
        return array
    return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2)


Raster = Picture | Image.Image | np.ndarray

RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def as_pil(image: Raster) -> Image.Image:
    if isinstance(image, np.ndarray):
        return Image.fromarray(image)
    return image.full() if isinstance(image, Picture) else image


def as_array(image: Raster) -> np.ndarray:
    return image if isinstance(image, np.ndarray) else np.asarray(as_pil(image))


def size_of(image: Raster) -> Size:
    """Width and height."""
    if isinstance(image, np.ndarray):
        return image.shape[1], image.shape[0]
    return image.size


def resized_region(image: Raster, box: Box, size: Size, resampling: str) -> Image.Image:
    """The region `box` resized to `size`, antialiased, in one pass."""
    if isinstance(image, Picture):
        return image.region(box, size, RESAMPLING[resampling])
    return as_pil(image).resize(size, RESAMPLING[resampling], box)


def window(image: Raster, left: int, top: int, size: Size) -> Image.Image | np.ndarray:
    """The pixels of a window that may reach beyond the image, black where it does."""
    width, height = size
    if not isinstance(image, np.ndarray):
        return as_pil(image).crop((left, top, left + width, top + height))
    x0, x1 = max(left, 0), min(left + width, image.shape[1])
    y0, y1 = max(top, 0), min(top + height, image.shape[0])
    inside = image[y0:y1, x0:x1]
    if inside.shape[:2] == (height, width):
        return inside
    padded = np.zeros((height, width, 3), np.uint8)
    padded[y0 - top : y1 - top, x0 - left : x1 - left] = inside
    return padded
