"""3x3 convolutions with a quarter of the multiplications: Winograd's F(4x4, 3x3).

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016. The output is cut into
tiles of 4x4. For a tile, the 6x6 inputs under it and the 3x3 kernel are transformed to 36
places each; there the convolution is a product of matrices [tiles, I] x [I, O] a place, 36
multiplications where the sum over the window takes 144; a last transform makes 36 places 4x4
again. Every transform is one product with a constant matrix, so that this is quick to compile
and runs at the speed of matrix products.

The interpolation points are 0, +-1/sqrt(2), +-sqrt(2) and infinity. Their rounding error is half
that of the usual 0, +-1, +-2: about 1e-6 of the result in float32, where the plain sum has 2e-7.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

TILE, WINDOW = 4, 3
PATCH = TILE + WINDOW - 1
PLACES = PATCH**2
POINTS = (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5))

# Below this many channels the transforms cost what the products save; below this many
# tiles the kernel's does.
FEWEST_CHANNELS = 128
FEWEST_TILES = 32


def suits(
    x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Sequence[tuple[int, int]]
) -> bool:
    """Whether `convolve` computes this, and faster than the sum over the window."""
    batch, height, width, _ = x.shape
    rows, columns = _tiles(height), _tiles(width)
    return (
        kernel.shape[:2] == (WINDOW, WINDOW)
        and all(stride == 1 for stride in strides)
        and all(pad == (1, 1) for pad in padding)
        and x.dtype == kernel.dtype == jnp.float32
        and min(kernel.shape[2:]) >= FEWEST_CHANNELS
        and batch * rows * columns >= FEWEST_TILES
        and rows * columns * TILE**2 < 2 * height * width  # not mostly padding
    )


@jax.custom_vjp
def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [B, H, W, I], kernel [3, 3, I, O] -> [B, H, W, O]: stride 1, padded by 1."""
    batch, height, width, _ = x.shape
    product = jnp.einsum("pti,pio->pto", _of_input(x), _of_kernel(kernel))
    y = jnp.asarray(TO_OUTPUT) @ product.reshape(PLACES, -1)
    shape = (TILE, TILE, batch, _tiles(height), _tiles(width), kernel.shape[3])
    y = y.reshape(shape).transpose(2, 3, 0, 4, 1, 5)
    y = y.reshape(batch, shape[3] * TILE, shape[4] * TILE, shape[5])
    return y[:, :height, :width]


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return convolve(x, kernel), (x, kernel)


def _backward(residuals: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    dx = convolve(dy, kernel[::-1, ::-1].swapaxes(2, 3))
    by_place = jnp.einsum("pti,pto->pio", _of_input(x), _of_cotangent(dy))
    d_kernel = jnp.asarray(FROM_KERNEL.T) @ by_place.reshape(PLACES, -1)
    return dx, d_kernel.reshape(kernel.shape)


convolve.defvjp(_forward, _backward)


def _tiles(size: int) -> int:
    return -(-size // TILE)


def _of_input(x: jax.Array) -> jax.Array:
    """[B, H, W, I] -> [36, tiles, I]: of the 6x6 values around each tile."""
    height, width, channels = x.shape[1:]
    bottom, right = _tiles(height) * TILE, _tiles(width) * TILE
    x = jnp.pad(x, ((0, 0), (1, bottom + 1 - height), (1, right + 1 - width), (0, 0)))
    patches = [
        x[:, row : row + bottom : TILE, column : column + right : TILE]
        for row in range(PATCH)
        for column in range(PATCH)
    ]
    transformed = jnp.asarray(FROM_INPUT) @ jnp.stack(patches).reshape(PLACES, -1)
    return transformed.reshape(PLACES, -1, channels)


def _of_kernel(kernel: jax.Array) -> jax.Array:
    """[3, 3, I, O] -> [36, I, O]"""
    transformed = jnp.asarray(FROM_KERNEL) @ kernel.reshape(WINDOW**2, -1)
    return transformed.reshape(PLACES, *kernel.shape[2:])


def _of_cotangent(dy: jax.Array) -> jax.Array:
    """[B, H, W, O] -> [36, tiles, O]: `TO_OUTPUT` the other way round."""
    batch, height, width, channels = dy.shape
    rows, columns = _tiles(height), _tiles(width)
    dy = jnp.pad(dy, ((0, 0), (0, rows * TILE - height), (0, columns * TILE - width), (0, 0)))
    tiles = dy.reshape(batch, rows, TILE, columns, TILE, channels).transpose(2, 4, 0, 1, 3, 5)
    transformed = jnp.asarray(TO_OUTPUT.T) @ tiles.reshape(TILE**2, -1)
    return transformed.reshape(PLACES, -1, channels)


def _transforms() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of input [36, 36], kernel [36, 9] and output [16, 36], for the points above.

    In one dimension the output is A (B x * G k), where A and G evaluate polynomials at the points,
    G divided by the differences of the points, and B makes it true for every x and k.
    """
    points = np.array(POINTS)
    differences = [np.prod(p - np.delete(points, i)) for i, p in enumerate(points)]
    infinity = np.eye(TILE)[:, -1:], np.eye(WINDOW)[-1:]
    a = np.hstack([np.vander(points, TILE, increasing=True).T, infinity[0]])
    g = np.vander(points, WINDOW, increasing=True) / np.array(differences)[:, None]
    g = np.vstack([g, infinity[1]])
    outputs_of_places = np.einsum("op,pw->owp", a, g).reshape(-1, PATCH)
    window = np.arange(TILE)[:, None] + np.arange(WINDOW)
    b = np.linalg.lstsq(outputs_of_places, np.eye(PATCH)[window.ravel()], rcond=None)[0]
    two_dimensional = (np.kron(matrix, matrix).astype(np.float32) for matrix in (b, g, a))
    return tuple(two_dimensional)  # type: ignore[return-value]


FROM_INPUT, FROM_KERNEL, TO_OUTPUT = _transforms()
