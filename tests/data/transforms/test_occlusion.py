"""Cutout and random erasing: which pixels, how often, and with what."""

import numpy as np
from PIL import Image

from cone_jax.data.transforms import occlusion

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def rectangle(changed: np.ndarray) -> tuple[int, int]:
    """Height and width of the changed pixels, which must form a full rectangle."""
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    assert changed.sum() == len(rows) * len(columns)
    assert np.ptp(rows) == len(rows) - 1
    return len(rows), len(columns)


def test_cutout_is_a_black_square_around_a_uniform_pixel() -> None:
    image = np.full((32, 32, 3), 200, np.uint8)
    rng, cutout = np.random.default_rng(0), occlusion.Cutout(16)
    heights = []
    for _ in range(2000):
        result = cutout(image, rng)
        assert set(np.unique(result)) == {0, 200}
        heights.append(rectangle((result == 0).all(2))[0])
    expected = [min(y + 8, 32) - max(y - 8, 0) for y in range(32)]
    for height in range(8, 17):
        rate = expected.count(height) / 32
        assert abs(heights.count(height) - 2000 * rate) < 4.5 * (2000 * rate) ** 0.5
    assert (image == 200).all()


def test_cutout_with_several_holes_and_a_colour() -> None:
    image = Image.new("RGB", (64, 64), "white")
    result = occlusion.Cutout(4, holes=5, fill=(1, 2, 3))(image, np.random.default_rng(0))
    hidden = (result == (1, 2, 3)).all(2)
    assert 16 < hidden.sum() <= 80


def test_erased_rectangles_follow_the_rule() -> None:
    image = np.full((100, 80, 3), 255, np.uint8)
    rng, erasing = np.random.default_rng(0), occlusion.RandomErasing(p=1, fill="mean")
    sides = np.array([rectangle((erasing(image, rng) != 255).all(2)) for _ in range(2000)])
    area, log_ratio = sides.prod(1) / 8000, np.log(sides[:, 0] / sides[:, 1])
    assert area.min() > 0.015
    assert area.max() < 0.345
    assert abs(log_ratio).max() < np.log(3.33) + 0.15

    # The same rule as a loop: area, then ratio, drawn again while the rectangle does not fit.
    random, reference = np.random.RandomState(1), []
    while len(reference) < 2000:
        target = 8000 * random.uniform(0.02, 1 / 3)
        ratio = np.exp(random.uniform(np.log(0.3), np.log(3.33)))
        h, w = round((target * ratio) ** 0.5), round((target / ratio) ** 0.5)
        if h < 100 and w < 80:
            reference.append((h, w))
    np.testing.assert_allclose(sides.mean(0), np.mean(reference, axis=0), rtol=0.05)
    np.testing.assert_allclose(sides.std(0), np.std(reference, axis=0), rtol=0.07)


def test_zero_after_normalisation_is_the_mean_colour() -> None:
    image = np.zeros((40, 40, 3), np.uint8)
    result = occlusion.RandomErasing(p=1, fill="mean")(image, np.random.default_rng(0))
    erased = result[result.any(2)]
    assert np.unique(erased, axis=0).tolist() == [[124, 116, 104]]
    normalised = (erased / 255 - MEAN) / STD
    assert np.abs(normalised).max() < 0.009


def test_noise_is_standard_normal_after_normalisation_as_far_as_uint8_reaches() -> None:
    image = np.full((300, 300, 3), 255, np.uint8)
    transform = occlusion.RandomErasing(p=1, area=(0.3, 0.33))
    result = transform(image, np.random.default_rng(0))
    rows = np.flatnonzero((result != 255).any((1, 2)))
    columns = np.flatnonzero((result != 255).any((0, 2)))
    patch = result[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    normalised = (patch / 255 - MEAN) / STD
    normal = np.random.RandomState(0).standard_normal((200_000, 3))
    expected = np.clip(normal, (0 - MEAN) / STD, (1 - MEAN) / STD)
    np.testing.assert_allclose(normalised.mean((0, 1)), expected.mean(0), atol=0.03)
    np.testing.assert_allclose(normalised.std((0, 1)), expected.std(0), atol=0.03)
    assert len(np.unique(patch.reshape(-1, 3), axis=0)) > 0.9 * patch.size / 3


def test_statistics_of_the_data_set_are_used() -> None:
    grey = (0.5, 0.5, 0.5)
    transform = occlusion.RandomErasing(p=1, fill="mean", mean=grey)
    result = transform(np.zeros((9, 9, 3), np.uint8), np.random.default_rng(0))
    assert set(np.unique(result)) == {0, 128}


def test_erasing_probability_and_a_picture_too_small_to_erase() -> None:
    image = np.full((20, 20, 3), 255, np.uint8)
    rng, erasing = np.random.default_rng(3), occlusion.RandomErasing(fill="mean")
    erased = sum(bool((erasing(image, rng) != 255).any()) for _ in range(2000))
    assert abs(erased - 500) < 4.5 * (2000 * 0.25 * 0.75) ** 0.5
    pixel = np.full((1, 1, 3), 9, np.uint8)
    assert occlusion.RandomErasing(p=1)(pixel, rng).tolist() == pixel.tolist()
