"""The max-pool with a gradient that a CPU computes fast.

XLA:CPU takes the gradient of a max-pool one window at a time. Written as comparisons and sums of
whole arrays it is the same, bit for bit, in an eighth of the time.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

WINDOW, STRIDE = 3, 2

# XLA's own max-pool.
_plain = functools.partial(
    nn.max_pool,
    window_shape=(WINDOW, WINDOW),
    strides=(STRIDE, STRIDE),
    padding=((1, 1), (1, 1)),
)


@jax.custom_vjp
def max_pool(x: jax.Array) -> jax.Array:
    """3x3 with stride 2, padded by one (with minus infinity): [B, H, W, C] -> [B, h, w, C].

    The gradient goes to the first of equal values, as XLA's does.
    """
    return _plain(x)


def _forward(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    largest = _plain(x)
    return largest, (x, largest)


def _backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array]:
    x, largest = saved
    chosen = _place_in_window(x, largest)

    def share(i: int, j: int, *, below: bool = False, right: bool = False) -> jax.Array:
        """What place (i, j) of a window gets; of the window below or to the right, if asked."""
        given = jnp.where(chosen == WINDOW * i + j, gradient, 0)
        padded = jnp.pad(given, ((0, 0), (0, int(below)), (0, int(right)), (0, 0)))
        return padded[:, int(below) :, int(right) :]

    # Rows and columns alternate between the middle of one window and the border of two.
    middle = share(1, 1)
    beside = share(1, 2) + share(1, 0, right=True)
    under = share(2, 1) + share(0, 1, below=True)
    corner = (share(2, 2) + share(2, 0, right=True)) + (
        share(0, 2, below=True) + share(0, 0, below=True, right=True)
    )
    rows = [jnp.stack(pair, axis=3) for pair in ((middle, beside), (under, corner))]
    batch, height, width, channels = x.shape
    whole = jnp.stack(rows, axis=2).reshape(
        batch, STRIDE * largest.shape[1], STRIDE * largest.shape[2], channels
    )
    return (whole[:, :height, :width],)


def _place_in_window(x: jax.Array, largest: jax.Array) -> jax.Array:
    """Which of a window's nine places holds its largest value; the first of several."""
    batch, height, width, channels = x.shape
    h, w = largest.shape[1:3]
    sides = ((0, 0), (1, STRIDE * h - height), (1, STRIDE * w - width), (0, 0))
    padded = jnp.pad(x, sides, constant_values=-jnp.inf)
    place = jnp.full(largest.shape, WINDOW * WINDOW, jnp.int32)
    for index in reversed(range(WINDOW * WINDOW)):
        i, j = divmod(index, WINDOW)
        end = (batch, i + STRIDE * h - 1, j + STRIDE * w - 1, channels)
        values = lax.slice(padded, (0, i, j, 0), end, (1, STRIDE, STRIDE, 1))
        place = jnp.where(values == largest, index, place)
    # Computed once, not again for each of its nine uses.
    return lax.optimization_barrier(place)


max_pool.defvjp(_forward, _backward)
