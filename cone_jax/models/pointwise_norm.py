"""A 1x1 convolution and its BatchNorm as one operation, whose product is never kept.

BatchNorm needs the statistics of the whole product before it can normalise any of it. As two
operations the product is therefore written once and read once in the forward pass, and read three
times for the gradient. Where a convolution widens, as the last one of a bottleneck does from 64 to
256 channels, that is most of what a block moves, and moving is what an accelerator waits for.

A 1x1 convolution is a matrix product of each pixel, y = z W, and its statistics follow from those
of its narrow input, with m and C the mean and the covariance of z over the batch:

    mean(y) = m W        var(y) = diag(W^T C W)

The gradient needs no y either. With G = z^T dy, n pixels and hat = (y - mean(y)) / std(y):

    sum(dy hat) = (diag(W^T G) - mean(y) sum(dy)) / std(y)
    z^T hat     = (z^T z W - n m mean(y)) / std(y)

The values are those of the two operations, but for rounding: the product is not rounded to the
computation's precision before it is normalised.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

Residuals = tuple[jax.Array, ...]


# Differentiable in z, kernel, scale and bias: the second and third results feed running
# statistics, and their cotangents are dropped.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def normalised_product(
    epsilon: float, z: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """z [..., I], kernel [I, C] -> BatchNorm of z @ kernel [..., C], mean and biased variance [C].

    Products are taken in the precision of `z` and added up in float32.
    """
    return _forward(epsilon, z, kernel, scale, bias)[0]


def _forward(
    epsilon: float, z: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], Residuals]:
    count = z.size // z.shape[-1]
    rounded = kernel.astype(z.dtype)
    weights = rounded.astype(jnp.float32)
    total, moments = _sum_by_product(z), _gram(z, z)
    centre = total / count
    covariance = moments / count - jnp.outer(centre, centre)
    mean = _exact(centre, weights)
    var = jnp.maximum(jnp.sum(weights * _exact(covariance, weights), axis=0), 0.0)
    inverse = lax.rsqrt(var + epsilon)
    factor = inverse * scale
    y = _product(z, rounded) * _wide(factor, z.ndim) + _wide(bias - mean * factor, z.ndim)
    residuals = z, kernel, scale, total, moments, mean, inverse
    return (y.astype(z.dtype), mean, var), residuals


def _backward(
    epsilon: float, residuals: Residuals, cotangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    z, kernel, scale, total, moments, mean, inverse = residuals
    dy = cotangents[0]
    count = z.size // z.shape[-1]
    weights = kernel.astype(z.dtype).astype(jnp.float32)
    gram, sum_dy = _gram(z, dy), _sum_over_pixels(dy)
    sum_dy_hat = inverse * (jnp.sum(weights * gram, axis=0) - mean * sum_dy)
    # The cotangent of the product is factor * dy - shift - slope * (product - mean).
    factor = inverse * scale
    shift = factor * sum_dy / count
    slope = factor * sum_dy_hat / count * inverse
    z_centred_product = _exact(moments, weights) - jnp.outer(total, mean)
    d_kernel = factor * gram - jnp.outer(total, shift) - slope * z_centred_product
    through = _exact(weights * slope, weights.T)
    constant = _exact(total / count, through) - _exact(shift, weights.T)
    dz = (
        _product(dy, (factor * weights).T.astype(z.dtype))
        - _product(z, through.astype(z.dtype))
        + _wide(constant, z.ndim)
    )
    return dz.astype(z.dtype), d_kernel.astype(kernel.dtype), sum_dy_hat, sum_dy


normalised_product.defvjp(_forward, _backward)


def _product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """x [..., I], matrix [I, O] -> [..., O], float32"""
    dimensions = ((x.ndim - 1,), (0,)), ((), ())
    return lax.dot_general(x, matrix, dimensions, preferred_element_type=jnp.float32)


def _gram(x: jax.Array, y: jax.Array) -> jax.Array:
    """x [..., I], y [..., O] -> the sum of all outer products, [I, O], float32"""
    pixels = tuple(range(x.ndim - 1))
    dimensions = (pixels, pixels), ((), ())
    return lax.dot_general(x, y, dimensions, preferred_element_type=jnp.float32)


def _exact(x: jax.Array, y: jax.Array) -> jax.Array:
    """A product of small float32 matrices, which a TPU would round to bfloat16 otherwise."""
    return jnp.dot(x, y, precision=lax.Precision.HIGHEST)


def _sum_over_pixels(x: jax.Array) -> jax.Array:
    return jnp.sum(x.astype(jnp.float32), tuple(range(x.ndim - 1)))


def _sum_by_product(x: jax.Array) -> jax.Array:
    """`_sum_over_pixels` as a matrix product, which a TPU takes a third of the time for.

    It keeps pixels side by side where there are few channels, and adds up neighbours slowly. One
    row of ones would be turned into a sum again; eight fill a register and are not.
    """
    return _gram(jnp.ones((*x.shape[:-1], 8), x.dtype), x)[0]


def _wide(values: jax.Array, ndim: int) -> jax.Array:
    """[C] -> [1, ..., 1, C]"""
    return lax.expand_dims(values, range(ndim - 1))
