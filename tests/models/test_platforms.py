"""A network takes the forms of the platform that it is made for, whatever runs the process."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import models
from cone_jax.models import shufflenet

IMAGES = jax.ShapeDtypeStruct((8, 32, 32, 3), jnp.float32)

# Convolutions of the published networks: the network's table, counted by hand.
CONVOLUTIONS = {
    "mobilenet_v2": 52,
    "resnet18": 20,
    "regnetx_400mf": 71,
    "shufflenet_v2": 56,
    "efficientnet_b0": 81,
    "convnext_tiny": 22,
}


def traced(encoder):
    """The training-mode gradient, traced: nothing is compiled."""
    shapes = models.abstract_variables(encoder, 32)
    rngs = {"dropout": jax.random.key(0)}

    def loss(params, batch_stats, images):
        variables = {"params": params, "batch_stats": batch_stats}
        out, _ = encoder.apply(variables, images, train=True, mutable=["batch_stats"], rngs=rngs)
        return out.logits.sum()

    step = jax.jit(jax.grad(loss))
    return step.trace(shapes["params"], shapes["batch_stats"], IMAGES)


def forward_convolutions(encoder):
    variables = models.abstract_variables(encoder, 32)
    run = jax.make_jaxpr(lambda v, x: encoder.apply(v, x, train=False).logits)
    return str(run(variables, IMAGES)).count(" conv_general_dilated")


@pytest.mark.parametrize("platform", ["tpu", "gpu", models.ANY_PLATFORM])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_accelerators_get_one_convolution_of_xla_for_each_of_the_network(name, platform):
    encoder = models.create(name, 10, platform=platform)
    assert forward_convolutions(encoder) == CONVOLUTIONS[name]


def test_a_cpu_gets_its_own_forms():
    assert forward_convolutions(models.create("mobilenet_v2", 10, platform="cpu")) == 1  # the stem


def test_without_a_platform_it_is_that_of_this_process():
    assert models.create("resnet8", 10).make.platform == "cpu"
    assert models.build(models.ModelSpec("resnet8", 10)).make.platform == "cpu"


@pytest.mark.parametrize(("platform", "compiler"), [("tpu", "tpu"), ("gpu", "cuda")])
def test_a_training_step_is_lowered_for_an_accelerator_that_is_not_there(platform, compiler):
    encoder = models.create("resnet18", 10, platform=platform)
    trace = traced(encoder)
    # Each convolution, its gradient for the kernel, and but for the first that for the input.
    assert str(trace.jaxpr).count(" conv_general_dilated") == 3 * CONVOLUTIONS["resnet18"] - 1
    # BatchNorm's sums of a CPU branch, the max-pool's gradient compares.
    assert not re.findall(r" = (cond|optimization_barrier)\[", str(trace.jaxpr))
    program = trace.lower(lowering_platforms=(compiler,)).as_text()
    assert program.count("stablehlo.convolution") == 3 * CONVOLUTIONS["resnet18"] - 1
    assert program.count("stablehlo.select_and_scatter") == 1


def test_the_same_step_for_a_cpu_has_few_convolutions_and_branches():
    jaxpr = str(traced(models.create("resnet18", 10, platform="cpu")).jaxpr)
    assert jaxpr.count(" conv_general_dilated") < 3 * CONVOLUTIONS["resnet18"] - 1
    assert re.findall(r" = cond\[", jaxpr)


def test_variables_are_the_same_for_every_platform():
    for_cpu, for_tpu = (
        models.abstract_variables(models.create("mobilenet_v2", 10, platform=platform), 32)
        for platform in ("cpu", "tpu")
    )
    assert for_cpu == for_tpu


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_shuffle_by_products_moves_every_bit(dtype):
    rng = np.random.default_rng(0)
    left, right, dy = (
        jnp.asarray(rng.normal(size=(2, 3, 3, width)), dtype) for width in (29, 29, 58)
    )
    expected = np.empty((2, 3, 3, 58), np.float32)
    for channel in range(29):
        expected[..., 2 * channel], expected[..., 2 * channel + 1] = (
            left[..., channel],
            right[..., channel],
        )
    by_product = functools.partial(shufflenet.interleave, by_product=True)
    moved, pull_back = jax.vjp(by_product, left, right)
    assert moved.dtype == dtype
    np.testing.assert_array_equal(moved, expected)
    for half, gradient in enumerate(pull_back(dy)):
        np.testing.assert_array_equal(gradient, dy[..., half::2])


def test_a_tpu_moves_channels_by_products_and_nobody_else_does():
    def products(platform):
        encoder = models.create("shufflenet_v2", 2, platform=platform)
        return len(re.findall(r" dot_general\[", str(traced(encoder).jaxpr)))

    # Of each of 16 units: two products, and two for their gradients.
    assert products("tpu") - products("gpu") == 4 * 16
