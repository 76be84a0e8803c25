"""Each corruption against pixels that can be worked out another way."""

import colorsys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from cone_jax.data import transforms
from cone_jax.data.decode import DamagedImage
from cone_jax.data.sources.array import ArraySource
from cone_jax.evaluation.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    CorruptedSource,
    blur,
    corrupt,
    digital,
    filters,
    weather,
)
from cone_jax.evaluation.corruptions.parameters import PARAMETERS

# Of these the benchmark's own numbers do not grow in every step: elastic trades the affine map
# for ripples, glass its reach for repetitions; snow, frost, fog and motion change shape, too.
NOT_MONOTONE = ("elastic_transform", "glass_blur", "snow", "frost", "fog", "motion_blur")


class Scripted:
    """A generator that gives what it is told to."""

    def __init__(self, value):
        self.value = value

    def uniform(self, low, high, size=None):
        return self.value if size is None else np.broadcast_to(self.value, size)


def flat(value=128, size=100):
    return np.full((size, size, 3), value, np.uint8)


def scene(seed, size):
    """Smooth shapes, edges and texture, as photographs have."""
    rng = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(rng.normal(size=(size, size, 3)), (size / 16, size / 16, 0))
    smooth = (smooth - smooth.min()) / np.ptp(smooth)
    smooth[size // 4 : size // 2, size // 3 :] *= 0.4
    smooth = np.clip(smooth + rng.normal(scale=0.08, size=smooth.shape), 0, 1)
    return np.round(200 * smooth + 20).astype(np.uint8)


def run(image, corruption, severity, seed=0, parameters="imagenet"):
    return corrupt(image, corruption, severity, np.random.default_rng(seed), parameters)


def test_gaussian_noise_has_its_deviation():
    noisy = run(flat(), "gaussian_noise", 1).astype(float)
    assert noisy.mean() == pytest.approx(128, abs=0.6)
    assert noisy.std() == pytest.approx(0.08 * 255, rel=0.02)


def test_shot_noise_counts_photons():
    noisy = run(flat(), "shot_noise", 1)
    allowed = np.round(np.arange(61) * 255 / 60)
    assert set(np.unique(noisy)) <= set(allowed)
    # A Poisson variable has its mean as its variance.
    assert noisy.std() == pytest.approx(255 * np.sqrt(128 / 255 / 60), rel=0.03)
    assert not run(flat(0), "shot_noise", 5).any()


def test_impulse_noise_replaces_a_share_by_black_and_white():
    noisy = run(flat(), "impulse_noise", 5)
    changed = noisy != 128
    assert changed.mean() == pytest.approx(0.27, abs=0.01)
    assert set(np.unique(noisy[changed])) == {0, 255}
    assert (noisy[changed] == 255).mean() == pytest.approx(0.5, abs=0.02)


def test_defocus_turns_a_point_into_a_disc():
    point = np.zeros((31, 31, 3))
    point[15, 15] = 1.0
    disc = blur.defocus_blur(point, (3, 0.1), np.random.default_rng(0))
    row, column = np.mgrid[-15:16, -15:16]
    inside = row**2 + column**2 <= 9  # 29 pixels
    np.testing.assert_allclose(disc[inside], 1 / 29, atol=1e-9)
    np.testing.assert_allclose(disc[~inside], 0, atol=1e-9)


@pytest.mark.parametrize("lens", [(0.5, 0.6), (4, 0.5), (10, 0.5)])
def test_defocus_mirrors_the_picture_at_its_border(lens):
    radius, softness = lens
    image = np.random.default_rng(0).random((24, 17, 3))
    frame = max(8, radius)  # in which the benchmark softens the disc, mirrored at its border
    row, column = np.mgrid[-frame : frame + 1, -frame : frame + 1]
    disc = (row**2 + column**2 <= radius**2).astype(float)
    tap = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    weight = np.exp(-(tap**2) / (2 * softness**2))
    soft = np.outer(weight, weight) / weight.sum() ** 2
    kernel = ndimage.convolve(disc / disc.sum(), soft, mode="mirror")
    expected = np.stack(
        [ndimage.correlate(image[..., c], kernel, mode="mirror") for c in range(3)], -1
    )
    np.testing.assert_allclose(
        blur.defocus_blur(image, lens, np.random.default_rng(0)), expected, atol=1e-9
    )


@pytest.mark.parametrize(("severity", "total"), [(1, 1), (2, 1), (3, 1), (4, 1.013), (5, 1.011)])
def test_defocus_brightens_as_the_benchmark_does(severity, total):
    """What OpenCV's kernels of the reference implementation sum to."""
    grey = blur.defocus_blur(
        np.full((40, 40, 3), 0.5), PARAMETERS["imagenet"]["defocus_blur"][severity - 1], None
    )
    np.testing.assert_allclose(grey, 0.5 * total, atol=3e-4)


@settings(deadline=None, max_examples=15)
@given(st.integers(3, 14), st.integers(3, 14), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_glass_takes_one_pixel_after_the_other(height, width, reach, seed):
    image = np.arange(height * width * 3, dtype=float).reshape(height, width, 3)
    expected = image.copy()
    rng = np.random.default_rng(seed)
    rows = range(reach + 1, height - reach + 1)
    columns = range(reach + 1, width - reach + 1)
    if len(rows) and len(columns):
        offsets = rng.integers(-reach, reach, size=(2, len(rows), len(columns)))
        for row in reversed(rows):
            for column in reversed(columns):
                down, right = offsets[:, row - rows[0], column - columns[0]]
                expected[row, column] = expected[row + down, column + right].copy()
    got = blur._scatter(image, reach, np.random.default_rng(seed))
    np.testing.assert_array_equal(got, expected)


def test_motion_smears_a_point_backwards_along_its_angle():
    point = np.zeros((21, 21, 3))
    point[10, 10] = 1.0
    weight = np.exp(-(np.arange(7) ** 2) / (2 * 2.0**2))
    weight /= weight.sum()
    level = blur.motion_blur(point, (3, 2.0), Scripted(0.0))
    np.testing.assert_allclose(level[10, 10:3:-1, 1], weight)
    assert level[..., 1].sum() == pytest.approx(1.0)
    down = filters.motion(point, 3, 2.0, angle=90.0)
    np.testing.assert_allclose(down[10:3:-1, 10, 1], weight)
    np.testing.assert_allclose(filters.motion(np.full((5, 4), 0.3), 9, 2.5, 30.0), 0.3)


@settings(deadline=None, max_examples=20)
@given(st.integers(5, 40), st.integers(5, 40), st.floats(1.0, 4.5), st.integers(0, 2**32 - 1))
@example(height=5, width=39, factor=1.78125, seed=0)
def test_enlargement_is_scipys(height, width, factor, seed):
    image = np.random.default_rng(seed).random((height, width, 2))
    inside = [int(np.ceil(length / factor)) for length in (height, width)]
    top, left = (height - inside[0]) // 2, (width - inside[1]) // 2
    cut = image[top : top + inside[0], left : left + inside[1]]
    # SciPy's own default makes the last line black where its place is rounded beyond the end.
    zoomed = ndimage.zoom(cut, (factor, factor, 1), order=1, mode="nearest")
    top, left = (zoomed.shape[0] - height) // 2, (zoomed.shape[1] - width) // 2
    expected = zoomed[top : top + height, left : left + width]
    np.testing.assert_allclose(filters.enlarge_centre(image, factor), expected, atol=1e-6)


def test_zoom_blur_is_the_mean_of_enlargements():
    # Seven factors, the last 1.06: the benchmark counts by NumPy's arange, whose end is rounded.
    image = scene(0, 40)
    layers = [image / 255, *(filters.enlarge_centre(image / 255, 1 + 0.01 * i) for i in range(7))]
    expected = np.round(np.mean(layers, axis=0) * 255)
    np.testing.assert_array_equal(run(image, "zoom_blur", 1, parameters="cifar"), expected)


def test_snow_whitens_where_no_flake_falls():
    colour = np.array([0.2, 0.4, 0.6])
    image = np.tile(colour, (6, 5, 1))
    never = (-10.0, 0.0, 1.0, 0.5, 8, 3, 0.95)
    grey = 0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.6
    expected = 0.95 * colour + 0.05 * np.maximum(colour, 1.5 * grey + 0.5)
    got = weather.snow(image, never, np.random.default_rng(0))
    np.testing.assert_allclose(got, np.tile(expected, (6, 5, 1)))
    flakes = weather.snow(
        np.zeros((64, 64, 3)), (0.3, 0.3, 1.25, 0.65, 14, 12, 1.0), np.random.default_rng(0)
    )
    assert (flakes > 0.05).any()
    np.testing.assert_allclose(flakes, np.rot90(flakes, 2))  # each flake has its opposite


def test_fog_keeps_white_and_lifts_black():
    image = np.zeros((40, 60, 3), np.uint8)
    image[:, 30:] = 255
    foggy = run(image, "fog", 1) / 255
    density = 1.5
    assert foggy[:, 30:].min() >= 1 / (1 + density) - 0.01
    cloud = foggy * (1 + density) - image / 255  # what the picture's own light leaves, times 1.5
    assert 0.5 < np.ptp(cloud) <= density + 0.01
    assert foggy[:, :30].max() <= density / (1 + density) + 0.01
    assert foggy.max() <= 1.0
    assert not run(flat(0), "fog", 5).any()  # nothing shines, so there is no fog to see


def test_plasma_is_diamond_square():
    side, decay = 8, 2.0
    height = {(0, 0): 0.0}
    step, scale = side, 100.0
    while step >= 2:
        half = step // 2

        def fill(points, neighbours, scale=scale):
            for row, column in points:
                around = [height[(row + r) % side, (column + c) % side] for r, c in neighbours]
                height[row, column] = sum(around) / 4 + scale * 0.5

        grid = range(0, side, step)
        diagonal = [(r, c) for r in (-half, half) for c in (-half, half)]
        straight = [(-half, 0), (half, 0), (0, -half), (0, half)]
        fill([(r + half, c + half) for r in grid for c in grid], diagonal)
        middles = [(r, c + half) for r in grid for c in grid]
        middles += [(r + half, c) for r in grid for c in grid]
        fill(middles, straight)
        step, scale = half, scale / decay
    expected = np.array([[height[r, c] for c in range(side)] for r in range(side)])
    expected = (expected - expected.min()) / np.ptp(expected)
    np.testing.assert_allclose(filters.plasma(side, decay, Scripted(0.5)), expected)


def test_brightness_raises_the_value_of_hsv():
    image = np.random.default_rng(0).integers(0, 256, (7, 9, 3)).astype(np.uint8)
    image[0, 0] = 0
    expected = np.empty_like(image)
    for place in np.ndindex(7, 9):
        hue, saturation, value = colorsys.rgb_to_hsv(*(image[place] / 255))
        rgb = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.3, 1.0))
        expected[place] = np.round(np.array(rgb) * 255)
    np.testing.assert_allclose(run(image, "brightness", 3), expected, atol=1)  # halves round apart
    assert (run(image, "brightness", 3) == expected).mean() > 0.97


