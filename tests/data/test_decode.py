"""Every kind of picture comes out as upright 8-bit RGB, or as DamagedImage with a reason."""

import concurrent.futures
import contextlib
import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, JpegImagePlugin

from cone_jax.data import decode
from cone_jax.errors import UserError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")


def encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def pixels(data: bytes, **options: int) -> np.ndarray:
    picture = decode.open_image(data, **options)
    array = np.asarray(picture.full())
    assert array.dtype == np.uint8
    assert array.shape == (picture.size[1], picture.size[0], 3)
    return array


def photograph(width: int, height: int) -> Image.Image:
    """Smooth shapes with some texture, different in every corner."""
    y, x = np.mgrid[:height, :width] / max(width, height)
    red = 128 + 100 * np.sin(9 * x + 4 * y)
    green = 255 * x * (1 - y)
    blue = 128 + 90 * np.cos(25 * x * y) + 20 * np.sin(120 * x)
    return Image.fromarray(np.stack([red, green, blue], -1).clip(0, 255).astype(np.uint8))


def png(width: int, height: int, depth: int, colour_type: int, rows: bytes) -> bytes:
    """A PNG written by hand, for what Pillow cannot write."""

    def chunk(name: bytes, body: bytes) -> bytes:
        checksum = zlib.crc32(name + body)
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("file_format", "options"), [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})]
)
def test_lossless_formats_are_exact(file_format: str, options: dict[str, bool]) -> None:
    image = photograph(31, 17)
    np.testing.assert_array_equal(pixels(encoded(image, file_format, **options)), image)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_jpeg_is_what_pillow_decodes(options: dict[str, object]) -> None:
    data = encoded(photograph(61, 37), "JPEG", **options)
    np.testing.assert_array_equal(pixels(data), Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("file_format", FORMATS)
def test_grey_becomes_three_equal_channels(file_format: str) -> None:
    grey = Image.linear_gradient("L").resize((20, 10))
    array = pixels(
        encoded(grey, file_format, **({"lossless": True} if file_format == "WEBP" else {}))
    )
    assert np.ptp(array, axis=2).max() == 0
    np.testing.assert_allclose(array[..., 0], np.asarray(grey), atol=3)


def test_16_bit_grey_keeps_its_high_byte() -> None:
    values = np.array([[0, 255, 256, 25657, 65535]], np.uint16)
    data = encoded(Image.fromarray(values), "PNG")
    assert pixels(data)[0, :, 1].tolist() == [0, 0, 1, 100, 255]


def test_16_bit_rgb_keeps_its_high_byte() -> None:
    row = b"\0" + struct.pack(">6H", 0, 300, 65535, 25700, 511, 512)
    assert pixels(png(2, 1, 16, 2, row)).tolist() == [[[0, 1, 255], [100, 1, 2]]]


def test_one_bit_and_palette() -> None:
    bits = Image.fromarray(np.array([[0, 255, 255]], np.uint8)).convert("1")
    assert pixels(encoded(bits, "PNG"))[0, :, 0].tolist() == [0, 255, 255]
    palette = Image.fromarray(np.array([[1, 0, 1]], np.uint8)).convert("P")
    palette.putpalette([10, 20, 30, 200, 100, 50])
    for file_format in ("PNG", "BMP"):
        expected = [[[200, 100, 50], [10, 20, 30], [200, 100, 50]]]
        assert pixels(encoded(palette, file_format)).tolist() == expected


def test_transparency_is_composited_on_white() -> None:
    rgba = Image.new("RGBA", (3, 1))
    for x, alpha in enumerate((0, 255, 128)):
        rgba.putpixel((x, 0), (200, 100, 0, alpha))
    blend = [round((128 * value + 127 * 255) / 255) for value in (200, 100, 0)]
    for file_format, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True})):
        array = pixels(encoded(rgba, file_format, **options)).astype(int)
        assert array[0, 0].tolist() == [255, 255, 255]
        assert array[0, 1].tolist() == [200, 100, 0]
        np.testing.assert_allclose(array[0, 2], blend, atol=1)
    grey_alpha = Image.merge("LA", (Image.new("L", (2, 2), 40), Image.new("L", (2, 2), 0)))
    assert pixels(encoded(grey_alpha, "PNG")).min() == 255


