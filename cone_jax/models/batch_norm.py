"""Batch normalisation with global statistics, PyTorch's running variance and a lean gradient.

Differs from `flax.linen.BatchNorm` in four points. The running variance is the *unbiased* one,
which is what PyTorch stores: weights that travel between the two then mean the same, and small
batches are not evaluated with too small a variance. The gradient keeps only the input, the mean
and the inverse deviation and needs two reductions, where automatic differentiation keeps
several activation-sized temporaries. Statistics are float32 whatever the input. And `groups`
normalises slices of the batch on their own. Parameter names are Flax's.

The sums come in two forms: an accelerator's here, a CPU's in `cone_jax.models.cpu.moments`.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from cone_jax.errors import UserError
from cone_jax.models.cpu import moments


class BatchNorm(nn.Module):
    """Normalises over all axes but the last.

    Under `jit` with a batch sharded over devices the statistics are those of the global batch
    (PyTorch's SyncBN). `groups` G > 1 takes them over each of G equal slices of the batch
    instead; with G devices these are per-device statistics. The running ones are then the mean
    over the slices. No gradient flows through running statistics. `for_cpu` chooses the form
    of the sums, not their values.
    """

    train: bool
    momentum: float = 0.9  # the weight of the old statistics; PyTorch's momentum is 1 minus this
    epsilon: float = 1e-5
    groups: int = 1
    dtype: Any = jnp.float32
    for_cpu: bool = False
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", self.bias_init, shape)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        if not self.train:
            factor = _wide(lax.rsqrt(var.value + self.epsilon) * scale, x.ndim)
            centred = x.astype(jnp.float32) - _wide(mean.value, x.ndim)
            return (centred * factor + _wide(bias, x.ndim)).astype(self.dtype)
        x = x.astype(self.dtype)
        y, batch_mean, batch_var = _normalise(
            self.epsilon, self.for_cpu, _slices(x, self.groups), mean.value, scale, bias
        )
        if not self.is_initializing():
            mean.value = self._blend(mean.value, batch_mean)
            count = x.size // (x.shape[-1] * self.groups)
            # A single value has no variance: 0, not 0 / 0.
            var.value = self._blend(var.value, batch_var * (count / max(count - 1, 1)))
        return y.reshape(x.shape)

    def _blend(self, running: jax.Array, groups: jax.Array) -> jax.Array:
        new = lax.stop_gradient(groups.reshape(-1, groups.shape[-1]).mean(0))
        return self.momentum * running + (1.0 - self.momentum) * new


def _slices(x: jax.Array, groups: int) -> jax.Array:
    """[B, ..., C] -> [G, B/G, ..., C]: each slice along the first axis is normalised alone."""
    if x.shape[0] % groups:
        raise UserError(f"model.options.bn_groups ({groups}) must divide the batch ({x.shape[0]})")
    return x.reshape(groups, x.shape[0] // groups, *x.shape[1:])


def _wide(values: jax.Array, ndim: int) -> jax.Array:
    """[C] -> [1, ..., 1, C]"""
    return lax.expand_dims(values, range(ndim - 1))


# Differentiable in x, scale and bias only: the second and third results feed running statistics,
# and their cotangents are dropped.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _normalise(
    epsilon: float, for_cpu: bool, *arrays: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x [G, n, ..., C] -> normalised x, mean and biased variance [G, 1, ..., C]."""
    return _normalise_forward(epsilon, for_cpu, *arrays)[0]


def _normalise_forward(
    epsilon: float,
    for_cpu: bool,
    x: jax.Array,
    centre: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]:
    x32 = x.astype(jnp.float32)
    if for_cpu:
        mean, var = moments.mean_and_variance(x32, epsilon)
    else:
        mean, var = _mean_and_variance(x32, _wide(centre, x.ndim))
    inverse = lax.rsqrt(var + epsilon)
    factor = inverse * _wide(scale, x.ndim)
    y = (x32 - mean) * factor + _wide(bias, x.ndim)
    return (y.astype(x.dtype), mean, var), (x, mean, inverse, scale)


def _normalise_backward(
    epsilon: float,
    for_cpu: bool,
    residuals: tuple[jax.Array, ...],
    cotangents: tuple[jax.Array, ...],
) -> tuple[jax.Array | None, ...]:
    x, mean, inverse, scale = residuals
    dy = cotangents[0].astype(jnp.float32)
    count = x.size // (x.shape[0] * x.shape[-1])
    x32, sum_dy = x.astype(jnp.float32), _total(dy)

    def hat() -> jax.Array:  # computed where it is used, never kept
        return (x32 - mean) * inverse

    if for_cpu:
        sum_dy_hat = moments.sum_with_normalised(dy, x32, mean, inverse, sum_dy)
    else:
        sum_dy_hat = _total(dy * hat())
    factor = inverse * _wide(scale, x.ndim)
    dx = factor * (dy - sum_dy / count - hat() * (sum_dy_hat / count))
    over_groups = tuple(range(x.ndim - 1))
    return dx.astype(x.dtype), None, sum_dy_hat.sum(over_groups), sum_dy.sum(over_groups)


_normalise.defvjp(_normalise_forward, _normalise_backward)


def _mean_and_variance(x: jax.Array, centre: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance in one pass, which accelerators fuse into the convolution.

    The difference of moments cancels badly far from 0, hence moments around the running mean.
    """
    shifted = x - centre
    offset = _average(shifted)
    var = jnp.maximum(_average(jnp.square(shifted)) - jnp.square(offset), 0.0)
    return offset + centre, var


def _average(x: jax.Array) -> jax.Array:
    return jnp.mean(x, tuple(range(1, x.ndim - 1)), keepdims=True)


def _total(x: jax.Array) -> jax.Array:
    return jnp.sum(x, tuple(range(1, x.ndim - 1)), keepdims=True)