def test_contrast_shrinks_towards_the_mean_of_a_channel():
    image = np.zeros((2, 2, 3), np.uint8)
    image[0] = (200, 100, 50)  # means 100, 50, 25
    expected = np.round([[150, 75, 37.5], [50, 25, 12.5]])
    got = run(image, "contrast", 2, parameters="cifar")  # keeps a half
    np.testing.assert_allclose(got[:, 0], expected, atol=1)
    np.testing.assert_array_equal(got[:, 0], got[:, 1])


def test_elastic_moves_three_corners_where_it_says():
    size = 60
    row, column = np.mgrid[:size, :size].astype(float)
    image = np.stack([row, column, row + column], -1)
    move = np.array([[2.0, -1.0], [0.5, 3.0], [-2.0, 1.5]])
    moved = digital._random_affine(image, 0.0, Scripted(move))
    for (r, c), (down, right) in zip([(50, 50), (10, 50), (10, 10)], move, strict=True):
        at = np.array([[[r + down]], [[c + right]]])
        np.testing.assert_allclose(
            digital._sample(moved, at, "mirror")[0, 0, :2], (r, c), atol=0.05
        )


def test_elastic_without_strength_is_nothing():
    image = scene(0, 30) / 255
    got = digital.elastic_transform(image, (0.0, 0.0, 0.0), np.random.default_rng(0))
    np.testing.assert_allclose(got, image, atol=1e-9)
    rippled = digital.elastic_transform(image, (0.1, 0.04, 0.0), np.random.default_rng(0))
    assert np.abs(rippled - image).mean() > 0.01