def test_transparent_palette_entry_is_white() -> None:
    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8)).convert("P")
    palette.putpalette([9, 9, 9, 50, 60, 70, 1, 2, 3])
    array = pixels(encoded(palette, "PNG", transparency=bytes([0, 255, 255])))
    assert array.tolist() == [[[255, 255, 255], [50, 60, 70], [1, 2, 3]]]


@pytest.mark.parametrize(
    ("ink", "colour"),
    [
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 255, 0, 0), (255, 0, 255)),
        ((0, 0, 0, 255), (0, 0, 0)),
        ((0, 0, 0, 0), (255, 255, 255)),
    ],
)
def test_cmyk_jpeg_in_the_adobe_convention(ink: tuple[int, ...], colour: tuple[int, ...]) -> None:
    array = pixels(encoded(Image.new("CMYK", (16, 16), ink), "JPEG", quality=95))
    np.testing.assert_allclose(array.reshape(-1, 3), np.tile(colour, (256, 1)), atol=3)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation: int, file_format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(photograph(40, 24), file_format, exif=exif)
    reference = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(pixels(data), reference)


@pytest.mark.parametrize("shrink", [1.5, 5.0])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_regions_of_turned_pictures(orientation: int, shrink: float) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(photograph(400, 240), "JPEG", exif=exif)
    reference = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    box = (30, 10, reference.width - 70, reference.height - 20)
    size = (int((box[2] - box[0]) / shrink), int((box[3] - box[1]) / shrink))
    region = np.asarray(decode.open_image(data).region(box, size), int)
    expected = np.asarray(reference.resize(size, Image.Resampling.BILINEAR, box), int)
    difference = np.abs(region - expected)
    # Without reduced decoding, only the rounding between the two passes of a resize may differ.
    assert difference.max() <= (1 if shrink < 2 else 30)
    assert difference.mean() < 2


