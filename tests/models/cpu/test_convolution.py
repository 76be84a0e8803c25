"""The forms for CPUs against XLA's own convolution, values and gradients, and against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax.models.cpu import layers

pytestmark = pytest.mark.optimised

plain = functools.partial(jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))

# kernel size, input and output channels, groups
KINDS = {
    "pointwise": (1, 6, 4, 1),
    "depthwise": (3, 6, 6, 6),
    "grouped": (3, 6, 4, 2),
    "dense": (3, 6, 4, 1),
}


def operands(kind):
    side, inputs, outputs, groups = KINDS[kind]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 5, inputs)).astype(np.float32)  # an even and an odd size
    kernel = rng.normal(size=(side, side, inputs // groups, outputs)).astype(np.float32)
    return x, kernel, ((side // 2,) * 2,) * 2, groups


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5))
def run(convolve, x, kernel, padding, groups, stride):
    """The result, and the gradients of x and kernel for one and the same cotangent."""

    def apply(x, kernel):
        return convolve(x, kernel, (stride, stride), padding, feature_group_count=groups)

    y, vjp = jax.vjp(apply, x, kernel)
    cotangent = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
    return y, *vjp(cotangent.astype(y.dtype))


def float64_convolution(x, kernel, padding, groups, stride):
    """A loop over output places."""
    x = np.pad(np.asarray(x, np.float64), ((0, 0), *padding, (0, 0)))
    side, _, inputs, outputs = kernel.shape
    height, width = ((n - side) // stride + 1 for n in x.shape[1:3])
    y = np.zeros((x.shape[0], height, width, outputs))
    for group in range(groups):
        ours = slice(group * outputs // groups, (group + 1) * outputs // groups)
        channels = slice(group * inputs, (group + 1) * inputs)
        for i in range(height):
            for j in range(width):
                rows, columns = i * stride, j * stride
                patch = x[:, rows : rows + side, columns : columns + side, channels]
                y[:, i, j, ours] = np.tensordot(patch, kernel[..., ours], 3)
    return y


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_is_the_same_convolution(kind, stride):
    x, kernel, padding, groups = operands(kind)
    ours = run(layers.convolve, x, kernel, padding, groups, stride)
    stock = run(plain, x, kernel, padding, groups, stride)
    for one, other in zip(ours, stock, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    exact = float64_convolution(x, kernel, padding, groups, stride)
    np.testing.assert_allclose(ours[0], exact, atol=1e-5)


@pytest.mark.parametrize("kind", ["depthwise", "grouped"])
def test_bfloat16_sums_are_taken_in_float32(kind):
    x, kernel, padding, groups = operands(kind)
    low = [jnp.asarray(a, jnp.bfloat16) for a in (x, kernel)]
    y, dx, d_kernel = run(layers.convolve, *low, padding, groups, 1)
    assert y.dtype == dx.dtype == d_kernel.dtype == jnp.bfloat16
    exact = float64_convolution(*(np.asarray(a, np.float32) for a in low), padding, groups, 1)
    # One rounding of the result: half a unit in the eighth bit.
    np.testing.assert_allclose(y.astype(np.float32), exact, rtol=2**-8, atol=1e-3)


# Whole tiles and cut ones, fewer outputs than inputs and more; all images at once, and in groups.
@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("shape", [(4, 8, 8, 6, 4), (6, 6, 13, 2, 7)])
def test_winograd_is_the_same_convolution(shape, in_groups, monkeypatch):
    batch, height, width, inputs, outputs = shape
    if in_groups:
        monkeypatch.setattr(jax, "device_count", lambda: 1)
        monkeypatch.setattr(layers, "GROUP", 7_000)  # of two images and of three
        monkeypatch.setattr(layers, "GRADIENT_GROUP", 1)
        x = jnp.zeros((batch, height, width, inputs))
        assert len(layers._in_groups(x, layers.GROUP)) > 1
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, height, width, inputs)).astype(np.float32)
    kernel = rng.normal(size=(3, 3, inputs, outputs)).astype(np.float32)
    padding = ((1, 1), (1, 1))

    def by_winograd(x, kernel, *_, **__):
        return layers.winograd(x, kernel)

    ours = run(by_winograd, x, kernel, padding, 1, 1)
    stock = run(plain, x, kernel, padding, 1, 1)
    for one, other in zip(ours, stock, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())
    exact = float64_convolution(x, kernel, padding, 1, 1)
    np.testing.assert_allclose(ours[0], exact, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("height", "width"), [(2, 2), (1, 1), (2, 1), (1, 4), (4, 3)])
def test_of_few_places_one_product_is_the_same_convolution(height, width, stride):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, height, width, 64)).astype(np.float32)
    kernel = rng.normal(size=(3, 3, 64, 65)).astype(np.float32)
    padding = ((1, 1), (1, 1))
    ours = run(layers.convolve, x, kernel, padding, 1, stride)
    stock = run(plain, x, kernel, padding, 1, stride)
    for one, other in zip(ours, stock, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())
    exact = float64_convolution(x, kernel, padding, 1, stride)
    np.testing.assert_allclose(ours[0], exact, atol=1e-5 * np.abs(exact).max())


def test_groups_of_images_fit_into_the_cache(monkeypatch):
    def images(batch, channels, most):
        x = jnp.zeros((batch, 6, 8, channels))  # four tiles of 36 places an image
        groups = layers._in_groups(x, most)
        np.testing.assert_array_equal(groups.reshape(x.shape), x)
        return groups.shape[1]

    of_image = 4 * 36 * 64 * 4
    assert images(12, 64, 5 * of_image) == 12  # on eight devices
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert images(12, 64, 12 * of_image) == 12
    assert images(12, 64, 12 * of_image - 1) == 6
    assert images(12, 64, 5 * of_image) == 4  # groups are of the same size
    assert images(7, 64, 5 * of_image) == 1
    assert images(12, 64, 1) == 1
    assert images(12, 128, 1) == 12


def test_other_forms_are_taken_where_they_pay_only():
    def taken(*, side=8, batch=8, inputs=128, outputs=128, kernel=3, stride=1, dtype=jnp.float32):
        x = jax.ShapeDtypeStruct((batch, side, side, inputs), dtype)
        weights = jax.ShapeDtypeStruct((kernel, kernel, inputs, outputs), dtype)
        padding = ((kernel // 2,) * 2,) * 2
        apply = functools.partial(
            layers.convolve, strides=(stride, stride), padding=padding, feature_group_count=1
        )
        return " conv_general_dilated" not in str(jax.make_jaxpr(apply)(x, weights))

    assert taken()
    assert taken(side=7)
    assert not taken(side=5)  # three fifths of its tiles would be padding
    assert taken(side=2)
    assert taken(side=4, stride=2)
    assert not taken(side=5, stride=2)
    assert not taken(side=3, batch=7)  # nine places
    assert not taken(batch=7)  # too few tiles
    assert not taken(side=2, dtype=jnp.bfloat16)
    assert not taken(side=2, inputs=63)
    assert taken(inputs=64, outputs=64)
    assert not taken(inputs=63)
    assert not taken(outputs=63)
    assert not taken(kernel=5)
    assert not taken(stride=2)
    assert not taken(dtype=jnp.bfloat16)  # its transforms would round too much away
