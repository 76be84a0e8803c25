"""ShuffleNetV2 1.0x (Ma et al., arXiv 1807.11164), wired as torchvision does.

The authors' release shuffles at the start of a unit and picks other channels, so its weights do
not fit this wiring; its initialisation is used here. The CIFAR stem, a choice of this project,
keeps the resolution (3x3 with stride 1, no pooling). Units concatenate instead of adding, so
there is no residual branch that stochastic depth could drop.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from cone_jax.models import layers
from cone_jax.models.layers import Layers

STEM_WIDTH = 24
LAST_WIDTH = 1024
# channels and units of stages 2, 3 and 4
STAGES = ((116, 4), (232, 8), (464, 4))

BIAS_INIT = nn.initializers.constant(1e-4)


def fan_in_normal(rng: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """The authors' rule: std 1 / (input channels of a group), so 1 for a depthwise kernel."""
    return jax.random.normal(rng, shape, dtype) / shape[2]


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
        x = self.make.conv(width, 1, kernel_init=fan_in_normal, name=f"{name}_conv")(x)
        return nn.relu(self.make.batch_norm(bias_init=BIAS_INIT, name=f"{name}_bn")(x))

    def _depthwise(self, x: jax.Array, name: str) -> jax.Array:
        width = x.shape[-1]
        x = self.make.conv(
            width,
            3,
            stride=self.stride,
            groups=width,
            kernel_init=fan_in_normal,
            name=f"{name}_conv",
        )(x)
        return self.make.batch_norm(bias_init=BIAS_INIT, name=f"{name}_bn")(x)


class ShuffleNetV2(nn.Module):
    """Images [B, H, W, 3] -> pooled features [B, 1024], float32."""

    make: Layers
    stem: str = "imagenet"
    dropout: float = 0.0
    remat: bool = False

    classifier_std = 0.01  # of the published classifier's normal initialisation

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        make = self.make.training(train)
        x = x.astype(make.dtype)
        x = make.conv(
            STEM_WIDTH,
            3,
            stride=1 if self.stem == "cifar" else 2,
            kernel_init=nn.initializers.normal(0.01),
            name="stem_conv",
        )(x)
        x = nn.relu(make.batch_norm(bias_init=BIAS_INIT, name="stem_bn")(x))
        if self.stem == "imagenet":
            x = make.max_pool(x)
        unit = nn.remat(Unit) if self.remat else Unit
        for stage, (width, depth) in enumerate(STAGES, start=2):
            for index in range(depth):
                x = unit(
                    width=width,
                    stride=2 if index == 0 else 1,
                    make=make,
                    name=f"stage{stage}_{index}",
                )(x)
        x = make.conv(LAST_WIDTH, 1, kernel_init=fan_in_normal, name="last_conv")(x)
        x = nn.relu(make.batch_norm(bias_init=BIAS_INIT, name="last_bn")(x))
        return make.dropout(self.dropout)(layers.global_average_pool(x))


def create(
    name: str, *, make: Layers, stem: str, dropout: float = 0.0, remat: bool = False
) -> ShuffleNetV2:
    """ShuffleNetV2 at width 1.0."""
    return ShuffleNetV2(make=make, stem=stem, dropout=dropout, remat=remat)
