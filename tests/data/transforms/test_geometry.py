"""Crops, resizes and flips against torchvision's rules re-derived in NumPy, and known pixels."""

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cone_jax.data import decode, transforms
from cone_jax.data.transforms import geometry


def numbered(height: int, width: int) -> np.ndarray:
    """Every pixel different: row in red, column in green, 7 in blue."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, np.full_like(rows, 7)], -1).astype(np.uint8)


def torchvision_box(
    width: int, height: int, scale: tuple[float, float], random: np.random.RandomState
) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params as torchvision documents it: (left, top, width, height)."""
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w + 1), random.randint(0, height - h + 1), w, h
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


def largest_gap(one: np.ndarray, other: np.ndarray) -> float:
    """The Kolmogorov-Smirnov statistic of two samples."""
    points = np.sort(np.concatenate([one, other]))
    below = [np.searchsorted(np.sort(s), points, side="right") / len(s) for s in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize("size", [(500, 375), (300, 300), (90, 400)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.2, 1.0)])
def test_crop_boxes_are_distributed_as_in_torchvision(
    size: tuple[int, int], scale: tuple[float, float]
) -> None:
    rng, random = np.random.default_rng(1), np.random.RandomState(2)
    crop = geometry.RandomResizedCrop(224, scale=scale)
    ours = np.array([crop.sample_box(*size, rng) for _ in range(4000)])
    ours[:, 2:] -= ours[:, :2]
    reference = np.array([torchvision_box(*size, scale, random) for _ in range(4000)])
    for column in range(4):
        # 1 % critical value of two samples of 4,000 is 0.036.
        assert largest_gap(ours[:, column], reference[:, column]) < 0.036
    areas = [boxes[:, 2] * boxes[:, 3] for boxes in (ours, reference)]
    assert largest_gap(*areas) < 0.036


def test_small_crops_have_uniform_area_and_log_ratio_and_reach_every_edge() -> None:
    rng = np.random.default_rng(0)
    crop = geometry.RandomResizedCrop(8, scale=(0.1, 0.3))
    boxes = np.array([crop.sample_box(1000, 1000, rng) for _ in range(4000)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    uniform = (np.arange(4000) + 0.5) / 4000
    assert largest_gap((width * height / 1e6 - 0.1) / 0.2, uniform) < 0.03
    assert largest_gap(np.log(width / height) / math.log(16 / 9) + 0.5, uniform) < 0.03
    assert largest_gap(boxes[:, 0] / (1000 - width), uniform) < 0.03
    assert boxes.min() >= 0
    assert boxes.max() <= 1000


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((1000, 10), (493, 0, 506, 10)),
        ((10, 1000), (0, 493, 10, 506)),
        ((1, 1), (0, 0, 1, 1)),
        ((1, 9), (0, 4, 1, 5)),
    ],
)
def test_the_fallback_is_the_central_crop_within_the_ratio(
    size: tuple[int, int], box: tuple[int, ...]
) -> None:
    # The whole area at a ratio of 3/4 to 4/3 never fits.
    crop = geometry.RandomResizedCrop(8, scale=(1.0, 1.0))
    assert crop.sample_box(*size, np.random.default_rng(0)) == box


def test_random_resized_crop_resizes_its_box_with_pillow() -> None:
    image = Image.fromarray(numbered(60, 90))
    for seed in range(5):
        crop = geometry.RandomResizedCrop((20, 30), interpolation="bicubic")
        box = crop.sample_box(90, 60, np.random.default_rng(seed))
        expected = image.resize((30, 20), Image.Resampling.BICUBIC, box)
        for form in (image, np.asarray(image)):
            np.testing.assert_array_equal(crop(form, np.random.default_rng(seed)), expected)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((375, 500), (256, 341)),
        ((500, 375), (341, 256)),
        ((256, 300), (256, 300)),
        ((3, 3), (256,) * 2),
    ],
)
def test_resize_sets_the_short_side(shape: tuple[int, int], expected: tuple[int, int]) -> None:
    pipeline = transforms.parse(("resize(256)",))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8))
    array = pipeline(np.asarray(image), np.random.default_rng(0))
    reference = image.resize(expected[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(array, reference)
    assert pipeline.output_size(shape) == expected
    assert pipeline.output_size() is None


def test_resize_to_an_exact_size() -> None:
    pipeline = transforms.parse(("resize((10, 20))",))
    assert pipeline(numbered(7, 5), np.random.default_rng(0)).shape == (10, 20, 3)


def test_resizing_a_sliver_is_refused_before_it_fills_the_memory() -> None:
    sliver = np.zeros((1, 20_000, 3), np.uint8)
    with pytest.raises(decode.DamagedImage, match="20000 x 1 pixels would become 5120000 x 256"):
        transforms.parse(("resize(256)",))(sliver, np.random.default_rng(0))
    # With the crop that follows in evaluation nothing of that size is ever made.
    evaluation = transforms.parse(("resize(256)", "centre_crop(224)"))
    assert evaluation(sliver, np.random.default_rng(0)).shape == (224, 224, 3)


@pytest.mark.parametrize(
    ("length", "crop", "first"), [(256, 224, 16), (257, 224, 16), (259, 224, 18), (224, 224, 0)]
)
def test_centre_crop_rounds_halves_to_even(length: int, crop: int, first: int) -> None:
    line = np.zeros((1, length, 3), np.uint8)
    line[0, :, 0] = np.arange(length) % 256
    line[0, :, 1] = np.arange(length) // 256
    for form in (line, Image.fromarray(line)):
        cropped = np.asarray(geometry.CentreCrop((1, crop))(form, np.random.default_rng(0)))
        np.testing.assert_array_equal(cropped, line[:, first : first + crop])


@pytest.mark.parametrize("form", [np.asarray, Image.fromarray])
def test_centre_crop_pads_small_images_with_black(form: object) -> None:
    cropped = np.asarray(geometry.CentreCrop(6)(form(numbered(3, 9)), np.random.default_rng(0)))
    expected = np.zeros((6, 6, 3), np.uint8)
    expected[1:4] = numbered(3, 9)[:, 2:8]
    np.testing.assert_array_equal(cropped, expected)


@settings(deadline=None, max_examples=40)
@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 99),
)
def test_resize_then_crop_in_one_pass_equals_the_two(
    shape: tuple[int, int], resize: int, crop: int, seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)
    rng = np.random.default_rng(0)
    both = transforms.parse((f"resize({resize})", f"centre_crop({crop})"))
    assert len(both.transforms) == 1
    one_by_one = image
    for spec in (f"resize({resize})", f"centre_crop({crop})"):
        one_by_one = transforms.parse((spec,))(one_by_one, rng)
    difference = np.abs(both(image, rng).astype(int) - one_by_one)
    # A resize rounds after each of its two passes; halves may go either way.
    assert difference.max() <= 2