def test_damaged_exif_neither_warns_nor_turns() -> None:
    image = photograph(24, 16)
    data = encoded(image, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\0\x12\x01\x03")
    with pytest.warns(UserWarning, match="EXIF"):
        Image.open(io.BytesIO(data)).getexif()
    np.testing.assert_array_equal(pixels(data), pixels(encoded(image, "JPEG")))


@pytest.mark.parametrize("file_format", ["PNG", "WEBP"])
def test_animation_is_its_first_frame(file_format: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"save_all": True, "append_images": frames[1:], "lossless": True, "duration": 40}
    data = encoded(frames[0], file_format, **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3
    np.testing.assert_array_equal(pixels(data), frames[0])


@pytest.mark.parametrize("file_format", FORMATS)
def test_extreme_shapes(file_format: str) -> None:
    for size in ((1, 1), (16000, 1), (1, 16000), (16000, 3)):
        assert pixels(encoded(Image.new("RGB", size, "red"), file_format)).shape[:2] == size[::-1]


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
def test_20000_pixels_wide(file_format: str) -> None:
    assert pixels(encoded(Image.new("L", (20_000, 40)), file_format)).shape == (40, 20_000, 3)


@pytest.mark.parametrize("file_format", FORMATS)
def test_half_a_file_is_damaged(file_format: str) -> None:
    data = encoded(photograph(64, 48), file_format)
    with pytest.raises(decode.DamagedImage, match=r"cannot be decoded: .+"):
        decode.open_image(data[: len(data) // 2]).full()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\0" * 100, "not a JPEG, PNG, WebP or BMP"),
        (b"<!DOCTYPE html>", "not a JPEG"),
        (b"\xff\xd8\xff", "cannot be decoded"),
        (b"\x89PNG\r\n\x1a\n", "cannot be decoded"),
        (b"RIFF\x04\0\0\0WEBP", "cannot be decoded"),
        (b"BM", "cannot be decoded"),
        (encoded(Image.new("RGB", (4, 4)), "GIF"), "not a JPEG"),
    ],
)
def test_what_is_no_picture_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(decode.DamagedImage, match=reason):
        decode.open_image(data)


@settings(deadline=None, max_examples=60)
@given(
    file_format=st.sampled_from(FORMATS),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), max_size=6),
)
def test_mangled_files_decode_or_are_damaged(
    file_format: str, cut: float, flips: list[tuple[float, int]]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {} if file_format == "BMP" else {"exif": exif}
    data = bytearray(encoded(photograph(24, 16), file_format, **options))
    for position, change in flips:
        data[int(position * len(data))] ^= change
    with contextlib.suppress(decode.DamagedImage):
        pixels(bytes(data[: int(cut * len(data)) + 1]), max_pixels=10**6)


def test_decompression_bomb_is_refused_by_its_header() -> None:
    bomb = png(50_000, 50_000, 8, 2, b"\0")
    with pytest.raises(decode.DamagedImage, match=r"50000 x 50000 pixels, the limit is 178956970"):
        decode.open_image(bomb)


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_pixel_limit_is_an_argument(file_format: str) -> None:
    data = encoded(Image.new("RGB", (20, 10)), file_format)
    assert pixels(data, max_pixels=200).shape == (10, 20, 3)
    with pytest.raises(decode.DamagedImage, match="20 x 10 pixels, the limit is 199"):
        decode.open_image(data, max_pixels=199)


def test_a_picture_above_pillows_warning_threshold_does_not_warn() -> None:
    data = encoded(Image.new("1", (10_000, 9_000)), "PNG")
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(io.BytesIO(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode.open_image(data).size == (10_000, 9_000)


def test_arrays() -> None:
    rgb = np.asarray(photograph(5, 4))
    assert decode.open_image(rgb) is rgb
    for grey in (rgb[..., 0], rgb[..., :1]):
        np.testing.assert_array_equal(decode.open_image(grey), np.stack([rgb[..., 0]] * 3, -1))
    for wrong in (rgb.astype(np.float32), np.zeros((4, 4, 4), np.uint8), np.zeros(4, np.uint8)):
        with pytest.raises(UserError, match="must be uint8"):
            decode.open_image(wrong)
    with pytest.raises(decode.DamagedImage, match="no pixels"):
        decode.open_image(np.zeros((0, 4, 3), np.uint8))


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes at which JPEGs get decoded."""
    sizes = []
    load = JpegImagePlugin.JpegImageFile.load

    def recorded(file: JpegImagePlugin.JpegImageFile) -> object:
        if file.tile:
            sizes.append(file.size)
        return load(file)

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", recorded)
    return sizes


@pytest.mark.parametrize(
    ("side", "decoded_size"),
    [
        (100, (1200, 900)),
        (223, (1200, 900)),
        (224, (600, 450)),
        (450, (300, 225)),
        (899, (150, 113)),
    ],
)
def test_jpeg_regions_are_decoded_at_no_less_than_the_target(
    side: int, decoded_size: tuple[int, int], drafts: list[tuple[int, int]]
) -> None:
    data = encoded(photograph(1200, 900), "JPEG", quality=92)
    box = (150, 0, 150 + side, side)
    region = decode.open_image(data).region(box, (112, 112))
    assert drafts == [decoded_size]
    full = Image.open(io.BytesIO(data)).resize((112, 112), Image.Resampling.BILINEAR, box)
    difference = np.abs(np.asarray(region, float) - np.asarray(full, float))
    if decoded_size == (1200, 900):
        assert difference.max() == 0
    assert difference.mean() < 1.5


def test_two_views_decode_once(drafts: list[tuple[int, int]]) -> None:
    picture = decode.open_image(encoded(photograph(300, 200), "JPEG"))
    first = picture.region((0, 0, 200, 200), (112, 112))
    picture.region((50, 0, 250, 200), (112, 112))
    assert drafts == [(300, 200)]
    picture.region((0, 0, 200, 200), (50, 50))
    assert drafts == [(300, 200), (75, 50)]
    np.testing.assert_array_equal(picture.region((0, 0, 200, 200), (112, 112)), first)


def test_threads_decode_the_same_pixels() -> None:
    files = [encoded(photograph(90 + i, 70), FORMATS[i % 4]) for i in range(16)]
    serial = [pixels(data) for data in files]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for one, other in zip(pool.map(pixels, files), serial, strict=True):
            np.testing.assert_array_equal(one, other)
