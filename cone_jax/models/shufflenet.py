"""ShuffleNetV2 1.0x (Ma et al., arXiv 1807.11164), wired as torchvision does or as its authors do.

The authors' release shuffles at the start of a unit, passes every other channel, and in the first
unit of a stage keeps as many channels on the left as come in, so that weights of the one wiring
do not fit the other; the initialisation is the authors' in both. The CIFAR stem, a choice of this
project, keeps the resolution (3x3 with stride 1, no pooling). Units concatenate instead of adding,
so there is no residual branch that stochastic depth could drop.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from cone_jax.errors import UserError
from cone_jax.models.layers import Backbone, Layers

CHANNEL_ORDERS = ("torchvision", "authors")
STEM_WIDTH = 24
LAST_WIDTH = 1024
# channels and units of stages 2, 3 and 4
STAGES = ((116, 4), (232, 8), (464, 4))


def fan_in_normal(rng: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """The authors' rule: std 1 / (input channels of a group), so 1 for a depthwise kernel."""
    return jax.random.normal(rng, shape, dtype) / shape[2]


# The authors' initialisation of a convolution and its BatchNorm.
INIT: dict[str, Any] = {"kernel_init": fan_in_normal, "bias_init": nn.initializers.constant(1e-4)}


def interleave(left: jax.Array, right: jax.Array, *, by_product: bool = False) -> jax.Array:
    """Channel 2 i is left's channel i, channel 2 i + 1 right's.

    A TPU keeps 128 channels side by side and moves single ones slowly: by its compiler's estimate
    the shuffles take two thirds of three units' forward pass. A product with a matrix of zeros and
    ones moves them as well, and every sum in it has one term.

    >>> interleave(jnp.array([[1, 2]]), jnp.array([[3, 4]]), by_product=True).tolist()
    [[1, 3, 2, 4]]
    """
    half = left.shape[-1]
    if not by_product:
        return jnp.stack((left, right), axis=-1).reshape(*left.shape[:-1], 2 * half)
    place, source = jnp.arange(2 * half), 2 * jnp.arange(half)[:, None]
    to_even, to_odd = (source == place).astype(left.dtype), (source + 1 == place).astype(left.dtype)
    exactly = lax.Precision.HIGHEST  # otherwise float32 would be rounded on its way
    even = jnp.matmul(left, to_even, precision=exactly)
    return even + jnp.matmul(right, to_odd, precision=exactly)


class Unit(nn.Module):
    """Half of the channels passes, half is processed, then both are shuffled.

    With stride 2 both halves are processed, each from all channels.
    """

    width: int
    stride: int
    make: Layers
    by_authors: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        half = self.width // 2
        if self.stride == 1:
            left, right = self._parts(x)
        else:
            left = right = x
            left = self._depthwise(left, "left_depthwise")
            left = self._pointwise(left, x.shape[-1] if self.by_authors else half, "left_out")
        right = self._pointwise(right, half, "right_in")
        right = self._depthwise(right, "right_depthwise")
        right = self._pointwise(right, self.width - left.shape[-1], "right_out")
        if self.by_authors:
            return jnp.concatenate((left, right), axis=-1)
        return interleave(left, right, by_product=self.make.platform == "tpu")

    def _parts(self, x: jax.Array) -> Sequence[jax.Array]:
        """What passes, and what is processed."""
        if self.by_authors:
            return [lax.slice_in_dim(x, start, None, stride=2, axis=-1) for start in (0, 1)]
        return jnp.split(x, 2, axis=-1)

    def _pointwise(self, x: jax.Array, width: int, name: str) -> jax.Array:
        return nn.relu(self.make.conv_bn(x, width, 1, name=name, **INIT))

    def _depthwise(self, x: jax.Array, name: str) -> jax.Array:
        width = x.shape[-1]
        return self.make.conv_bn(x, width, 3, stride=self.stride, groups=width, name=name, **INIT)


class ShuffleNetV2(Backbone):
    """Images [B, H, W, 3] -> pooled features [B, 1024], float32."""

    channel_order: str = "torchvision"

    classifier_std = 0.01

    @nn.nowrap
    def features(self, x: jax.Array, make: Layers) -> jax.Array:
        stride = 1 if self.stem == "cifar" else 2
        stem_init = INIT | {"kernel_init": nn.initializers.normal(0.01)}
        x = nn.relu(make.conv_bn(x, STEM_WIDTH, 3, stride=stride, name="stem", **stem_init))
        if self.stem == "imagenet":
            x = make.max_pool(x)
        unit = self.repeated(Unit)
        for stage, (width, depth) in enumerate(STAGES, start=2):
            for index in range(depth):
                x = unit(
                    width=width,
                    stride=2 if index == 0 else 1,
                    make=make,
                    by_authors=self.channel_order == "authors",
                    name=f"stage{stage}_{index}",
                )(x)
        x = nn.relu(make.conv_bn(x, LAST_WIDTH, 1, name="last", **INIT))
        return self.pooled(x, make)


def create(name: str, *, channel_order: str = "torchvision", **options: Any) -> ShuffleNetV2:
    """ShuffleNetV2 at width 1.0."""
    if channel_order not in CHANNEL_ORDERS:
        raise UserError(
            f"model.options.channel_order ({channel_order!r}) must be 'torchvision' or 'authors'"
        )
    return ShuffleNetV2(channel_order=channel_order, **options)
