"""Convolutions in the form that XLA:CPU computes fastest; the numbers are the same.

XLA:CPU is slow on four kinds that these networks are made of, so these are written differently.
A 1x1 convolution is a matrix product. A depthwise one is a sum of shifted multiplications. A
grouped one keeps XLA's form but not XLA's gradient for the kernel, which is one matrix product per
tap. A 3x3 one of many channels is Winograd's, with a quarter of the products. For the others
`lax.conv_general_dilated` is best.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from cone_jax.models.cpu import winograd

Padding = Sequence[tuple[int, int]]

# XLA's own convolution.
_plain = functools.partial(lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Padding,
    *,
    feature_group_count: int = 1,
    **_: Any,
) -> jax.Array:
    """x [B, H, W, I], kernel [h, w, I / groups, O] -> [B, H', W', O].

    The signature is the one that `flax.linen.Conv` asks of its `conv_general_dilated`.
    """
    unpadded = all(pad == (0, 0) for pad in padding)
    if kernel.shape[:2] == (1, 1) and feature_group_count == 1 and unpadded:
        return _pointwise(x, kernel, strides)
    if kernel.shape[2] == 1 and feature_group_count == x.shape[-1] == kernel.shape[3]:
        return _depthwise(x, kernel, strides, padding)
    if feature_group_count > 1:
        return _grouped(tuple(strides), tuple(padding), feature_group_count, x, kernel)
    if winograd.suits(x, kernel, strides, padding):
        return winograd.convolve(x, kernel)
    return _plain(x, kernel, strides, padding)


def _pointwise(x: jax.Array, kernel: jax.Array, strides: Sequence[int]) -> jax.Array:
    x = x[:, :: strides[0], :: strides[1]]
    # As a product of two matrices, gradients included: one of higher rank is transposed first.
    batch, height, width, inputs = x.shape
    product = x.reshape(batch * height * width, inputs) @ kernel[0, 0]
    return product.reshape(batch, height, width, kernel.shape[3])


def _depthwise(
    x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Padding
) -> jax.Array:
    weights = kernel.astype(jnp.float32).reshape(-1, 1, 1, 1, x.shape[-1])
    taps = _taps(x, kernel.shape[:2], strides, padding)
    products = [tap.astype(jnp.float32) * weight for tap, weight in zip(taps, weights, strict=True)]
    return functools.reduce(jnp.add, products).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _grouped(
    strides: tuple[int, ...], padding: Padding, groups: int, x: jax.Array, kernel: jax.Array
) -> jax.Array:
    return _plain(x, kernel, strides, padding, feature_group_count=groups)


def _grouped_forward(
    strides: tuple[int, ...], padding: Padding, groups: int, x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _grouped(strides, padding, groups, x, kernel), (x, kernel)


def _grouped_backward(
    strides: tuple[int, ...],
    padding: Padding,
    groups: int,
    residuals: tuple[jax.Array, jax.Array],
    dy: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    transpose = jax.linear_transpose(
        lambda x: _plain(x, kernel, strides, padding, feature_group_count=groups), x
    )
    height, width, inputs, outputs = kernel.shape
    dy_groups = dy.reshape(-1, groups, outputs // groups)
    taps = [
        jnp.einsum(
            "ngi,ngo->igo",
            tap.reshape(-1, groups, inputs),
            dy_groups,
            preferred_element_type=jnp.float32,
        )
        for tap in _taps(x, (height, width), strides, padding)
    ]
    return transpose(dy)[0], jnp.stack(taps).reshape(kernel.shape).astype(kernel.dtype)


_grouped.defvjp(_grouped_forward, _grouped_backward)


def _taps(
    x: jax.Array, window: Sequence[int], strides: Sequence[int], padding: Padding
) -> list[jax.Array]:
    """For each place of the window, row by row: the inputs that meet it, [B, H', W', C]."""
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    height = (x.shape[1] - window[0]) // strides[0] + 1
    width = (x.shape[2] - window[1]) // strides[1] + 1
    return [
        x[
            :,
            row : row + (height - 1) * strides[0] + 1 : strides[0],
            column : column + (width - 1) * strides[1] + 1 : strides[1],
        ]
        for row in range(window[0])
        for column in range(window[1])
    ]
