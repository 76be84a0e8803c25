"""What of an image file makes its pixels: format, orientation, and the chunks to decode.

Photographs carry metadata that no training run needs: EXIF blocks, colour profiles, thumbnails,
comments, animation frames. Handing it to Pillow costs time, and a damaged block makes Pillow warn
through the process-wide `warnings` machinery, which cannot be silenced for one thread alone.
`inspect` therefore reads the one thing that changes the picture, the EXIF orientation, and
returns the JPEG or PNG without the rest. The compressed pixels are passed on byte for byte.
"""

import struct
from typing import NamedTuple

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EXIF_PREFIX = b"Exif\0\0"
_ORIENTATION_TAG = 0x0112


# What files often are that are none of ours: where their signature stands, it, and their name.
_OTHERS = (
    (4, b"ftypheic", "a HEIC picture"),
    (4, b"ftypheix", "a HEIC picture"),
    (4, b"ftypmif1", "a HEIF picture"),
    (4, b"ftypavif", "an AVIF picture"),
    (4, b"ftyp", "a video"),
    (0, b"GIF8", "a GIF picture"),
    (0, b"II*\0", "a TIFF or raw picture"),
    (0, b"MM\0*", "a TIFF or raw picture"),
    (0, b"\0\0\0\x0cjP  ", "a JPEG 2000 picture"),
    (0, b"%PDF", "a PDF document"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"<!doctype", "a web page"),
    (0, b"<html", "a web page"),
    (0, b"<svg", "an SVG drawing"),
    (0, b"<?xml", "an XML text"),
)


class Container(NamedTuple):
    """A recognised image file: its format ('' when unknown), decodable bytes and orientation."""

    format: str
    data: bytes
    orientation: int


def inspect(data: bytes) -> Container:
    """Recognises a file by its first bytes, never by its name."""
    if data.startswith(b"\xff\xd8\xff"):
        pixels, exif = _split_jpeg(data)
        return Container("JPEG", pixels, orientation(exif))
    if data.startswith(_PNG_SIGNATURE):
        pixels, exif = _split_png(data)
        return Container("PNG", pixels, orientation(exif))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Container("WEBP", data, orientation(_webp_exif(data)))
    if data.startswith(b"BM"):
        return Container("BMP", data, 1)
    return Container("", data, 1)


def name_unread(data: bytes) -> str:
    """What a file that `inspect` does not recognise is instead, as far as its first bytes tell.

    >>> name_unread(b"GIF89a..."), name_unread(b"?")
    ('a GIF picture', '')
    """
    for place, signature, name in _OTHERS:
        if data[place : place + len(signature)].lower() == signature.lower():
            return name
    return ""


def orientation(exif: bytes) -> int:
    """The EXIF orientation, 1 to 8; 1 (upright) when it is missing, damaged or out of range.

    >>> orientation(b"II*\\0\\x08\\0\\0\\0\\x01\\0\\x12\\x01\\x03\\0\\x01\\0\\0\\0\\x06\\0\\0\\0")
    6
    """
    tiff = exif.removeprefix(_EXIF_PREFIX)
    endian = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if endian is None:
        return 1
    try:
        (directory,) = struct.unpack_from(endian + "I", tiff, 4)
        (entries,) = struct.unpack_from(endian + "H", tiff, directory)
        for entry in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, kind = struct.unpack_from(endian + "HH", tiff, entry)
            if tag == _ORIENTATION_TAG:
                # SHORT by the standard; some cameras write LONG.
                (value,) = struct.unpack_from(endian + ("I" if kind == 4 else "H"), tiff, entry + 8)
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _split_jpeg(data: bytes) -> tuple[bytes, bytes]:
    """The JPEG without comments and application segments, and its EXIF block.

    APP0 (JFIF) and APP14 (Adobe) stay: they tell the decoder the colour space. The walk ends at
    the first scan, or at anything that is not a well-formed segment; the rest stays as it is.
    """
    kept, exif, at = [data[:2]], b"", 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xDA or not 0xC0 <= marker <= 0xFE or length < 2:
            break
        end = at + 2 + length
        if marker == 0xE1 and not exif and data.startswith(_EXIF_PREFIX, at + 4):
            exif = data[at + 4 : end]
        is_metadata = 0xE1 <= marker <= 0xED or marker in (0xEF, 0xFE)
        if not is_metadata:
            kept.append(data[at:end])
        at = end
    kept.append(data[at:])
    return b"".join(kept), exif


def _split_png(data: bytes) -> tuple[bytes, bytes]:
    """The PNG's critical chunks and its transparency, and its EXIF block.

    Without the animation chunks an animated PNG is its still picture.
    """
    kept, exif, at = [_PNG_SIGNATURE], b"", len(_PNG_SIGNATURE)
    while at + 8 <= len(data):
        name = data[at + 4 : at + 8]
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if name == b"eXIf":
            exif = data[at + 8 : end - 4]
        # An upper-case first letter marks a chunk without which the picture cannot be drawn.
        if name[:1].isupper() or name == b"tRNS":
            kept.append(data[at:end])
        at = end
    return b"".join(kept), exif


def _webp_exif(data: bytes) -> bytes:
    at = 12
    while at + 8 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"EXIF":
            return data[at + 8 : at + 8 + length]
        at += 8 + length + length % 2
    return b""
