"""BatchNorm's sums in the form that XLA:CPU computes fastest.

An accelerator fuses any expression into a reduction. XLA:CPU hands reductions to a library that
takes an array, or a product of two, and writes everything else to memory first. So the sums here
are those of x, x * x, dy and dy * x as they are, corrected afterwards.

Arrays are [G, n, ..., C], and sums are taken over all axes but the first and the last.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

# Sums around 0 lose the digits of (mean / deviation) ** 2: two of seven here. Beyond, sums are
# taken around the mean as well.
MOST_CANCELLATION = 100.0


def mean_and_variance(x: jax.Array, epsilon: float) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance; where their difference cancels, the latter is summed once more."""
    axes = tuple(range(1, x.ndim - 1))
    mean = jnp.mean(x, axes, keepdims=True)
    var = jnp.maximum(jnp.mean(jnp.square(x), axes, keepdims=True) - jnp.square(mean), 0.0)
    return mean, _corrected(
        mean,
        lax.rsqrt(var + epsilon),
        var,
        lambda: jnp.mean(jnp.square(x - mean), axes, keepdims=True),
    )


def sum_with_normalised(
    dy: jax.Array, x: jax.Array, mean: jax.Array, inverse: jax.Array, sum_dy: jax.Array
) -> jax.Array:
    """The sum of dy times the normalised x, whose mean and inverse deviation are known."""
    axes = tuple(range(1, x.ndim - 1))
    return _corrected(
        mean,
        inverse,
        (jnp.sum(dy * x, axes, keepdims=True) - mean * sum_dy) * inverse,
        lambda: jnp.sum(dy * ((x - mean) * inverse), axes, keepdims=True),
    )


def _corrected(
    mean: jax.Array, inverse: jax.Array, near: jax.Array, exact: Callable[[], jax.Array]
) -> jax.Array:
    """The sum taken around 0 or, where the values are too far from there, the exact one."""
    far = jnp.any(jnp.square(mean * inverse) > MOST_CANCELLATION)
    return lax.cond(far, exact, lambda: near)
