"""DeiT-Tiny (Touvron et al., arXiv 2012.12877): a vision transformer without distillation token.

Patches of 16 pixels, or of 4 with the CIFAR stem (a choice of this project). Positions are
learned for images of `image_size`; other resolutions interpolate them, with the bicubic kernel
PyTorch uses, so that the result is the one of the public fine-tuning code.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cone_jax.errors import UserError
from cone_jax.models import layers
from cone_jax.models.layers import Layers, ResidualBackbone

WIDTH = 192
HEADS = 3
DEPTH = 12
MLP_RATIO = 4
NORM_EPSILON = 1e-6
PATCH = {"imagenet": 16, "cifar": 4}
IMAGE_SIZE = {"imagenet": 224, "cifar": 32}

# The published truncated normal is cut at +-2, a hundred deviations out: a plain normal.
NORMAL = nn.initializers.normal(0.02)


class Block(nn.Module):
    """Pre-norm self-attention and MLP, each with a shortcut."""

    make: Layers
    dropout: float = 0.0
    drop_rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = self._norm("norm1")(x)
        # PyTorch's fused layout: queries, keys, values, each head by head.
        qkv = self._linear(3 * WIDTH, "qkv")(y)
        query, key, value = jnp.split(
            qkv.reshape(*qkv.shape[:2], 3 * HEADS, WIDTH // HEADS), 3, axis=2
        )
        y = jax.nn.dot_product_attention(query, key, value)
        y = self._linear(WIDTH, "attention_out")(y.reshape(*y.shape[:2], WIDTH))
        x = x + self._regularise(y)
        y = self._linear(MLP_RATIO * WIDTH, "mlp_in")(self._norm("norm2")(x))
        y = self.make.dropout(self.dropout)(nn.gelu(y, approximate=False))
        y = self._linear(WIDTH, "mlp_out")(y)
        return x + self._regularise(y)

    def _norm(self, name: str) -> nn.LayerNorm:
        return nn.LayerNorm(NORM_EPSILON, dtype=self.make.dtype, name=name)

    def _linear(self, features: int, name: str) -> nn.Dense:
        return self.make.linear(
            features, WIDTH, kernel_init=NORMAL, bias_init=nn.initializers.zeros, name=name
        )

    def _regularise(self, y: jax.Array) -> jax.Array:
        return self.make.drop_branch(self.make.dropout(self.dropout)(y), self.drop_rate)


class VisionTransformer(ResidualBackbone):
    """Images [B, H, W, 3] -> features of the class token [B, 192], float32."""

    image_size: int = 224

    classifier_std = 0.02

    @nn.nowrap
    def features(self, x: jax.Array, make: Layers) -> jax.Array:
        patch = PATCH[self.stem]
        height, width = x.shape[1] // patch, x.shape[2] // patch
        if (height * patch, width * patch) != x.shape[1:3]:
            raise UserError(
                f"data.image_size ({x.shape[1]}x{x.shape[2]}) must be a multiple of the patch "
                f"({patch}) of this network"
            )
        patch_init = layers.uniform_fan_in(3 * patch**2)
        x = nn.Conv(
            WIDTH,
            (patch, patch),
            strides=patch,
            padding="VALID",
            dtype=make.dtype,
            kernel_init=patch_init,
            bias_init=patch_init,
            name="patch_embedding",
        )(x)
        x = x.reshape(x.shape[0], height * width, WIDTH)
        side = self.image_size // patch
        class_token = self.param("class_token", NORMAL, (1, 1, WIDTH))
        position = self.param("position", NORMAL, (1, 1 + side * side, WIDTH))
        position = interpolate_positions(position, (height, width))
        token = jnp.broadcast_to(class_token.astype(make.dtype), (x.shape[0], 1, WIDTH))
        x = jnp.concatenate((token, x), axis=1) + position.astype(make.dtype)
        x = make.dropout(self.dropout)(x)
        block = self.repeated(Block)
        for index, rate in enumerate(self.drop_rates(DEPTH)):
            x = block(make=make, dropout=self.dropout, drop_rate=rate, name=f"block{index}")(x)
        token = lax.index_in_dim(x, 0, axis=1, keepdims=False)
        return nn.LayerNorm(NORM_EPSILON, name="norm")(token.astype(jnp.float32))


def interpolate_positions(position: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """Learned positions [1, 1 + n n, D] for another grid of patches: [1, 1 + h w, D]."""
    side = round((position.shape[1] - 1) ** 0.5)
    if grid == (side, side):
        return position
    patches = position[0, 1:].reshape(side, side, -1)
    patches = jnp.einsum("hi,wj,ijd->hwd", *(_bicubic(side, n) for n in grid), patches)
    return jnp.concatenate((position[:, :1], patches.reshape(1, -1, position.shape[-1])), axis=1)


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
    """DeiT-Tiny; `image_size` is the one positions are learned for (224, CIFAR stem 32)."""
    patch = PATCH[stem]
    image_size = image_size or IMAGE_SIZE[stem]
    if image_size % patch:
        raise UserError(
            f"model.options.image_size ({image_size}) must be a multiple of the patch ({patch})"
        )
    return VisionTransformer(stem=stem, image_size=image_size, **options)
