"""The layers every architecture is built of, with the conventions of the method's networks.

PyTorch's padding (symmetric, whatever the stride), initialisation and BatchNorm constants, in
Flax, so that a convention is decided once. Parameters and statistics are float32; `dtype` is
that of the computation. Operations are XLA's own, except on a platform with an annex of its own
forms, which is the CPU (`cone_jax.models.cpu`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from cone_jax.errors import UserError
from cone_jax.models.cpu import layers as cpu_layers
from cone_jax.models.cpu import pooling
from cone_jax.models.pointwise_norm import normalised_product


class BatchNorm(nn.Module):
    """Normalises over all axes but the last.

    Under `jit` with a batch sharded over devices the statistics are those of the global batch
    (PyTorch's SyncBN). `groups` G > 1 takes them over each of G equal slices of the batch
    instead; with G devices these are per-device statistics. The running ones are then the mean
    over the slices. No gradient flows through running statistics. `for_cpu` chooses the form
    of the sums, not their values. Called with a `kernel` [I, C] it normalises x @ kernel.
    """

    train: bool
    momentum: float = 0.9  # the weight of the old statistics; PyTorch's momentum is 1 minus this
    epsilon: float = 1e-5
    groups: int = 1
    dtype: Any = jnp.float32
    for_cpu: bool = False
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array, kernel: jax.Array | None = None) -> jax.Array:
        shape = (x.shape[-1] if kernel is None else kernel.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", self.bias_init, shape)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        if not self.train:
            factor = _wide(lax.rsqrt(var.value + self.epsilon) * scale, x.ndim)
            centred = x.astype(jnp.float32) - _wide(mean.value, x.ndim)
            return (centred * factor + _wide(bias, x.ndim)).astype(self.dtype)
        x = x.astype(self.dtype)
        if kernel is None:
            y, batch_mean, batch_var = _normalise(
                self.epsilon, self.for_cpu, _slices(x, self.groups), mean.value, scale, bias
            )
            y = y.reshape(x.shape)
        else:
            y, batch_mean, batch_var = normalised_product(self.epsilon, x, kernel, scale, bias)
        if not self.is_initializing():
            mean.value = self._blend(mean.value, batch_mean)
            count = x.size // (x.shape[-1] * self.groups)
            # A single value has no variance: 0, not 0 / 0.
            var.value = self._blend(var.value, batch_var * (count / max(count - 1, 1)))
        return y

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
        mean, var = cpu_layers.mean_and_variance(x32, epsilon)
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
        sum_dy_hat = cpu_layers.sum_with_normalised(dy, x32, mean, inverse, sum_dy)
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


Initializer = nn.initializers.Initializer

# Of graphs that leave this machine, and of counting operations.
ANY_PLATFORM = "any"

# He et al.: normal with std sqrt(2 / (kh * kw * out)).
he_normal_fan_out: Initializer = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def uniform_fan_in(fan_in: int) -> Initializer:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)): PyTorch's default, for weights and biases alike."""
    bound = 1.0 / math.sqrt(fan_in)

    def init(rng: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(rng, shape, dtype, -bound, bound)

    return init


class _PointwiseKernel(nn.Module):
    """The kernel [I, O] of a 1x1 convolution, under that convolution's name."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (1, 1, x.shape[-1], self.features)
        return self.param("kernel", he_normal_fan_out, shape)[0, 0]


@dataclasses.dataclass(frozen=True)
class Layers:
    """Makes the layers of one network, so that their shared settings are given once.

    `platform` is the one that programs with this network are compiled for, as JAX's devices
    name theirs; `ANY_PLATFORM` promises XLA's own operations.
    """

    dtype: Any = jnp.float32
    train: bool = False
    bn_momentum: float = 0.9
    bn_groups: int = 1
    bn_frozen: bool = False  # train mode, too, normalises with the running statistics
    platform: str = ANY_PLATFORM

    def training(self, train: bool) -> "Layers":
        """The same layers, in train or evaluation mode."""
        return dataclasses.replace(self, train=train)

    def conv(
        self,
        features: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        pad: int | None = None,
        use_bias: bool = False,
        kernel_init: Initializer = he_normal_fan_out,
        name: str | None = None,
    ) -> nn.Conv:
        """A square convolution, padded by `pad` or ``(kernel - 1) / 2`` on all sides."""
        pad = (kernel - 1) // 2 if pad is None else pad
        return nn.Conv(
            features,
            (kernel, kernel),
            strides=stride,
            padding=((pad, pad), (pad, pad)),
            feature_group_count=groups,
            use_bias=use_bias,
            dtype=self.dtype,
            kernel_init=kernel_init,
            # None: XLA's own.
            conv_general_dilated=cpu_layers.convolve if self.for_cpu else None,
            name=name,
        )

    def batch_norm(
        self, *, bias_init: Initializer = nn.initializers.zeros, name: str | None = None
    ) -> BatchNorm:
        """BatchNorm over all axes but the last, in this network's mode."""
        return BatchNorm(
            train=self.train and not self.bn_frozen,
            momentum=self.bn_momentum,
            groups=self.bn_groups,
            dtype=self.dtype,
            for_cpu=self.for_cpu,
            bias_init=bias_init,
            name=name,
        )

    def conv_bn(
        self,
        x: jax.Array,
        features: int,
        kernel: int,
        *,
        name: str | tuple[str, str],
        bias_init: Initializer = nn.initializers.zeros,
        **options: Any,
    ) -> jax.Array:
        """Applies `conv` and `batch_norm`.

        `name` is that of both; one name that they share ends in ``_conv`` and ``_bn``.
        """
        conv_name, bn_name = (f"{name}_conv", f"{name}_bn") if isinstance(name, str) else name
        norm = self.batch_norm(bias_init=bias_init, name=bn_name)
        if kernel == 1 and self._is_one_operation(x.shape[-1], features):
            stride = options.get("stride", 1)
            return norm(x[:, ::stride, ::stride], _PointwiseKernel(features, name=conv_name)(x))
        return norm(self.conv(features, kernel, name=conv_name, **options)(x))

    def _is_one_operation(self, inputs: int, features: int) -> bool:
        """Whether a 1x1 convolution and its BatchNorm are taken together.

        On a TPU, whose compiler fuses into matrix products, where the convolution widens. In
        float32 a TPU rounds the inputs of a product, and the statistics would be those of others.
        """
        bfloat16 = jnp.dtype(self.dtype) == jnp.bfloat16
        plain = not self.train or self.bn_frozen or self.bn_groups > 1
        return self.platform == "tpu" and bfloat16 and not plain and features >= 2 * inputs

    def shortcut(self, x: jax.Array, width: int, stride: int) -> jax.Array:
        """Identity, or a 1x1 convolution and BatchNorm where the shape changes."""
        if stride == 1 and x.shape[-1] == width:
            return x
        return self.conv_bn(x, width, 1, stride=stride, name="downsample")

    def linear(
        self,
        features: int,
        fan_in: int,
        *,
        use_bias: bool = True,
        kernel_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        name: str | None = None,
    ) -> nn.Dense:
        """A linear layer, initialised as PyTorch does unless told otherwise."""
        return nn.Dense(
            features,
            use_bias=use_bias,
            dtype=self.dtype,
            kernel_init=kernel_init or uniform_fan_in(fan_in),
            bias_init=bias_init or uniform_fan_in(fan_in),
            name=name,
        )

    def dropout(self, rate: float) -> nn.Dropout:
        """Zeroes single values in train mode, with the rng ``dropout``."""
        return nn.Dropout(rate, deterministic=not self.train)

    def drop_branch(self, x: jax.Array, rate: float) -> jax.Array:
        """Stochastic depth: zeroes a residual branch for whole samples, scales up the others."""
        over_sample = tuple(range(1, x.ndim))
        return nn.Dropout(rate, broadcast_dims=over_sample, deterministic=not self.train)(x)

    @property
    def for_cpu(self) -> bool:
        """Whether layers take the forms that XLA:CPU computes fastest."""
        return self.platform == "cpu"

    def max_pool(self, x: jax.Array) -> jax.Array:
        """3x3 with stride 2, padded by one (with minus infinity)."""
        if self.for_cpu:
            return pooling.max_pool(x)
        return nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))


