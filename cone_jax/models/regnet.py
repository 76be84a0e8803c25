"""RegNetX-400MF (Radosavovic et al., arXiv 2003.13678).

The width of the last stage exists in two forms, because 392 channels do not divide into groups
of 16: torchvision rounds up to 400, pycls and timm down to 384. The CIFAR stem, a choice of
this project, keeps the resolution in the stem and in the first stage.
"""

from typing import Any

import flax.linen as nn
import jax

from cone_jax.errors import UserError
from cone_jax.models.layers import Layers, ResidualBackbone
from cone_jax.models.resnet import ResidualBlock

STEM_WIDTH = 32
GROUP_WIDTH = 16
DEPTHS = (1, 2, 7, 12)
WIDTHS = (32, 64, 160)
LAST_WIDTHS = (400, 384)


class Block(ResidualBlock):
    """1x1, grouped 3x3 with the stride, 1x1, all equally wide, and a shortcut."""

    @nn.nowrap
    def branch(self, x: jax.Array) -> jax.Array:
        make, width = self.make, self.planes
        x = nn.relu(make.batch_norm(name="bn1")(make.conv(width, 1, name="conv1")(x)))
        groups = width // GROUP_WIDTH
        x = make.conv(width, 3, stride=self.stride, groups=groups, name="conv2")(x)
        x = nn.relu(make.batch_norm(name="bn2")(x))
        return make.batch_norm(name="bn3")(make.conv(width, 1, name="conv3")(x))


class RegNet(ResidualBackbone):
    """Images [B, H, W, 3] -> pooled features [B, last width], float32."""

    last_width: int = 400

    classifier_std = 0.01

    @nn.nowrap
    def features(self, x: jax.Array, make: Layers) -> jax.Array:
        widths = (*WIDTHS, self.last_width)
        first_stride = 1 if self.stem == "cifar" else 2  # of the stem and the first stage
        x = nn.relu(make.conv_bn(x, STEM_WIDTH, 3, stride=first_stride, name="stem"))
        block = self.repeated(Block)
        rates = iter(self.drop_rates(sum(DEPTHS)))
        for stage, (depth, width) in enumerate(zip(DEPTHS, widths, strict=True)):
            for index in range(depth):
                stride = 1 if index > 0 else first_stride if stage == 0 else 2
                name = f"stage{stage + 1}_{index}"
                x = block(width, stride, make, next(rates), name=name)(x)
        return self.pooled(x, make)


def create(name: str, *, last_width: int = 400, **options: Any) -> RegNet:
    """RegNetX-400MF with the last stage 400 (torchvision) or 384 (pycls, timm) wide."""
    if last_width not in LAST_WIDTHS:
        raise UserError(f"model.options.last_width ({last_width}) must be 400 or 384")
    return RegNet(last_width=last_width, **options)
