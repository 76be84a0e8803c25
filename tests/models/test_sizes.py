"""Parameters and multiply-accumulates of every architecture against the published figures."""

import math

import jax
import pytest

from cone_jax import models

# name: feature width, parameters without classifier, parameters of a 1000-class network with
# projection head, billions of multiply-accumulates at 224 px with a plain 1000-class classifier
PUBLISHED = {
    "resnet18": (512, 11_176_512, 14_591_784, 1.8141),
    "resnet34": (512, 21_284_672, 24_699_944, 3.6638),
    "resnet50": (2048, 23_508_032, 33_214_760, 4.0892),
    "resnet101": (2048, 42_500_160, 52_206_888, 7.8014),
    "resnet152": (2048, 58_143_808, 67_850_536, 11.5136),
    "resnet200": (2048, 62_624_832, 72_331_560, 15.0075),
    "regnetx_400mf": (400, 5_495_976 - 401_000, 8_051_496, 0.4138),
    "mobilenet_v2": (1280, 3_504_872 - 1_281_000, 8_784_872, 0.3008),
    "shufflenet_v2": (1024, 2_278_604 - 1_025_000, 6_766_028, 0.1449),
    "deit_tiny": (192, 5_717_416 - 193_000, 7_628_968, 1.254),
}
BN_STATISTICS = {"resnet18": 9_600, "resnet50": 53_120, "resnet200": 176_000}


def count(tree):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_integers(name):
    width, backbone, with_head, _ = PUBLISHED[name]
    variables = models.abstract_variables(models.create(name, 1000), 224)
    assert count(variables["params"]["backbone"]) == backbone
    assert count(variables["params"]) == with_head
    assert variables["params"]["projection"]["linear1"]["kernel"].shape == (width, 4096)
    if name in BN_STATISTICS:
        assert count(variables["batch_stats"]["backbone"]) == BN_STATISTICS[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_multiply_accumulates_are_the_published_figures(name):
    encoder = models.create(name, 1000, projection=None)
    digits = len(str(PUBLISHED[name][3]).partition(".")[2])
    assert round(models.multiply_accumulates(encoder, 224) / 1e9, digits) == PUBLISHED[name][3]


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("resnet18", {}, 11_689_512),
        ("regnetx_400mf", {"last_width": 384}, 5_157_512),
        ("shufflenet_v2", {"classifier": models.Classifier(bias=False)}, 2_277_604),
        ("deit_tiny", {}, 5_717_416),
        # The authors' first unit keeps 24 channels on the left, and 92 on the right.
        ("shufflenet_v2", {"channel_order": "authors"}, 2_278_604 + 34 * (58 - 24)),
    ],
)
def test_plain_classifiers_have_the_published_size(name, options, parameters):
    encoder = models.create(name, 1000, projection=None, **options)
    assert models.parameters(encoder, 224) == parameters


def test_other_resolutions_and_stems():
    encoder = models.create("resnet50", 1000, projection=None)
    assert round(models.multiply_accumulates(encoder, 176) / 1e9, 4) == 2.6081
    narrow = models.create("regnetx_400mf", 1000, projection=None, last_width=384)
    assert round(models.multiply_accumulates(narrow, 224) / 1e9, 4) == 0.3977
    cifar = models.create("resnet50", 100, projection=None, stem="cifar")
    assert models.parameters(cifar, 32) == 23_705_252
    assert round(models.multiply_accumulates(cifar, 32) / 1e9, 4) == 1.2980
    ten = models.create("resnet18", 10, projection=None, stem="cifar")
    assert models.parameters(ten, 32) == 11_173_962


@pytest.mark.parametrize(("name", "blocks"), [("resnet8", 1), ("resnet14", 2), ("resnet20", 3)])
def test_small_resnets_have_the_size_their_formula_gives(name, blocks):
    width = 8

    def block(inputs, planes):
        size = 9 * inputs * planes + 9 * planes * planes + 4 * planes
        return size + (inputs * planes + 2 * planes if inputs != planes else 0)

    expected = 27 * width + 2 * width
    inputs = width
    for planes in (width, 2 * width, 4 * width):
        for _ in range(blocks):
            expected += block(inputs, planes)
            inputs = planes
    expected += 4 * width * 10 + 10
    encoder = models.create(name, 10, stem="cifar", projection=None, width=width)
    assert models.parameters(encoder, 32) == expected
