"""Convolutions and BatchNorm's sums in the form that XLA:CPU computes fastest; the same numbers.

XLA:CPU is slow on five kinds that these networks are made of, so these are written differently.
A 1x1 convolution is a matrix product. A depthwise one is a sum of shifted multiplications. A
grouped one keeps XLA's form but not XLA's gradient for the kernel, which is one matrix product per
tap. A 3x3 one of many channels is Winograd's F(4x4, 3x3), with a quarter of the products, or where
the output has four places or fewer, one matrix product from all places to all of them. For the
others `lax.conv_general_dilated` is best.

Winograd's form is that of Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016.
The output is cut into tiles of 4x4. For a tile, the 6x6 inputs under it and the 3x3 kernel are
transformed to 36 places each; there the convolution is one product of matrices [tiles, I] x [I, O]
per place, 36 multiplications where the sum over the window takes 144; a last transform makes 36
places 4x4 again.

With few channels the time goes into moving the 36 places to memory and back, so images are taken
in groups whose places fit into the cache, and the largest transform, the input's, is written as
sums that XLA computes in passing. The others are products with a constant matrix, quick to compile.

The interpolation points are 0, +-1/sqrt(2), +-sqrt(2) and infinity. Their rounding error is half
that of the usual 0, +-1, +-2: about 1e-6 of the result in float32, where the plain sum has 2e-7.

An accelerator fuses any expression into a reduction. XLA:CPU hands reductions to a library that
takes an array, or a product of two, and writes everything else to memory first. So the sums of
BatchNorm are those of x, x * x, dy and dy * x as they are, corrected afterwards. Their arrays are
[G, n, ..., C], and sums are taken over all axes but the first and the last.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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
    if suits(x, kernel, strides, padding):
        return winograd(x, kernel)
    if _has_few_places(x, kernel, strides, padding):
        return _between_all_places(x, kernel, strides[0])
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


# Of the output. Twice as many rows and columns of the input are the most that meet them.
FEW_PLACES = 4


def _between_all_places(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """x [B, H, W, I], kernel [3, 3, I, O] -> [B, H', W', O], padded by 1."""
    sides = x.shape[1:3], tuple(-(-side // stride) for side in x.shape[1:3])
    inputs, outputs = (list(np.ndindex(*each)) for each in sides)
    taps = np.zeros((len(inputs), len(outputs), WINDOW, WINDOW), np.float32)
    for (i, (r, c)), (j, (row, column)) in itertools.product(enumerate(inputs), enumerate(outputs)):
        place = r - stride * row + 1, c - stride * column + 1  # of the window
        if min(place) >= 0 and max(place) < WINDOW:
            taps[i, j, *place] = 1.0
    weights = jnp.asarray(taps.reshape(-1, WINDOW**2)) @ kernel.reshape(WINDOW**2, -1)
    weights = weights.reshape(*taps.shape[:2], *kernel.shape[2:]).swapaxes(1, 2)
    product = x.reshape(len(x), -1) @ weights.reshape(x[0].size, -1)
    return product.reshape(len(x), *sides[1], kernel.shape[3])


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


TILE, WINDOW = 4, 3
PATCH = TILE + WINDOW - 1
PLACES = PATCH**2
POINTS = (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5))

# With fewer channels the transforms cost what the products save; with fewer tiles the kernel's
# does.
FEWEST_CHANNELS = 64
FEWEST_TILES = 32

# Below so many channels images are taken in groups whose places have so many bytes: measured, for
# the convolution and for the gradient of its kernel, which holds those of two arrays.
WIDE = 128
GROUP, GRADIENT_GROUP = 20_000_000, 10_000_000


def suits(
    x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Sequence[tuple[int, int]]
) -> bool:
    """Whether `winograd` computes this, and faster than the sum over the window."""
    batch, height, width, _ = x.shape
    rows, columns = _tiles(height), _tiles(width)
    return (
        _is_wide(x, kernel, padding)
        and all(stride == 1 for stride in strides)
        and batch * rows * columns >= FEWEST_TILES
        and rows * columns * TILE**2 < 2 * height * width  # not mostly padding
    )


def _has_few_places(
    x: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Padding
) -> bool:
    """Whether `_between_all_places` computes this, and faster than XLA's own convolution."""
    rows, columns = (-(-side // strides[0]) for side in x.shape[1:3])
    return (
        _is_wide(x, kernel, padding)
        and strides[0] == strides[1] <= 2
        and rows * columns <= FEW_PLACES
    )


def _is_wide(x: jax.Array, kernel: jax.Array, padding: Padding) -> bool:
    """Whether it is 3x3, padded by 1, of many channels in float32."""
    return (
        kernel.shape[:2] == (WINDOW, WINDOW)
        and all(pad == (1, 1) for pad in padding)
        and x.dtype == kernel.dtype == jnp.float32
        and min(kernel.shape[2:]) >= FEWEST_CHANNELS
    )


@jax.custom_vjp
def winograd(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [B, H, W, I], kernel [3, 3, I, O] -> [B, H, W, O]: stride 1, padded by 1."""
    transformed = _of_kernel(kernel)

    def of_group(x: jax.Array) -> jax.Array:
        return _to_images(jnp.einsum("pti,pio->pto", _of_input(x), transformed), x.shape)

    groups = _in_groups(x, GROUP)
    y = lax.map(of_group, groups) if len(groups) > 1 else of_group(x)
    return y.reshape(*x.shape[:3], kernel.shape[3])


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return winograd(x, kernel), (x, kernel)


def _backward(residuals: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    dx = winograd(dy, kernel[::-1, ::-1].swapaxes(2, 3))

    def of_group(x: jax.Array, dy: jax.Array) -> jax.Array:
        return jnp.einsum("pti,pto->pio", _of_input(x), _of_cotangent(dy))

    groups = _in_groups(x, GRADIENT_GROUP)
    if len(groups) > 1:
        pairs = groups, dy.reshape(*groups.shape[:-1], dy.shape[-1])
        nothing = jnp.zeros((PLACES, *kernel.shape[2:]), kernel.dtype)
        by_place, _ = lax.scan(lambda total, p: (total + of_group(*p), None), nothing, pairs)
    else:
        by_place = of_group(x, dy)
    d_kernel = jnp.asarray(FROM_KERNEL.T) @ by_place.reshape(PLACES, -1)
    return dx, d_kernel.reshape(kernel.shape)


winograd.defvjp(_forward, _backward)


def _tiles(size: int) -> int:
    return -(-size // TILE)


def _in_groups(x: jax.Array, most: int) -> jax.Array:
    """[B, H, W, I] -> [G, B / G, H, W, I], where the places of a group take `most` bytes at most.

    Unless one image takes more. On several devices each has a group already, and G is 1.
    """
    batch, height, width, channels = x.shape
    image = _tiles(height) * _tiles(width) * PLACES * channels * x.dtype.itemsize
    fitting = [n for n in range(1, batch + 1) if batch % n == 0 and n * image <= most]
    one_group = channels >= WIDE or jax.device_count() > 1
    images = batch if one_group else max(fitting, default=1)
    return x.reshape(batch // images, images, height, width, channels)


@jax.jit  # one program also outside of any other
def _of_input(x: jax.Array) -> jax.Array:
    """[B, H, W, I] -> [36, tiles, I]: of the 6x6 values around each tile."""
    height, width, channels = x.shape[1:]
    bottom, right = _tiles(height) * TILE, _tiles(width) * TILE
    x = jnp.pad(x, ((0, 0), (1, bottom + 1 - height), (1, right + 1 - width), (0, 0)))
    rows = _combined([x[:, row : row + bottom : TILE] for row in range(PATCH)])
    places = [
        place
        for row in rows
        for place in _combined([row[:, :, col : col + right : TILE] for col in range(PATCH)])
    ]
    return jnp.stack(places).reshape(PLACES, -1, channels)


def _combined(values: list[jax.Array]) -> list[jax.Array]:
    """`FROM_INPUT` times a vector of arrays, without its zeros."""
    return [
        functools.reduce(jnp.add, [w * x for w, x in zip(row, values, strict=True) if w])
        for row in FROM_INPUT.tolist()
    ]


def _of_kernel(kernel: jax.Array) -> jax.Array:
    """[3, 3, I, O] -> [36, I, O]"""
    transformed = jnp.asarray(FROM_KERNEL) @ kernel.reshape(WINDOW**2, -1)
    return transformed.reshape(PLACES, *kernel.shape[2:])


def _to_images(places: jax.Array, shape: Sequence[int]) -> jax.Array:
    """[36, tiles, O] -> [B, H, W, O], of which `shape` has the first three."""
    batch, height, width = shape[:3]
    tiled = (TILE, TILE, batch, _tiles(height), _tiles(width), places.shape[-1])
    y = (jnp.asarray(TO_OUTPUT) @ places.reshape(PLACES, -1)).reshape(tiled)
    y = y.transpose(2, 3, 0, 4, 1, 5).reshape(batch, tiled[3] * TILE, tiled[4] * TILE, -1)
    return y[:, :height, :width]


def _of_cotangent(dy: jax.Array) -> jax.Array:
    """[B, H, W, O] -> [36, tiles, O]: `TO_OUTPUT` the other way round."""
    batch, height, width, channels = dy.shape
    rows, columns = _tiles(height), _tiles(width)
    dy = jnp.pad(dy, ((0, 0), (0, rows * TILE - height), (0, columns * TILE - width), (0, 0)))
    tiles = dy.reshape(batch, rows, TILE, columns, TILE, channels).transpose(2, 4, 0, 1, 3, 5)
    transformed = jnp.asarray(TO_OUTPUT.T) @ tiles.reshape(TILE**2, -1)
    return transformed.reshape(PLACES, -1, channels)


def _transforms() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of rows or columns of the input [6, 6]; of kernel [36, 9] and output [16, 36], both at once.

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
    b[np.abs(b) < 1e-9] = 0.0  # but for rounding
    return b, np.kron(g, g).astype(np.float32), np.kron(a, a).astype(np.float32)


FROM_INPUT, FROM_KERNEL, TO_OUTPUT = _transforms()


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
