"""Jitter, grey and blur: known pixels, and probabilities by counting."""

import colorsys

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from cone_jax.data.transforms import colour


def noise(height: int = 40, width: int = 30) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def frequency(transform: object, array: np.ndarray, n: int = 1000) -> float:
    rng = np.random.default_rng(2)
    return np.mean([not np.array_equal(transform(array, rng), array) for _ in range(n)])


def test_hue_turns_as_in_colorsys() -> None:
    palette = [(0.0, 1.0, 0.8), (0.1, 0.7, 1.0), (0.35, 0.9, 0.6), (0.6, 0.5, 0.9), (0.9, 1.0, 1.0)]

    def rgb(turn: float) -> np.ndarray:
        colours = [colorsys.hsv_to_rgb((h + turn) % 1, s, v) for h, s, v in palette]
        return np.rint(255 * np.array([colours])).astype(np.uint8)

    image = Image.fromarray(rgb(0))
    for turn in (-0.5, -0.1, 0.2, 0.45):
        found = np.asarray(colour.turn_hue(image, turn), int)
        np.testing.assert_allclose(found, rgb(turn).astype(int), atol=15)  # 2 steps of hue
    np.testing.assert_array_equal(colour.turn_hue(image, 0.0), image)


def test_a_turn_of_a_tenth_is_25_steps_of_256_either_way() -> None:
    red = Image.new("RGB", (1, 1), "red")
    for turn, hue in ((0.1, 25), (-0.1, 256 - 25)):
        expected = Image.new("HSV", (1, 1), (hue, 255, 255)).convert("RGB")
        np.testing.assert_array_equal(colour.turn_hue(red, turn), expected)


@pytest.mark.parametrize(
    ("position", "enhancer"),
    [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)],
)
def test_each_strength_drives_its_own_adjustment(position: int, enhancer: type) -> None:
    image = Image.fromarray(noise())
    strengths = [0.0, 0.0, 0.0]
    strengths[position] = 0.4
    grid = np.linspace(0.6, 1.4, 2001)
    references = {}
    for factor in grid:
        mean = np.asarray(enhancer(image).enhance(factor), float).mean()
        references[factor] = (mean, np.asarray(enhancer(image).enhance(factor), float).std())
    # The two moments identify the factor well enough to see its range and distribution.
    table = np.array([references[factor] for factor in grid])
    rng, factors = np.random.default_rng(1), []
    for _ in range(150):
        result = np.asarray(colour.ColourJitter(*strengths)(image, rng), float)
        distance = np.abs(table - (result.mean(), result.std())).sum(1)
        assert distance.min() < 0.6
        factors.append(grid[distance.argmin()])
    assert min(factors) < 0.65
    assert max(factors) > 1.35
    assert abs(np.mean(factors) - 1) < 0.08


def test_strength_above_one_never_gives_a_negative_factor() -> None:
    grey = np.full((2, 2, 3), 100, np.uint8)
    rng = np.random.default_rng(0)
    values = [np.asarray(colour.ColourJitter(2.0)(grey, rng))[0, 0, 0] for _ in range(600)]
    # The factor is U(0, 3), so the value is U(0, 300) cut at 255, which 15 % reach.
    assert min(values) < 6
    assert abs(np.mean(np.array(values) == 255) - 0.15) < 0.06
    assert abs(np.mean(np.array(values) < 100) - 1 / 3) < 0.08


def test_adjustments_come_in_random_order() -> None:
    image = np.array([[[250, 10, 60], [20, 90, 200]]], np.uint8)
    steps = {
        "b": lambda i: ImageEnhance.Brightness(i).enhance(2.0),
        "c": lambda i: ImageEnhance.Contrast(i).enhance(2.0),
        "s": lambda i: ImageEnhance.Color(i).enhance(2.0),
    }

    def in_order(names: str) -> bytes:
        result = Image.fromarray(image)
        for name in names:
            result = steps[name](result)
        return result.tobytes()

    class FactorTwo(np.random.Generator):
        """Real orders, but every factor at its upper end."""

        def uniform(self, low: float = 0.0, high: float = 1.0, size: None = None) -> float:
            return high

    rng = FactorTwo(np.random.PCG64(0))
    expected = {in_order(names) for names in ("bcs", "bsc", "cbs", "csb", "sbc", "scb")}
    jitter = colour.ColourJitter(1.0, 1.0, 1.0)
    found = {jitter(image, rng).tobytes() for _ in range(200)}
    assert found == expected
    assert len(found) > 3


def test_grey_is_luma_in_three_channels() -> None:
    image = noise()
    result = np.asarray(colour.Grey(p=1)(image, np.random.default_rng(0)), int)
    assert np.ptp(result, axis=2).max() == 0
    np.testing.assert_allclose(result[..., 0], image @ [0.299, 0.587, 0.114], atol=0.51)


def test_blur_is_close_to_a_true_gaussian() -> None:
    image = np.repeat(np.repeat(noise(10, 10), 8, axis=0), 8, axis=1)
    for sigma in (0.5, 1.0, 2.0):
        reach = np.arange(-12, 13)
        kernel = np.exp(-0.5 * (reach / sigma) ** 2)
        kernel /= kernel.sum()
        blurred = image.astype(float)
        for axis in (0, 1):
            padding = [(12, 12) if a == axis else (0, 0) for a in range(3)]
            padded = np.pad(blurred, padding, mode="edge")
            blurred = sum(
                weight * np.take(padded, np.arange(80) + shift, axis)
                for shift, weight in enumerate(kernel)
            )
        transform = colour.Blur(p=1, sigma=(sigma, sigma))
        found = np.asarray(transform(image, np.random.default_rng(0)), float)
        assert np.abs(found - blurred).mean() < 1.0
        assert np.abs(found - image).mean() > 3.0


def test_blur_draws_sigma_from_its_range() -> None:
    spot = np.zeros((31, 31, 3), np.uint8)
    spot[15, 15] = 255
    rng, blur = np.random.default_rng(0), colour.Blur(p=1)
    peaks = np.array([np.asarray(blur(spot, rng))[15, 15, 0] for _ in range(300)])
    # A Gaussian of sigma s leaves about 255 / (2 pi s^2) of the spot: 10 at s = 2.
    assert peaks.min() in range(9, 13)
    assert peaks.max() > 240
    assert abs(np.mean(peaks < 255 / (2 * np.pi)) - 0.5) < 0.12  # s > 1.05 has half the mass


@pytest.mark.parametrize(
    ("transform", "p"),
    [
        (colour.ColourJitter(0.4, 0.4, 0.4, 0.1, p=0.8), 0.8),
        (colour.Grey(p=0.2), 0.2),
        (colour.Blur(p=0.5, sigma=(1, 2)), 0.5),
    ],
)
def test_probabilities(transform: object, p: float) -> None:
    assert abs(frequency(transform, noise(4, 4)) - p) < 4.5 * (p * (1 - p) / 1000) ** 0.5
