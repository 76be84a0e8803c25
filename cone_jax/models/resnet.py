"""Residual networks, v1.5 (the stride sits in the 3x3 convolution of a bottleneck) or v1.

Two families. ResNet-18 to 200 have four stages, as in the released code and torchvision, with
the ImageNet stem (7x7/2 and max-pool) or the CIFAR one (3x3/1). ResNet-8/14/20 have three
stages of basic blocks (He et al., section 4.2) and a width a CPU can train. No zero-gamma
in the last BatchNorm of a branch, as released.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax

from cone_jax.errors import UserError
from cone_jax.models.layers import Layers, ResidualBackbone


class ResidualBlock(nn.Module):
    """A branch of convolutions, which its kinds define, and a shortcut."""

    planes: int
    stride: int
    make: Layers
    drop_rate: float = 0.0
    stride_in_1x1: bool = False  # of a bottleneck

    expansion = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shortcut = self.make.shortcut(x, self.planes * self.expansion, self.stride)
        return nn.relu(self.make.drop_branch(self.branch(x), self.drop_rate) + shortcut)

    def branch(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, H / stride, W / stride, planes * expansion]."""
        raise NotImplementedError


class BasicBlock(ResidualBlock):
    """Two 3x3 convolutions and a shortcut."""

    @nn.nowrap
    def branch(self, x: jax.Array) -> jax.Array:
        make = self.make
        x = make.conv(self.planes, 3, stride=self.stride, name="conv1")(x)
        x = nn.relu(make.batch_norm(name="bn1")(x))
        x = make.conv(self.planes, 3, name="conv2")(x)
        return make.batch_norm(name="bn2")(x)


class Bottleneck(ResidualBlock):
    """1x1, 3x3 with the stride, 1x1 to four times the planes, and a shortcut.

    The first ResNets have the stride in the first 1x1 instead: Caffe's, Keras's, Detectron2's.
    """

    expansion = 4

    @nn.nowrap
    def branch(self, x: jax.Array) -> jax.Array:
        make = self.make
        first, second = (self.stride, 1) if self.stride_in_1x1 else (1, self.stride)
        x = make.conv(self.planes, 1, stride=first, name="conv1")(x)
        x = nn.relu(make.batch_norm(name="bn1")(x))
        x = make.conv(self.planes, 3, stride=second, name="conv2")(x)
        x = nn.relu(make.batch_norm(name="bn2")(x))
        return make.conv_bn(x, self.planes * self.expansion, 1, name=("conv3", "bn3"))


class ResNet(ResidualBackbone, kw_only=True):
    """Images [B, H, W, 3] -> pooled features [B, d], float32."""

    depths: tuple[int, ...]
    block: type[ResidualBlock]
    width: int = 64
    stride_in_1x1: bool = False

    @nn.nowrap
    def features(self, x: jax.Array, make: Layers) -> jax.Array:
        if self.stem == "imagenet":
            x = make.conv(self.width, 7, stride=2, name="conv1")(x)
        else:
            x = make.conv(self.width, 3, name="conv1")(x)
        x = nn.relu(make.batch_norm(name="bn1")(x))
        if self.stem == "imagenet":
            x = make.max_pool(x)
        block = self.repeated(self.block)
        rates = iter(self.drop_rates(sum(self.depths)))
        for stage, depth in enumerate(self.depths):
            for index in range(depth):
                x = block(
                    planes=self.width * 2**stage,
                    stride=2 if stage > 0 and index == 0 else 1,
                    make=make,
                    drop_rate=next(rates),
                    stride_in_1x1=self.stride_in_1x1,
                    name=f"layer{stage + 1}_{index}",
                )(x)
        return self.pooled(x, make)


@dataclasses.dataclass(frozen=True)
class Variant:
    """What sets one ResNet apart from another."""

    depths: tuple[int, ...]
    block: type[ResidualBlock]
    width: int = 64


VARIANTS = {
    "resnet8": Variant((1, 1, 1), BasicBlock, width=16),
    "resnet14": Variant((2, 2, 2), BasicBlock, width=16),
    "resnet20": Variant((3, 3, 3), BasicBlock, width=16),
    "resnet18": Variant((2, 2, 2, 2), BasicBlock),
    "resnet26": Variant((2, 2, 2, 2), Bottleneck),
    "resnet34": Variant((3, 4, 6, 3), BasicBlock),
    "resnet50": Variant((3, 4, 6, 3), Bottleneck),
    "resnet101": Variant((3, 4, 23, 3), Bottleneck),
    "resnet152": Variant((3, 8, 36, 3), Bottleneck),
    "resnet200": Variant((3, 24, 36, 3), Bottleneck),
}


def create(
    name: str, *, width: int | None = None, stride_in_1x1: bool = False, **options: Any
) -> ResNet:
    """The backbone `name`; `width` replaces the planes of the first stage."""
    variant = VARIANTS[name]
    if stride_in_1x1 and variant.block is not Bottleneck:
        raise UserError(
            f"model.options.stride_in_1x1 (True) is for bottlenecks, which {name} does not have; "
            "leave it out"
        )
    options["stride_in_1x1"] = stride_in_1x1
    return ResNet(
        depths=variant.depths, block=variant.block, width=width or variant.width, **options
    )
