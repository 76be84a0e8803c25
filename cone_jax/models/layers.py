"""The layers every architecture is built of, with the conventions of the method's networks.

PyTorch's padding (symmetric, whatever the stride), initialisation and BatchNorm constants, in
Flax, so that a convention is decided once. Parameters and statistics are float32; `dtype` is
that of the computation. Operations are XLA's own, except on a platform with an annex of its own
forms, which is the CPU (`cone_jax.models.cpu`).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from cone_jax.models.batch_norm import BatchNorm
from cone_jax.models.cpu import convolution, pooling

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


@dataclasses.dataclass(frozen=True)
class Layers:
    """Makes the layers of one network: what all of them have in common is said once.

    `platform` is the one that programs with this network are compiled for, as JAX's devices
    name theirs; `ANY_PLATFORM` promises XLA's own operations.
    """

    dtype: Any = jnp.float32
    train: bool = False
    bn_momentum: float = 0.9
    bn_groups: int = 1
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
        use_bias: bool = False,
        kernel_init: Initializer = he_normal_fan_out,
        name: str | None = None,
    ) -> nn.Conv:
        """A square convolution, padded by ``(kernel - 1) / 2`` on all sides."""
        pad = (kernel - 1) // 2
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
            conv_general_dilated=convolution.convolve if self.for_cpu else None,
            name=name,
        )

    def batch_norm(
        self, *, bias_init: Initializer = nn.initializers.zeros, name: str | None = None
    ) -> BatchNorm:
        """BatchNorm over all axes but the last, in this network's mode."""
        return BatchNorm(
            train=self.train,
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
        name: str,
        bias_init: Initializer = nn.initializers.zeros,
        **options: Any,
    ) -> jax.Array:
        """Applies `conv` and `batch_norm`, whose names end in ``_conv`` and ``_bn``."""
        x = self.conv(features, kernel, name=f"{name}_conv", **options)(x)
        return self.batch_norm(bias_init=bias_init, name=f"{name}_bn")(x)

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
        """The network itself, of the layers that `make` makes."""
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
