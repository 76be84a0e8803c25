"""Each operation of AutoAugment on known pixels, against NumPy."""

import numpy as np
import pytest
from PIL import Image

from cone_jax.data.transforms import pixel_ops

FILL = (128, 10, 200)
EVERY_VALUE = np.stack([np.arange(256), 255 - np.arange(256), np.arange(256) // 2], -1)
EVERY_VALUE = EVERY_VALUE.reshape(16, 16, 3).astype(np.uint8)


def noise(height: int = 21, width: int = 34) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def apply(name: str, array: np.ndarray, argument: float = 0.0) -> np.ndarray:
    return np.asarray(pixel_ops.PIXEL_OPS[name](Image.fromarray(array), argument, FILL))


def luma(array: np.ndarray) -> np.ndarray:
    """ITU-R 601, in Pillow's fixed point."""
    weighted = array.astype(int) @ np.array([19595, 38470, 7471])
    return (weighted + 0x8000) >> 16


def blend(degenerate: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    return np.clip(degenerate + factor * (image.astype(float) - degenerate), 0, 255)


def sampled(array: np.ndarray, inverse: object) -> np.ndarray:
    """Bilinear sampling at inverse(x, y), pixel centres at half integers, FILL outside."""
    height, width = array.shape[:2]
    result = np.empty(array.shape)
    for row in range(height):
        for column in range(width):
            x, y = inverse(column + 0.5, row + 0.5)
            if not (0 <= x < width and 0 <= y < height):
                result[row, column] = FILL
                continue
            left, top = int(np.floor(x - 0.5)), int(np.floor(y - 0.5))
            dx, dy = x - 0.5 - left, y - 0.5 - top
            x0, x1 = np.clip([left, left + 1], 0, width - 1)
            y0, y1 = np.clip([top, top + 1], 0, height - 1)
            upper = (1 - dx) * array[y0, x0] + dx * array[y0, x1]
            lower = (1 - dx) * array[y1, x0] + dx * array[y1, x1]
            result[row, column] = (1 - dy) * upper + dy * lower
    return result


@pytest.mark.parametrize("shear", [-0.3, 0.2])
def test_shear_keeps_the_top_left_corner(shear: float) -> None:
    image = noise()
    np.testing.assert_allclose(
        apply("ShearX", image, shear), sampled(image, lambda x, y: (x + shear * y, y)), atol=1
    )
    np.testing.assert_allclose(
        apply("ShearY", image, shear), sampled(image, lambda x, y: (x, y + shear * x)), atol=1
    )


@pytest.mark.parametrize("name", ["TranslateX", "TranslateXRel"])
def test_translate_x_uncovers_the_fill(name: str) -> None:
    image = noise()
    moved = apply(name, image, 5)
    np.testing.assert_array_equal(moved[:, :-5], image[:, 5:])
    np.testing.assert_array_equal(moved[:, -5:], np.broadcast_to(FILL, (21, 5, 3)))
    moved = apply(name, image, -5)
    np.testing.assert_array_equal(moved[:, 5:], image[:, :-5])


@pytest.mark.parametrize("name", ["TranslateY", "TranslateYRel"])
def test_translate_y_uncovers_the_fill(name: str) -> None:
    image = noise()
    moved = apply(name, image, 4)
    np.testing.assert_array_equal(moved[:-4], image[4:])
    np.testing.assert_array_equal(moved[-4:], np.broadcast_to(FILL, (4, 34, 3)))
    assert (apply(name, image, 21) == FILL).all()


@pytest.mark.parametrize("degrees", [-30.0, 9.5])
def test_rotate_turns_anticlockwise_about_the_centre(degrees: float) -> None:
    image = noise()
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))

    def inverse(x: float, y: float) -> tuple[float, float]:
        x, y = x - 17, y - 10.5
        return cos * x - sin * y + 17, sin * x + cos * y + 10.5

    np.testing.assert_allclose(apply("Rotate", image, degrees), sampled(image, inverse), atol=1)


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.55, 1.0, 1.9])
def test_blends(factor: float) -> None:
    image = noise()
    grey = luma(image)[..., None]
    # Pillow truncates the blend to an integer, in single precision.
    for name, degenerate in (
        ("Brightness", np.zeros(1)),
        ("Color", grey),
        ("Contrast", np.full(1, int(grey.mean() + 0.5))),
    ):
        result = apply(name, image, factor)
        expected = blend(np.broadcast_to(degenerate, image.shape), image, factor)
        np.testing.assert_allclose(result, expected - 0.5, atol=0.51, err_msg=name)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.9])