class Backbone(nn.Module):
    """Images [B, H, W, 3] -> pooled features [B, d], float32: what the architectures share.

    The fields, and those that an architecture adds, are what ``model.options`` may set.
    """

    make: Layers
    stem: str = "imagenet"
    dropout: float = 0.0
    remat: bool = False

    # Of the published classifier's normal initialisation; None: PyTorch's default.
    classifier_std: ClassVar[float | None] = None

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        return self.features(x, self.make.training(train))

    def features(self, x: jax.Array, make: Layers) -> jax.Array:
        """The network itself, built from the layers of `make`."""
        raise NotImplementedError

    @nn.nowrap
    def repeated(self, block: type[nn.Module]) -> Callable[..., nn.Module]:
        """`block`, whose activations are recomputed in the backward pass if the config says so."""
        return nn.remat(block) if self.remat else block

    @nn.nowrap
    def pooled(self, x: jax.Array, make: Layers) -> jax.Array:
        """[B, H, W, d] -> [B, d], with dropout."""
        return make.dropout(self.dropout)(global_average_pool(x))


class ResidualBackbone(Backbone):
    """A backbone with branches that stochastic depth can drop."""

    stochastic_depth: float = 0.0

    @nn.nowrap
    def drop_rates(self, blocks: int) -> list[float]:
        """The rate for each block, rising linearly from 0 to `stochastic_depth`."""
        return [self.stochastic_depth * index / max(blocks - 1, 1) for index in range(blocks)]


def global_average_pool(x: jax.Array) -> jax.Array:
    """[B, H, W, d] -> [B, d], averaged in float32."""
    return jnp.mean(x.astype(jnp.float32), axis=(1, 2))
