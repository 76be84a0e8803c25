"""EfficientNet-B0 (Tan and Le, arXiv 1905.11946), as torchvision and timm have it in PyTorch.

The authors' TensorFlow weights (timm's ``tf_efficientnet_b0``) are of another network: they want
padding at the end only and another epsilon in BatchNorm. The CIFAR stem, a choice of this project,
keeps the resolution in the stem and in the second stage. Dropout of 0.2 on the pooled features is
part of the published network; its training drops branches with `stochastic_depth` 0.2.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cone_jax.models.layers import Layers, ResidualBackbone

STEM_WIDTH = 32
LAST_WIDTH = 1280
# expansion, kernel, channels, blocks, stride of the first block
STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)
# Channels that enter a block, for each that decides in its squeeze.
REDUCTION = 4


class Block(nn.Module):
    """1x1 expansion, depthwise with the stride, squeeze and excitation, linear 1x1.

    A shortcut where shapes agree.
    """

    expansion: int
    kernel: int
    width: int
    stride: int
    make: Layers
    drop_rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        make, inputs = self.make, x
        hidden = x.shape[-1] * self.expansion
        if self.expansion != 1:
            x = nn.silu(make.conv_bn(x, hidden, 1, name="expand"))
        x = make.conv_bn(
            x, hidden, self.kernel, stride=self.stride, groups=hidden, name="depthwise"
        )
        x = nn.silu(x)
        x = x * self._excitation(x, inputs.shape[-1] // REDUCTION)
        x = make.conv_bn(x, self.width, 1, name="project")
        if self.stride != 1 or inputs.shape[-1] != self.width:
            return x
        return make.drop_branch(x, self.drop_rate) + inputs

    def _excitation(self, x: jax.Array, squeezed: int) -> jax.Array:
        """[B, H, W, C] -> [B, 1, 1, C]: how much of each channel is kept."""
        y = jnp.mean(x.astype(jnp.float32), (1, 2), keepdims=True).astype(self.make.dtype)
        y = nn.silu(self.make.conv(squeezed, 1, use_bias=True, name="squeeze")(y))
        return nn.sigmoid(self.make.conv(x.shape[-1], 1, use_bias=True, name="excite")(y))


class EfficientNet(ResidualBackbone):
    """Images [B, H, W, 3] -> pooled features [B, 1280], float32."""

    dropout: float = 0.2

    @nn.nowrap
    def features(self, x: jax.Array, make: Layers) -> jax.Array:
        keep_resolution = self.stem == "cifar"
        stem_stride = 1 if keep_resolution else 2
        x = nn.silu(make.conv_bn(x, STEM_WIDTH, 3, stride=stem_stride, name="stem"))
        block = self.repeated(Block)
        rates = iter(self.drop_rates(sum(depth for _, _, _, depth, _ in STAGES)))
        for stage, (expansion, kernel, width, depth, stride) in enumerate(STAGES, start=1):
            first = 1 if keep_resolution and stage == 2 else stride
            for index in range(depth):
                shape = (expansion, kernel, width, first if index == 0 else 1)
                x = block(*shape, make, next(rates), name=f"stage{stage}_{index}")(x)
        x = nn.silu(make.conv_bn(x, LAST_WIDTH, 1, name="last"))
        return self.pooled(x, make)


def create(name: str, **options: Any) -> EfficientNet:
    """EfficientNet-B0."""
    return EfficientNet(**options)
