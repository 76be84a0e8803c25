"""MobileNetV2 1.0 (Sandler et al., arXiv 1801.04381).

The CIFAR stem, a choice of this project, keeps the resolution in the stem and in the second
stage. Dropout of 0.2 on the pooled features is part of the published network.
"""

import flax.linen as nn
import jax

from cone_jax.models import layers
from cone_jax.models.layers import Layers

STEM_WIDTH = 32
LAST_WIDTH = 1280
# expansion, channels, blocks, stride of the first block
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise 3x3 with the stride, linear 1x1; a shortcut where shapes agree."""

    expansion: int
    width: int
    stride: int
    make: Layers
    drop_rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        make = self.make
        inputs = x
        hidden = x.shape[-1] * self.expansion
        if self.expansion != 1:
            x = make.conv(hidden, 1, name="expand_conv")(x)
            x = nn.relu6(make.batch_norm(name="expand_bn")(x))
        x = make.conv(hidden, 3, stride=self.stride, groups=hidden, name="depthwise_conv")(x)
        x = nn.relu6(make.batch_norm(name="depthwise_bn")(x))
        x = make.conv(self.width, 1, name="project_conv")(x)
        x = make.batch_norm(name="project_bn")(x)
        if self.stride != 1 or inputs.shape[-1] != self.width:
            return x
        return make.drop_branch(x, self.drop_rate) + inputs


class MobileNetV2(nn.Module):
    """Images [B, H, W, 3] -> pooled features [B, 1280], float32."""

    make: Layers
    stem: str = "imagenet"
    dropout: float = 0.2
    stochastic_depth: float = 0.0
    remat: bool = False

    classifier_std = 0.01  # of the published classifier's normal initialisation

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        make = self.make.training(train)
        keep_resolution = self.stem == "cifar"
        x = x.astype(make.dtype)
        x = make.conv(STEM_WIDTH, 3, stride=1 if keep_resolution else 2, name="stem_conv")(x)
        x = nn.relu6(make.batch_norm(name="stem_bn")(x))
        block = nn.remat(InvertedResidual) if self.remat else InvertedResidual
        blocks = [
            (expansion, width, stride if index == 0 and not (keep_resolution and stage == 1) else 1)
            for stage, (expansion, width, depth, stride) in enumerate(STAGES)
            for index in range(depth)
        ]
        rates = layers.linear_rates(self.stochastic_depth, len(blocks))
        for number, ((expansion, width, stride), rate) in enumerate(
            zip(blocks, rates, strict=True), start=1
        ):
            x = block(
                expansion=expansion,
                width=width,
                stride=stride,
                make=make,
                drop_rate=rate,
                name=f"block{number}",
            )(x)
        x = make.conv(LAST_WIDTH, 1, name="last_conv")(x)
        x = nn.relu6(make.batch_norm(name="last_bn")(x))
        return make.dropout(self.dropout)(layers.global_average_pool(x))


def create(
    name: str,
    *,
    make: Layers,
    stem: str,
    dropout: float = 0.2,
    stochastic_depth: float = 0.0,
    remat: bool = False,
) -> MobileNetV2:
    """MobileNetV2 at width 1.0."""
    return MobileNetV2(
        make=make, stem=stem, dropout=dropout, stochastic_depth=stochastic_depth, remat=remat
    )
