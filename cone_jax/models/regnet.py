"""RegNetX-400MF (Radosavovic et al., arXiv 2003.13678).

The width of the last stage exists in two forms, because 392 channels do not divide into groups
of 16: torchvision rounds up to 400, pycls and timm down to 384. The CIFAR stem, a choice of
this project, keeps the resolution in the stem and in the first stage.
"""

import flax.linen as nn
import jax

from cone_jax.errors import UserError
from cone_jax.models import layers
from cone_jax.models.layers import Layers

STEM_WIDTH = 32
GROUP_WIDTH = 16
DEPTHS = (1, 2, 7, 12)
WIDTHS = (32, 64, 160)
LAST_WIDTHS = (400, 384)


class Block(nn.Module):
    """1x1, grouped 3x3 with the stride, 1x1, all equally wide, and a shortcut."""

    width: int
    stride: int
    make: Layers
    drop_rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        make, width = self.make, self.width
        shortcut = x
        if self.stride != 1 or x.shape[-1] != width:
            shortcut = make.conv(width, 1, stride=self.stride, name="downsample_conv")(x)
            shortcut = make.batch_norm(name="downsample_bn")(shortcut)
        x = nn.relu(make.batch_norm(name="bn1")(make.conv(width, 1, name="conv1")(x)))
        groups = width // GROUP_WIDTH
        x = make.conv(width, 3, stride=self.stride, groups=groups, name="conv2")(x)
        x = nn.relu(make.batch_norm(name="bn2")(x))
        x = make.batch_norm(name="bn3")(make.conv(width, 1, name="conv3")(x))
        return nn.relu(make.drop_branch(x, self.drop_rate) + shortcut)


class RegNet(nn.Module):
    """Images [B, H, W, 3] -> pooled features [B, last width], float32."""

    make: Layers
    stem: str = "imagenet"
    last_width: int = 400
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    remat: bool = False

    classifier_std = 0.01  # of the published classifier's normal initialisation

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        make = self.make.training(train)
        keep_resolution = self.stem == "cifar"
        x = x.astype(make.dtype)
        x = make.conv(STEM_WIDTH, 3, stride=1 if keep_resolution else 2, name="stem_conv")(x)
        x = nn.relu(make.batch_norm(name="stem_bn")(x))
        block = nn.remat(Block) if self.remat else Block
        rates = iter(layers.linear_rates(self.stochastic_depth, sum(DEPTHS)))
        for stage, (depth, width) in enumerate(
            zip(DEPTHS, (*WIDTHS, self.last_width), strict=True)
        ):
            for index in range(depth):
                halve = index == 0 and not (keep_resolution and stage == 0)
                x = block(
                    width=width,
                    stride=2 if halve else 1,
                    make=make,
                    drop_rate=next(rates),
                    name=f"stage{stage + 1}_{index}",
                )(x)
        return make.dropout(self.dropout)(layers.global_average_pool(x))


def create(
    name: str,
    *,
    make: Layers,
    stem: str,
    last_width: int = 400,
    dropout: float = 0.0,
    stochastic_depth: float = 0.0,
    remat: bool = False,
) -> RegNet:
    """RegNetX-400MF with the last stage 400 (torchvision) or 384 (pycls, timm) wide."""
    if last_width not in LAST_WIDTHS:
        raise UserError(f"model.options.last_width ({last_width}) must be 400 or 384")
    return RegNet(
        make=make,
        stem=stem,
        last_width=last_width,
        dropout=dropout,
        stochastic_depth=stochastic_depth,
        remat=remat,
    )
