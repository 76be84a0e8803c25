"""A 1x1 convolution and its BatchNorm as one operation, against the two and against float64."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import distributed, models
from cone_jax.models.layers import Layers
from cone_jax.models.pointwise_norm import normalised_product
from cone_jax.models.resnet import Bottleneck, ResNet
from tests.models.test_batch_norm import float64_gradients

pytestmark = pytest.mark.optimised


def draw(shape, features, seed=0):
    rng = np.random.default_rng(seed)
    z = np.maximum(rng.normal(0.3, 1.0, shape), 0).astype(np.float32)
    kernel = rng.normal(0, shape[-1] ** -0.5, (shape[-1], features)).astype(np.float32)
    scale, bias = rng.normal(1, 0.3, features), rng.normal(0, 0.3, features)
    dy = rng.normal(size=(*shape[:-1], features)).astype(np.float32)
    return z, kernel, scale.astype(np.float32), bias.astype(np.float32), dy


@jax.jit
def gradients(z, kernel, scale, bias, dy):
    y, vjp, statistics = jax.vjp(
        lambda *a: (lambda y, *s: (y, s))(*normalised_product(1e-5, *a)),
        z,
        kernel,
        scale,
        bias,
        has_aux=True,
    )
    return y, statistics, vjp(dy)


@settings(max_examples=10, deadline=None)
@given(
    shape=st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(2, 4), st.integers(1, 5)),
    features=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_values_statistics_and_gradients_are_those_of_the_formula(shape, features, seed):
    z, kernel, scale, bias, dy = draw(shape, features, seed)
    z[0, 0, 0] += np.arange(1, shape[-1] + 1)  # never without variance
    y, (mean, var), (dz, d_kernel, d_scale, d_bias) = gradients(z, kernel, scale, bias, dy)
    z64, kernel64 = z.astype(np.float64), kernel.astype(np.float64)
    product = z64 @ kernel64
    expected, d_product, *d_affine = float64_gradients(product, dy, scale, bias)
    pixels = (0, 1, 2)
    # Where a product hardly varies, its variance is a small difference of large numbers.
    tolerance = {"rtol": 2e-3, "atol": 2e-3 * max(1.0, np.abs(d_product).max())}
    np.testing.assert_allclose(mean, product.mean(pixels), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(var, product.var(pixels), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y, expected, **tolerance)
    np.testing.assert_allclose(dz, d_product @ kernel64.T, **tolerance)
    np.testing.assert_allclose(
        d_kernel, np.einsum("bhwi,bhwo->io", z64, d_product), rtol=2e-3, atol=z.size * 1e-4
    )
    np.testing.assert_allclose((d_scale, d_bias), d_affine, rtol=2e-3, atol=z.size * 1e-4)


def test_an_input_without_variance_has_finite_gradients():
    z, kernel, scale, bias, dy = draw((4, 3, 3, 8), 32)
    for constant in (np.zeros_like(z), np.full_like(z, 3.0)):
        y, _, gradient = gradients(constant, kernel, scale, bias, dy)
        np.testing.assert_allclose(y, np.broadcast_to(bias, y.shape), atol=0.1)
        assert all(np.isfinite(g).all() for g in gradient)


def test_eight_devices_see_the_statistics_of_one():
    arrays = draw((16, 3, 3, 8), 32)
    alone = gradients(*arrays)
    mesh = distributed.make_mesh()
    rows, whole = distributed.split(mesh), distributed.replicated(mesh)
    places = (rows, whole, whole, whole, rows)
    spread = gradients(*map(jax.device_put, arrays, places))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), alone, spread)


def traced(name, platform):
    encoder = models.create(name, 10, platform=platform, dtype=jnp.bfloat16)
    variables = models.abstract_variables(encoder, 32)
    images = jax.ShapeDtypeStruct((8, 32, 32, 3), jnp.float32)

    def forward(variables, images):
        return encoder.apply(variables, images, train=True, mutable=["batch_stats"])[0].logits

    return str(jax.make_jaxpr(forward)(variables, images))


def test_a_tpu_takes_every_widening_convolution_together_with_its_norm():
    # Of ResNet-50 the last one of each of the 16 blocks and the shortcuts of the four stages.
    together = {"tpu": 20, models.ANY_PLATFORM: 0, "gpu": 0}
    for platform, count in together.items():
        assert traced("resnet50", platform).count(normalised_product.__name__) == count


def test_it_is_as_near_to_float32_as_the_two_operations_are():
    """Through bottlenecks with and without stride, gradients included."""
    images = jax.random.normal(jax.random.key(1), (8, 16, 16, 3))

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def run(platform, dtype, variables, images):
        make = Layers(dtype, platform=platform)
        network = ResNet(make, stem="cifar", depths=(1, 1), block=Bottleneck, width=8)
        if variables is None:
            return network.init(jax.random.key(0), images, train=False)

        def loss(params):
            collections = {**variables, "params": params}
            features, updated = network.apply(
                collections, images, train=True, mutable=["batch_stats"]
            )
            return jnp.sum(features[:, ::3]), (features, updated)

        gradient, (features, updated) = jax.grad(loss, has_aux=True)(variables["params"])
        return jax.flatten_util.ravel_pytree((features, updated, gradient))[0]

    variables = run("any", jnp.float32, None, images)
    exact = run("any", jnp.float32, variables, images)

    def distance(platform):
        rounded = run(platform, jnp.bfloat16, variables, images)
        return float(jnp.linalg.norm(rounded - exact) / jnp.linalg.norm(exact))

    assert distance("tpu") < 1.2 * distance("any") < 0.5


@pytest.mark.parametrize(
    ("layers", "together"),
    [
        (Layers(jnp.bfloat16, train=True, platform="tpu"), True),
        (Layers(jnp.bfloat16, train=False, platform="tpu"), False),
        (Layers(jnp.float32, train=True, platform="tpu"), False),
        (Layers(jnp.bfloat16, train=True, platform="gpu"), False),
        (Layers(jnp.bfloat16, train=True, platform="tpu", bn_groups=2), False),
        (Layers(jnp.bfloat16, train=True, platform="tpu", bn_frozen=True), False),
    ],
)
def test_only_where_it_is_the_same_and_pays(layers, together):
    assert layers._is_one_operation(64, 256) is together
    assert not layers._is_one_operation(64, 64)
