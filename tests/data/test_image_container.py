"""Only what makes pixels is passed on, and the orientation is read by the EXIF standard."""

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cone_jax.data import image_container


def encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def tiff_block(endian: str, kind: int, value: int, *, before: int = 0) -> bytes:
    """An EXIF block with `before` other entries and then the orientation."""
    order = b"II" if endian == "<" else b"MM"
    entries = b"".join(struct.pack(endian + "HHIHH", 0x0100, 3, 1, 7, 0) for _ in range(before))
    number = struct.pack(endian + "I", value) if kind == 4 else struct.pack(endian + "HH", value, 0)
    entries += struct.pack(endian + "HHI", 0x0112, kind, 1) + number
    header = order + struct.pack(endian + "HI", 42, 8)
    return header + struct.pack(endian + "H", before + 1) + entries + bytes(4)


@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_of_either_byte_order_and_width(endian: str, kind: int, value: int) -> None:
    block = tiff_block(endian, kind, value, before=2)
    assert image_container.orientation(block) == value
    assert image_container.orientation(b"Exif\0\0" + block) == value


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_out_of_range_is_upright(value: int) -> None:
    assert image_container.orientation(tiff_block("<", 3, value)) == 1


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=64), st.integers(0, 40))
def test_a_damaged_exif_block_is_upright_or_some_orientation(junk: bytes, cut: int) -> None:
    for block in (junk, b"II*\0" + junk, b"MM\0*" + junk, tiff_block("<", 3, 6)[:cut]):
        assert 1 <= image_container.orientation(block) <= 8


def test_jpeg_loses_its_metadata_and_keeps_its_pixels() -> None:
    image = Image.radial_gradient("L").convert("RGB")
    plain = encoded(image, "JPEG")
    exif = b"Exif\0\0" + tiff_block(">", 3, 8)
    laden = encoded(image, "JPEG", exif=exif, icc_profile=b"p" * 500, comment=b"c" * 100)
    container = image_container.inspect(laden)
    assert container.format == "JPEG"
    assert container.orientation == 8
    assert container.data == plain


def test_adobe_and_jfif_segments_stay() -> None:
    data = encoded(Image.new("CMYK", (8, 8)), "JPEG")
    assert b"Adobe" in data
    assert image_container.inspect(data).data == data


def test_png_keeps_critical_chunks_and_transparency_only() -> None:
    image = Image.new("P", (4, 4))
    image.putpalette([10, 20, 30])
    options = {"exif": b"Exif\0\0" + tiff_block("<", 3, 3), "dpi": (300, 300), "transparency": 0}
    container = image_container.inspect(encoded(image, "PNG", **options))
    assert container.orientation == 3
    assert b"eXIf" not in container.data
    assert b"pHYs" not in container.data
    assert all(name in container.data for name in (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))


def test_webp_orientation_behind_an_odd_sized_chunk() -> None:
    image = Image.linear_gradient("L").convert("RGB")
    data = encoded(image, "WEBP", exif=b"Exif\0\0" + tiff_block("<", 3, 5), icc_profile=b"odd")
    assert image_container.inspect(data)[::2] == ("WEBP", 5)


def test_formats_are_told_by_content() -> None:
    image = Image.new("RGB", (2, 2))
    for name in ("JPEG", "PNG", "WEBP", "BMP"):
        assert image_container.inspect(encoded(image, name)).format == name
    assert image_container.inspect(encoded(image, "GIF")).format == ""
    assert image_container.inspect(b"<html>").format == ""
