"""ShuffleNetV2 1.0x (Ma et al., arXiv 1807.11164), wired as torchvision does.

The authors' release shuffles at the start of a unit and picks other channels, so its weights do
not fit this wiring; its initialisation is used here. The CIFAR stem, a choice of this project,
keeps the resolution (3x3 with stride 1, no pooling). Units concatenate instead of adding, so
there is no residual branch that stochastic depth could drop.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cone_jax.models.layers import Backbone, Layers

STEM_WIDTH = 24
LAST_WIDTH = 1024
# channels and units of stages 2, 3 and 4
STAGES = ((116, 4), (232, 8), (464, 4))


def fan_in_normal(rng: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """The authors' rule: std 1 / (input channels of a group), so 1 for a depthwise kernel."""
    return jax.random.normal(rng, shape, dtype) / shape[2]


# The authors' initialisation of a convolution and its BatchNorm.
INIT: dict[str, Any] = {"kernel_init": fan_in_normal, "bias_init": nn.initializers.constant(1e-4)}


class Unit(nn.Module):
    """Half of the channels passes, half is processed, then both are shuffled.

    With stride 2 both halves are processed, each from all channels.
    """

    width: int
    stride: int
    make: Layers

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        half = self.width // 2
        if self.stride == 1:
            left, right = jnp.split(x, 2, axis=-1)
        else:
            left = right = x
            left = self._depthwise(left, "left_depthwise")
            left = self._pointwise(left, half, "left_out")
        right = self._pointwise(right, half, "right_in")
        right = self._depthwise(right, "right_depthwise")
        right = self._pointwise(right, half, "right_out")
        # Channel 2 i is left's channel i, channel 2 i + 1 right's.
        return jnp.stack((left, right), axis=-1).reshape(*left.shape[:-1], self.width)

    def _pointwise(self, x: jax.Array, width: int, name: str) -> jax.Array:
        return nn.relu(self.make.conv_bn(x, width, 1, name=name, **INIT))

    def _depthwise(self, x: jax.Array, name: str) -> jax.Array:
        width = x.shape[-1]
        return self.make.conv_bn(x, width, 3, stride=self.stride, groups=width, name=name, **INIT)


class ShuffleNetV2(Backbone):
    """Images [B, H, W, 3] -> pooled features [B, 1024], float32."""

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
                    name=f"stage{stage}_{index}",
                )(x)
        x = nn.relu(make.conv_bn(x, LAST_WIDTH, 1, name="last", **INIT))
        return self.pooled(x, make)


def create(name: str, **options: Any) -> ShuffleNetV2:
    """ShuffleNetV2 at width 1.0."""
    return ShuffleNetV2(**options)