def test_pixelate_averages_blocks():
    image = np.arange(64, dtype=np.uint8).reshape(8, 8, 1).repeat(3, axis=2) * 2
    blocks = image.reshape(4, 2, 4, 2, 3).mean(axis=(1, 3))
    expected = blocks.repeat(2, axis=0).repeat(2, axis=1)
    np.testing.assert_allclose(run(image, "pixelate", 2), expected, atol=1)


def test_jpeg_has_the_quality_asked_for(tmp_path):
    image = scene(0, 48)
    Image.fromarray(image).save(tmp_path / "a.jpg", quality=18)
    expected = np.asarray(Image.open(tmp_path / "a.jpg"))
    np.testing.assert_array_equal(run(image, "jpeg_compression", 2), expected)


@pytest.mark.parametrize(("size", "parameters"), [(96, "imagenet"), (32, "cifar")])
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_higher_severity_changes_more(corruption, size, parameters):
    images = [scene(seed, size) for seed in range(3)]
    distances = [
        np.mean(
            [
                np.abs(run(image, corruption, severity, 1, parameters).astype(float) - image)
                for image in images
            ]
        )
        for severity in SEVERITIES
    ]
    assert min(distances) > 0
    if corruption not in NOT_MONOTONE:
        assert (np.diff(distances) > 0).all(), distances
    elif corruption != "elastic_transform":
        assert distances[-1] > distances[0], distances


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(8, 8, 3), (37, 70, 3), (4, 5, 3), (1, 1, 3)])
def test_any_size_keeps_its_size(corruption, shape):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    before = image.copy()
    for severity in (1, 5):
        got = corrupt(image, corruption, severity, np.random.default_rng(0))
        assert got.shape == shape
        assert got.dtype == np.uint8
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("corruption", ["gaussian_noise", "glass_blur", "snow", "frost", "fog"])
def test_a_picture_is_a_function_of_seed_record_corruption_and_severity(corruption):
    pictures = np.stack([scene(0, 32)] * 3)
    source = ArraySource(pictures, np.arange(3), ["a", "b", "c"])

    def made(record, **changes):
        fields = {"corruption": corruption, "severity": 3, "seed": 0} | changes
        return CorruptedSource(source, transforms.parse(()), **fields)[record].image.tobytes()

    assert made(0) == made(0)
    different = {made(0), made(1), made(0, seed=1), made(0, severity=4)}
    assert len(different) == 4


def test_a_record_that_cannot_be_read_is_black_or_left_out():
    class Damaged(ArraySource):
        def __getitem__(self, index):
            if index == 1:
                raise DamagedImage("gone")
            return super().__getitem__(index)._replace(image=b"no picture")

    source = Damaged(flat(size=8)[None].repeat(2, axis=0), np.array([0, 0]), ["a"])
    corrupted = CorruptedSource(source, transforms.parse(("resize(8)",)), "contrast", 1)
    assert corrupted[0].label == 0
    assert not corrupted[0].image.any()
    assert corrupted[1].label == -1
