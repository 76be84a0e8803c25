"""Parameter counts against the published integers, shapes, and PyTorch's initialisation."""

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import models

# name: parameters with a 1000-class classifier on pooled features; CIFAR stem with 10 and 100
# classes; with projection head and 1000 classes.
PUBLISHED = {
    "resnet18": (11_689_512, 11_173_962, 11_220_132, 14_591_784),
    "resnet34": (21_797_672, 21_282_122, 21_328_292, 24_699_944),
    "resnet50": (25_557_032, 23_520_842, 23_705_252, 33_214_760),
    "resnet101": (44_549_160, 42_512_970, 42_697_380, 52_206_888),
    "resnet152": (60_192_808, 58_156_618, 58_341_028, 67_850_536),
    "resnet200": (64_673_832, 62_637_642, 62_822_052, 72_331_560),
}
BN_STATISTICS = {"resnet18": 9_600, "resnet50": 53_120, "resnet200": 176_000}


def abstract_variables(encoder, size=224):
    images = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
    return jax.eval_shape(lambda x: encoder.init(jax.random.key(0), x, train=False), images)


def count(tree):
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_integers(name):
    plain, cifar10, cifar100, with_head = PUBLISHED[name]
    encoder = models.create(name, 1000, projection=None)
    variables = abstract_variables(encoder)
    assert count(variables["params"]) == plain
    if name in BN_STATISTICS:
        assert count(variables["batch_stats"]) == BN_STATISTICS[name]
    assert count(abstract_variables(models.create(name, 1000))["params"]) == with_head
    for classes, expected in ((10, cifar10), (100, cifar100)):
        encoder = models.create(name, classes, stem="cifar", projection=None)
        assert count(abstract_variables(encoder, size=32)["params"]) == expected


@pytest.mark.parametrize(("name", "blocks"), [("resnet8", 1), ("resnet14", 2), ("resnet20", 3)])
@pytest.mark.parametrize("width", [8, 16])
def test_small_resnets_have_the_size_their_formula_gives(name, blocks, width):
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
    assert count(abstract_variables(encoder, size=32)["params"]) == expected


@pytest.mark.parametrize(
    ("stem", "size", "expected"),
    [
        ("imagenet", 224, (56, 28, 14, 7)),
        ("imagenet", 176, (44, 22, 11, 6)),
        ("cifar", 32, (32, 16, 8, 4)),
    ],
)
def test_stage_resolutions(stem, size, expected):
    encoder = models.create("resnet18", 10, stem=stem)
    images = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
    _, state = jax.eval_shape(
        lambda x: encoder.init_with_output(
            jax.random.key(0), x, train=False, capture_intermediates=True
        ),
        images,
    )
    stages = state["intermediates"]["backbone"]
    assert tuple(stages[f"layer{s}_1"]["__call__"][0].shape[1] for s in (1, 2, 3, 4)) == expected


def test_initialisation_has_the_published_distributions():
    encoder = models.create("resnet18", 100, stem="cifar")
    variables = encoder.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), train=False)
    params = flax.traverse_util.flatten_dict(variables["params"], sep="/")
    kernel = params["backbone/layer3_0/conv2/kernel"]
    assert np.std(kernel) == pytest.approx(np.sqrt(2 / (9 * 256)), rel=0.02)
    for path, leaf in params.items():
        if "/bn" in path or "_bn" in path:
            assert np.all(leaf == (1.0 if path.endswith("scale") else 0.0))
    for path, fan_in in (("projection/linear1", 512), ("projection/linear_out", 4096)):
        for part in ("kernel", "bias"):
            values = np.asarray(params[f"{path}/{part}"])
            bound = 1 / np.sqrt(fan_in)
            assert np.abs(values).max() <= bound
            assert np.std(values) == pytest.approx(bound / np.sqrt(3), rel=0.1)
