"""The published magnitude tables, value by value."""

import numpy as np
import pytest

from cone_jax.data.transforms import magnitudes

SIZE = (331, 662)  # width, height


def both_signs(values: list[float]) -> None:
    """Of many draws, half have the one sign."""
    assert abs(sum(value > 0 for value in values) - len(values) / 2) < 2.5 * len(values) ** 0.5


def bins(op: str, count: int = 10) -> list[float]:
    rng = np.random.default_rng(0)
    return [magnitudes.from_bin(op, index, count, SIZE, rng) for index in range(count)]


@pytest.mark.parametrize("op", ["ShearX", "ShearY"])
def test_shear_bins(op: str) -> None:
    np.testing.assert_allclose(np.abs(bins(op)), np.linspace(0, 0.3, 10))


def test_translate_bins_are_a_fraction_of_their_side_in_whole_pixels() -> None:
    assert np.abs(bins("TranslateX")).tolist() == [0, 16, 33, 50, 66, 83, 100, 116, 133, 150]
    assert np.abs(bins("TranslateY")).tolist() == [0, 33, 66, 100, 133, 166, 200, 233, 266, 300]


def test_rotate_bins() -> None:
    np.testing.assert_allclose(np.abs(bins("Rotate")), np.linspace(0, 30, 10))
    np.testing.assert_allclose(np.abs(bins("Rotate", 31)), np.arange(31))


@pytest.mark.parametrize("op", ["Brightness", "Color", "Contrast", "Sharpness"])
def test_blend_bins(op: str) -> None:
    np.testing.assert_allclose(np.abs(np.array(bins(op)) - 1), np.linspace(0, 0.9, 10), atol=1e-12)


def test_posterize_bins() -> None:
    assert bins("Posterize") == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    runs = [8] * 4 + [7] * 8 + [6] * 7 + [5] * 8 + [4] * 4
    assert bins("Posterize", 31) == runs


def test_solarize_bins() -> None:
    np.testing.assert_allclose(bins("Solarize"), np.linspace(255, 0, 10))


def test_signs_are_even() -> None:
    rng = np.random.default_rng(5)
    for op in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"):
        both_signs([magnitudes.from_bin(op, 9, 10, SIZE, rng) for _ in range(400)])
        levels = [magnitudes.from_level(op, 9, SIZE, rng, translate_pixels=250) for _ in range(400)]
        both_signs(levels)
    both_signs([magnitudes.from_bin("Color", 9, 10, SIZE, rng) - 1 for _ in range(400)])


@pytest.mark.parametrize(
    ("op", "options", "at_0", "at_5", "at_10"),
    [
        ("ShearX", {}, 0, 0.15, 0.3),
        ("ShearY", {}, 0, 0.15, 0.3),
        ("Rotate", {}, 0, 15, 30),
        ("TranslateX", {"translate_pixels": 250}, 0, 125, 250),
        ("TranslateY", {"translate_pixels": 100}, 0, 50, 100),
        ("TranslateXRel", {}, 0, 0.225 * 331, 0.45 * 331),
        ("TranslateYRel", {}, 0, 0.225 * 662, 0.45 * 662),
        ("Color", {}, 0.1, 1.0, 1.9),
        ("Contrast", {}, 0.1, 1.0, 1.9),
        ("Brightness", {}, 0.1, 1.0, 1.9),
        ("Sharpness", {}, 0.1, 1.0, 1.9),
        ("Posterize", {}, 0, 2, 4),
        ("Posterize", {"increasing": True}, 4, 2, 0),
        ("Solarize", {}, 0, 128, 256),
        ("Solarize", {"increasing": True}, 256, 128, 0),
        ("SolarizeAdd", {}, 0, 55, 110),
        ("AutoContrast", {}, 0, 0, 0),
        ("Equalize", {}, 0, 0, 0),
        ("Invert", {}, 0, 0, 0),
    ],
)
def test_levels(op: str, options: dict[str, float], at_0: float, at_5: float, at_10: float) -> None:
    rng = np.random.default_rng(0)
    found = [abs(magnitudes.from_level(op, level, SIZE, rng, **options)) for level in (0, 5, 10)]
    np.testing.assert_allclose(found, [at_0, at_5, at_10])


def test_increasing_blends_move_away_from_one_either_way() -> None:
    rng = np.random.default_rng(0)
    factors = {
        round(magnitudes.from_level("Color", level, SIZE, rng, increasing=True), 9)
        for level in (5, 10)
        for _ in range(40)
    }
    assert factors == {0.55, 1.45, 0.1, 1.9}


def test_truncation_of_fractional_levels() -> None:
    rng = np.random.default_rng(0)
    assert magnitudes.from_level("Posterize", 6, SIZE, rng) == 2
    assert magnitudes.from_level("Posterize", 2, SIZE, rng) == 0
    assert magnitudes.from_level("Posterize", 9, SIZE, rng, increasing=True) == 1
    assert magnitudes.from_level("Solarize", 3, SIZE, rng) == 76
    assert magnitudes.from_level("SolarizeAdd", 7, SIZE, rng) == 77
