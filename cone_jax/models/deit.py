"""Vision transformers: ViT (Dosovitskiy et al., 2010.11929) and DeiT (Touvron et al., 2012.12877).

ViT-B/16 is the network of DeiT-Base under another name: what differs is how each is trained.
`distilled` adds DeiT's second token. At inference its authors average the class scores of two
linear classifiers, one per token. That is one linear classifier of both tokens side by side, so
features are twice as wide, and the network reads and writes the published pair exactly.

Patches have 16 or 32 pixels, or 4 and 8 with the CIFAR stem (a choice of this project). Positions
are learned for images of `image_size`; other resolutions interpolate them, with the bicubic kernel
PyTorch uses, so that the result is the one of DeiT's public fine-tuning code.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cone_jax.errors import UserError
from cone_jax.models import layers
from cone_jax.models.layers import Layers, ResidualBackbone

MLP_RATIO = 4
NORM_EPSILON = 1e-6
IMAGE_SIZE = {"imagenet": 224, "cifar": 32}

# The published truncated normal is cut at +-2, a hundred deviations out: a plain normal.
NORMAL = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class Variant:
    """What sets one transformer apart from another."""

    width: int
    heads: int
    depth: int = 12
    patch: int = 16


VARIANTS = {
    "deit_tiny": Variant(192, 3),
    "deit_small": Variant(384, 6),
    "deit_base": Variant(768, 12),
    "vit_b_16": Variant(768, 12),
    "vit_b_32": Variant(768, 12, patch=32),
}


class Block(nn.Module):
    """Pre-norm self-attention and MLP, each with a shortcut."""

    heads: int
    make: Layers
    dropout: float = 0.0
    drop_rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, heads = x.shape[-1], self.heads
        y = self._norm("norm1")(x)
        # PyTorch's fused layout: queries, keys, values, each head by head.
        qkv = self._linear(y, 3 * width, "qkv")
        query, key, value = jnp.split(
            qkv.reshape(*qkv.shape[:2], 3 * heads, width // heads), 3, axis=2
        )
        y = jax.nn.dot_product_attention(query, key, value)
        y = self._linear(y.reshape(*y.shape[:2], width), width, "attention_out")
        x = x + self._regularise(y)
        y = self._linear(self._norm("norm2")(x), MLP_RATIO * width, "mlp_in")
        y = self.make.dropout(self.dropout)(nn.gelu(y, approximate=False))
        y = self._linear(y, width, "mlp_out")
        return x + self._regularise(y)

    def _norm(self, name: str) -> nn.LayerNorm:
        return nn.LayerNorm(NORM_EPSILON, dtype=self.make.dtype, name=name)

    def _linear(self, x: jax.Array, features: int, name: str) -> jax.Array:
        zeros = nn.initializers.zeros
        return self.make.linear(
            features, fan_in=x.shape[-1], kernel_init=NORMAL, bias_init=zeros, name=name
        )(x)

    def _regularise(self, y: jax.Array) -> jax.Array:
        return self.make.drop_branch(self.make.dropout(self.dropout)(y), self.drop_rate)


class VisionTransformer(ResidualBackbone, kw_only=True):
    """Images [B, H, W, 3] -> features of the class token [B, width], float32.

    With a distillation token, the features of both tokens, [B, 2 width].
    """

    variant: Variant
    image_size: int = 224
    distilled: bool = False

    classifier_std = 0.02

    @nn.nowrap
    def features(self, x: jax.Array, make: Layers) -> jax.Array:
        variant, tokens = self.variant, 2 if self.distilled else 1
        patch = patch_of(variant, self.stem)
        x, grid = self._patches(x, patch, make)
        side = self.image_size // patch
        shape = (1, tokens + side * side, variant.width)
        names = ("class_token", "distillation_token")[:tokens]
        first = [self.param(name, NORMAL, (1, 1, variant.width)) for name in names]
        position = interpolate_positions(self.param("position", NORMAL, shape), grid, tokens)
        of_image = (x.shape[0], 1, variant.width)
        first = [jnp.broadcast_to(token.astype(make.dtype), of_image) for token in first]
        x = jnp.concatenate((*first, x), axis=1) + position.astype(make.dtype)
        x = make.dropout(self.dropout)(x)
        block = self.repeated(Block)
        for index, rate in enumerate(self.drop_rates(variant.depth)):
            x = block(variant.heads, make, self.dropout, rate, name=f"block{index}")(x)
        x = lax.slice_in_dim(x, 0, tokens, axis=1).astype(jnp.float32)
        x = nn.LayerNorm(NORM_EPSILON, name="norm")(x)
        return x.reshape(x.shape[0], tokens * variant.width)

    @nn.nowrap
    def _patches(self, x: jax.Array, patch: int, make: Layers) -> tuple[jax.Array, tuple[int, int]]:
        """The patches' embeddings [B, h w, width], and (h, w)."""
        height, width = x.shape[1] // patch, x.shape[2] // patch
        if (height * patch, width * patch) != x.shape[1:3]:
            raise UserError(
                f"data.image_size ({x.shape[1]}x{x.shape[2]}) must be a multiple of the patch "
                f"({patch}) of this network"
            )
        init = layers.uniform_fan_in(3 * patch**2)
        x = nn.Conv(
            self.variant.width,
            (patch, patch),
            strides=patch,
            padding="VALID",
            dtype=make.dtype,
            kernel_init=init,
            bias_init=init,
            name="patch_embedding",
        )(x)
        return x.reshape(x.shape[0], height * width, self.variant.width), (height, width)


def patch_of(variant: Variant, stem: str) -> int:
    """Pixels along a patch: with the CIFAR stem a quarter of the published ones."""
    return variant.patch // 4 if stem == "cifar" else variant.patch


def interpolate_positions(position: jax.Array, grid: tuple[int, int], tokens: int = 1) -> jax.Array:
    """Learned positions [1, tokens + n n, D] for another grid: [1, tokens + h w, D]."""
    side = round((position.shape[1] - tokens) ** 0.5)
    if grid == (side, side):
        return position
    patches = position[0, tokens:].reshape(side, side, -1)
    patches = jnp.einsum("hi,wj,ijd->hwd", *(_bicubic(side, n) for n in grid), patches)
    patches = patches.reshape(1, -1, position.shape[-1])
    return jnp.concatenate((position[:, :tokens], patches), axis=1)


def _bicubic(old: int, new: int) -> np.ndarray:
    """[new, old]: cubic convolution with a = -0.75, half-pixel centres, clamped at the border."""
    a = -0.75
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    first = np.floor(centres).astype(int) - 1
    matrix = np.zeros((new, old), np.float32)
    for tap in range(4):
        distance = np.abs(centres - (first + tap))
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = a * (((distance - 5) * distance + 8) * distance - 4)
        weight = np.where(distance <= 1, near, far)
        np.add.at(matrix, (np.arange(new), np.clip(first + tap, 0, old - 1)), weight)
    return matrix


def create(
    name: str, *, stem: str, image_size: int | None = None, **options: Any
) -> VisionTransformer:
    """The transformer `name`; `image_size` is the one positions are learned for (224, or 32)."""
    variant = VARIANTS[name]
    patch = patch_of(variant, stem)
    image_size = image_size or IMAGE_SIZE[stem]
    if image_size % patch:
        raise UserError(
            f"model.options.image_size ({image_size}) must be a multiple of the patch ({patch})"
        )
    return VisionTransformer(variant=variant, stem=stem, image_size=image_size, **options)