def test_sharpness_blends_with_a_3x3_smoothing_and_spares_the_border(factor: float) -> None:
    image = noise()
    smooth = image.astype(float)
    for row in range(1, 20):
        for column in range(1, 33):
            around = image[row - 1 : row + 2, column - 1 : column + 2].reshape(9, 3).astype(float)
            smooth[row, column] = (around.sum(0) + 4 * around[4]) / 13
    expected = blend(np.rint(smooth), image, factor)
    result = apply("Sharpness", image, factor)
    np.testing.assert_allclose(result, expected, atol=2)
    np.testing.assert_array_equal(result[0], image[0])
    np.testing.assert_array_equal(result[:, -1], image[:, -1])


@pytest.mark.parametrize(
    ("bits", "values"),
    [
        (8, [0, 1, 127, 128, 255]),
        (4, [0, 0, 112, 128, 240]),
        (1, [0, 0, 0, 128, 128]),
        (0, [0, 0, 0, 0, 0]),
    ],
)
def test_posterize_keeps_high_bits(bits: int, values: list[int]) -> None:
    image = np.array([[[v] * 3 for v in (0, 1, 127, 128, 255)]], np.uint8)
    assert apply("Posterize", image, bits)[0, :, 0].tolist() == values


@pytest.mark.parametrize("threshold", [0, 113.3, 128, 255, 256])
def test_solarize_inverts_at_and_above_the_threshold(threshold: float) -> None:
    result = apply("Solarize", EVERY_VALUE, threshold)
    for before, after in zip(EVERY_VALUE.ravel(), result.ravel(), strict=True):
        assert after == (before if before < threshold else 255 - before)


def test_solarize_add_brightens_the_dark_half() -> None:
    expected = np.where(EVERY_VALUE < 128, EVERY_VALUE.astype(int) + 110, EVERY_VALUE)
    np.testing.assert_array_equal(apply("SolarizeAdd", EVERY_VALUE, 110), expected)
    assert apply("SolarizeAdd", EVERY_VALUE, 200).max() == 255


def test_auto_contrast_stretches_each_channel() -> None:
    image = noise() // 3 + np.array([20, 60, 100], np.uint8)
    image[0, 0] = image[0, 1] = 77
    low, high = image.min((0, 1)).astype(float), image.max((0, 1)).astype(float)
    np.testing.assert_allclose(
        apply("AutoContrast", image), (image - low) * 255 / (high - low), atol=1
    )
    flat = np.full((4, 4, 3), 90, np.uint8)
    np.testing.assert_array_equal(apply("AutoContrast", flat), flat)


def test_equalize_follows_the_cumulative_histogram() -> None:
    image = (noise(64, 64).astype(int) ** 2 // 255).astype(np.uint8)
    expected = np.empty_like(image)
    for channel in range(3):
        values = image[..., channel]
        counts = np.bincount(values.ravel(), minlength=256)
        step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        table = (step // 2 + np.cumsum(counts) - counts) // step
        expected[..., channel] = np.minimum(table, 255)[values]
    np.testing.assert_array_equal(apply("Equalize", image), expected)


def test_invert_and_identity() -> None:
    np.testing.assert_array_equal(apply("Invert", EVERY_VALUE), 255 - EVERY_VALUE)
    np.testing.assert_array_equal(apply("Identity", EVERY_VALUE), EVERY_VALUE)