def test_random_crop_reaches_every_window_of_the_padded_image_equally_often() -> None:
    image = numbered(8, 8) + 1
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    windows = {padded[y : y + 8, x : x + 8].tobytes(): (y, x) for y in range(5) for x in range(5)}
    rng, crop = np.random.default_rng(3), geometry.RandomCrop(8, padding=2)
    counts = np.zeros((5, 5))
    for draw in range(5000):
        form = image if draw % 2 else Image.fromarray(image)
        counts[windows[np.asarray(crop(form, rng)).tobytes()]] += 1
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert chi_square < 51.2  # 0.1 % of 24 degrees of freedom


def test_random_crop_of_a_smaller_image_centres_it() -> None:
    cropped = geometry.RandomCrop(5, padding=1)(numbered(1, 1) + 1, np.random.default_rng(0))
    assert np.argwhere(cropped[..., 2]).tolist() == [[2, 2]]


@pytest.mark.parametrize("form", [np.asarray, Image.fromarray])
def test_flip_mirrors_with_its_probability(form: object) -> None:
    image = numbered(2, 3)
    always, never = transforms.parse(("flip(1)",)), transforms.parse(("flip(0)",))
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(always(form(image), rng), image[:, ::-1])
    np.testing.assert_array_equal(never(form(image), rng), image)
    flip = transforms.parse(("flip",))
    flipped = sum(flip(form(image), rng)[0, 0, 1] == 2 for _ in range(2000))
    assert abs(flipped - 1000) < 100  # 4.5 standard deviations


def test_a_first_crop_of_a_large_jpeg_is_close_to_that_of_the_whole() -> None:
    gradient = Image.radial_gradient("L").resize((1600, 1200))
    image = Image.merge("RGB", (gradient, gradient.transpose(Image.Transpose.ROTATE_180), gradient))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95)
    whole = np.asarray(Image.open(io.BytesIO(buffer.getvalue())))
    for specs in (("random_resized_crop(64)",), ("resize(80)",), ("resize(80)", "centre_crop(64)")):
        pipeline = transforms.parse(specs)
        reduced = pipeline(decode.open_image(buffer.getvalue()), np.random.default_rng(4))
        difference = np.abs(reduced.astype(int) - pipeline(whole, np.random.default_rng(4)))
        assert difference.mean() < 1
        assert difference.max() < 12


def photograph(width: int, height: int, orientation: int = 1) -> bytes:
    rng = np.random.default_rng(width)
    coarse = rng.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("size", [(700, 530), (530, 1301), (300, 300), (224, 231), (90, 61)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_exact_pixels_are_those_of_torchvisions_steps_on_pillow(size, interpolation):
    """`Image.open`, `Resize`, `CenterCrop` of torchvision, written with Pillow alone."""
    data = photograph(*size)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = size
    long = int(256 * max(size) / min(size))
    resized = (long, 256) if width > height else (256, long)
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    image = image.resize(resized, method[interpolation])
    left, top = (round((length - 224) / 2.0) for length in resized)
    expected = np.asarray(image.crop((left, top, left + 224, top + 224)))
    specs = (f"resize(256, interpolation='{interpolation}')", "centre_crop(224)")
    pipeline = transforms.parse(specs, pixels="exact")
    ours = pipeline(pipeline.open(data), np.random.default_rng(0))
    np.testing.assert_array_equal(ours, expected)


def test_pixels_as_stored_leave_the_orientation_alone():
    data = photograph(400, 300, orientation=6)
    specs = ("resize(256)", "centre_crop(224)")
    stored, upright = (transforms.parse(specs, pixels=form) for form in ("stored", "exact"))
    turned = Image.open(io.BytesIO(data)).transpose(Image.Transpose.ROTATE_270)
    flat = Image.open(io.BytesIO(data)).convert("RGB")
    rng = np.random.default_rng(0)
    for pipeline, image in ((stored, flat), (upright, turned)):
        ours = pipeline(pipeline.open(data), rng)
        np.testing.assert_array_equal(ours, pipeline(image, rng))
    assert not np.array_equal(stored(stored.open(data), rng), upright(upright.open(data), rng))


def test_exact_pixels_of_a_picture_that_would_become_too_large_are_the_quick_ones():
    thin = np.zeros((2, 20_000, 3), np.uint8)
    for pixels in ("exact", "fast"):
        pipeline = transforms.parse(("resize(256)", "centre_crop(224)"), pixels=pixels)
        assert pipeline(thin, np.random.default_rng(0)).shape == (224, 224, 3)
