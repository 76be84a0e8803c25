"""The policy table as published, and which operations are applied how often."""

import collections
import hashlib
import pathlib

import numpy as np
import pytest
from PIL import Image

from cone_jax.data.transforms import auto_augment, pixel_ops

TINY = np.zeros((2, 2, 3), np.uint8)


def test_policy_table_is_the_published_one() -> None:
    file = pathlib.Path(auto_augment.__file__).with_name("auto_augment_policies.csv")
    rows = file.read_text().split()
    assert len(rows) == 1 + 75
    digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()
    assert digest == "fda26b4c9f4159cad7ef08f405202ca51f8f992345218511225044ca620bcca0"


def test_first_and_last_sub_policies() -> None:
    tables = [auto_augment.policy_table(name) for name in ("imagenet", "cifar10", "v0")]
    assert [len(table) for table in tables] == [25, 25, 25]
    imagenet, cifar10, v0 = tables
    assert imagenet[0] == (("Posterize", 0.4, 8), ("Rotate", 0.6, 9))
    assert imagenet[24] == (("Equalize", 0.8, 0), ("Equalize", 0.6, 0))
    assert cifar10[2] == (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3))
    assert cifar10[24] == (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0))
    assert v0[22] == (("Posterize", 0.8, 2), ("Solarize", 0.6, 10))


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Operations and arguments as they are applied."""
    record: list[tuple[str, float]] = []

    def recorder(name: str) -> pixel_ops.PixelOp:
        def op(image: Image.Image, argument: float, fill: pixel_ops.Colour) -> Image.Image:
            record.append((name, argument))
            return image

        return op

    for name in pixel_ops.PIXEL_OPS:
        monkeypatch.setitem(pixel_ops.PIXEL_OPS, name, recorder(name))
    return record


def assert_frequencies(found: collections.Counter, expected: dict[str, float], n: int) -> None:
    """Counts within 4.5 standard deviations of a Poisson of the expected mean."""
    assert set(found) <= set(expected)
    for name, rate in expected.items():
        assert abs(found[name] - n * rate) <= 4.5 * (n * rate) ** 0.5, name


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "v0"])
def test_sub_policies_are_uniform_and_operations_have_their_probability(
    policy: str, applied: list[tuple[str, float]]
) -> None:
    augment, rng = auto_augment.AutoAugment(policy), np.random.default_rng(7)
    for _ in range(6000):
        augment(TINY, rng)
    expected: dict[str, float] = collections.defaultdict(float)
    for sub_policy in auto_augment.policy_table(policy):
        for op, probability, _ in sub_policy:
            expected[op] += probability / 25
    assert_frequencies(collections.Counter(op for op, _ in applied), expected, 6000)


def test_v0_is_in_levels_and_the_others_in_bins(applied: list[tuple[str, float]]) -> None:
    rng = np.random.default_rng(0)
    for policy in ("v0", "imagenet"):
        applied.clear()
        for _ in range(2000):
            auto_augment.AutoAugment(policy)(TINY, rng)
        arguments = collections.defaultdict(set)
        for op, argument in applied:
            arguments[op].add(round(argument, 3))
        if policy == "v0":
            assert arguments["TranslateY"] == {-225.0, 225.0}
            assert arguments["Posterize"] == {2, 0}
            assert arguments["SolarizeAdd"] == {33, 77}
            assert arguments["Color"] >= {0.1, 1.18, 1.72}
        else:
            assert arguments["Posterize"] == {4, 5, 6}
            assert arguments["ShearX"] == {-0.167, 0.167}
            assert arguments["Color"] == {1.0, 0.6, 1.4, 0.8, 1.2, 0.2, 1.8}


GEOMETRIC = ["ShearX", "ShearY", "Rotate"]
COLOUR = ["Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize"]
HISTOGRAM = ["AutoContrast", "Equalize"]
TORCHVISION = [*GEOMETRIC, *COLOUR, *HISTOGRAM, "TranslateX", "TranslateY", "Identity"]
TF = [*TORCHVISION, "Invert", "SolarizeAdd"]  # and Cutout, which is not a pixel operation
TIMM = [*GEOMETRIC, *COLOUR, *HISTOGRAM, "TranslateXRel", "TranslateYRel", "Invert", "SolarizeAdd"]


@pytest.mark.parametrize(
    ("form", "names", "rate"),
    [("torchvision", TORCHVISION, 3 / 14), ("timm", TIMM, 3 / 15 / 2), ("tf", TF, 3 / 17)],
)
def test_rand_augment_chooses_uniformly(
    form: str, names: list[str], rate: float, applied: list[tuple[str, float]]
) -> None:
    augment, rng = auto_augment.RandAugment(n=3, m=10, form=form), np.random.default_rng(11)
    for _ in range(3000):
        augment(TINY, rng)
    counts = collections.Counter(op for op, _ in applied)
    assert set(counts) == set(names)
    assert_frequencies(counts, dict.fromkeys(names, rate), 3000)


def test_torchvision_magnitude_is_a_bin_of_31(applied: list[tuple[str, float]]) -> None:
    augment, rng = auto_augment.RandAugment(), np.random.default_rng(0)
    for _ in range(600):
        augment(TINY, rng)
    assert {round(abs(a), 6) for op, a in applied if op == "Rotate"} == {9.0}
    assert {a for op, a in applied if op == "Posterize"} == {7}


def test_timm_level_is_normal_around_m_and_clipped(applied: list[tuple[str, float]]) -> None:
    rng = np.random.default_rng(0)
    for m, low, high in ((5, 3, 7), (12, 10, 10)):
        applied.clear()
        augment = auto_augment.RandAugment(n=2, m=m, form="timm", std=0.5)
        for _ in range(4000):
            augment(TINY, rng)
        levels = [abs(argument) / 3 for op, argument in applied if op == "Rotate"]
        assert len(levels) > 200
        assert min(levels) >= low
        assert max(levels) <= high
        if m == 5:
            assert abs(np.mean(levels) - 5) < 0.15
            assert abs(np.std(levels) - 0.5) < 0.1


def test_tf_cutout_is_at_most_80_pixels_a_side() -> None:
    augment, rng = auto_augment.RandAugment(n=1, m=10, form="tf", fill=7), np.random.default_rng(0)
    white = np.full((200, 200, 3), 255, np.uint8)
    # Of the operations, only the geometric ones and Cutout leave the fill colour behind, and
    # only Cutout returns an array.
    holes = [augment(white, rng) for _ in range(400)]
    holes = [array == 7 for array in holes if isinstance(array, np.ndarray) and (array == 7).any()]
    assert len(holes) > 8
    for hole in holes:
        rows, columns = np.flatnonzero(hole.any((1, 2))), np.flatnonzero(hole.any((0, 2)))
        assert hole.sum() == 3 * len(rows) * len(columns)
        assert 40 <= len(rows) <= 80
    assert max(hole.sum() for hole in holes) == 3 * 80 * 80


def test_fill_reaches_what_rotation_uncovers() -> None:
    white = np.full((64, 64, 3), 255, np.uint8)
    augment, rng = auto_augment.RandAugment(n=4, m=30, fill=(1, 2, 3)), np.random.default_rng(0)
    corners = {tuple(np.asarray(augment(white, rng))[0, 0]) for _ in range(300)}
    assert (1, 2, 3) in corners
