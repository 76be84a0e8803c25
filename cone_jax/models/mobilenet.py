"""MobileNetV2 1.0 (Sandler et al., arXiv 1801.04381).

The CIFAR stem, a choice of this project, keeps the resolution in the stem and in the second
stage. Dropout of 0.2 on the pooled features is part of the published network.
"""

from typing import Any

import flax.linen as nn
import jax

from cone_jax.models.layers import Layers, ResidualBackbone

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
            x = nn.relu6(make.conv_bn(x, hidden, 1, name="expand"))
        x = make.conv_bn(x, hidden, 3, stride=self.stride, groups=hidden, name="depthwise")
        x = make.conv_bn(nn.relu6(x), self.width, 1, name="project")
        if self.stride != 1 or inputs.shape[-1] != self.width:
            return x
        return make.drop_branch(x, self.drop_rate) + inputs


class MobileNetV2(ResidualBackbone):
    """Images [B, H, W, 3] -> pooled features [B, 1280], float32."""

    dropout: float = 0.2

    classifier_std = 0.01

    @nn.nowrap
    def features(self, x: jax.Array, make: Layers) -> jax.Array:
        keep_resolution = self.stem == "cifar"
        blocks = [
            (expansion, width, stride if index == 0 and not (keep_resolution and stage == 1) else 1)
            for stage, (expansion, width, depth, stride) in enumerate(STAGES)
            for index in range(depth)
        ]
        stem_stride = 1 if keep_resolution else 2
        x = nn.relu6(make.conv_bn(x, STEM_WIDTH, 3, stride=stem_stride, name="stem"))
        residual = self.repeated(InvertedResidual)
        rates = self.drop_rates(len(blocks))
        for number, (block, rate) in enumerate(zip(blocks, rates, strict=True), start=1):
            x = residual(*block, make, rate, name=f"block{number}")(x)
        x = nn.relu6(make.conv_bn(x, LAST_WIDTH, 1, name="last"))
        return self.pooled(x, make)


def create(name: str, **options: Any) -> MobileNetV2:
    """MobileNetV2 at width 1.0."""
    return MobileNetV2(**options)
