"""ConvNeXt-Tiny and -Small (Liu et al., arXiv 2201.03545).

The CIFAR stem, a choice of this project, is a 3x3 convolution that keeps the resolution, where
the published one cuts patches of 4 pixels. Published training drops branches with
`stochastic_depth` 0.1 (Tiny) and 0.4 (Small).
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cone_jax.models.layers import Layers, ResidualBackbone, global_average_pool

WIDTHS = (96, 192, 384, 768)
DEPTHS = {"convnext_tiny": (3, 3, 9, 3), "convnext_small": (3, 3, 27, 3)}
MLP_RATIO = 4
NORM_EPSILON = 1e-6

# The published truncated normal is cut at +-2, a hundred deviations out: a plain normal.
NORMAL = nn.initializers.normal(0.02)


class Block(nn.Module):
    """Depthwise 7x7, LayerNorm, an MLP of each pixel, and a learned scale; with a shortcut."""

    make: Layers
    drop_rate: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        make, width = self.make, x.shape[-1]
        y = make.conv(width, 7, groups=width, use_bias=True, kernel_init=NORMAL, name="depthwise")(
            x
        )
        y = norm("norm", make.dtype)(y)
        y = nn.gelu(self._linear(y, MLP_RATIO * width, "mlp_in"), approximate=False)
        y = self._linear(y, width, "mlp_out")
        scale = self.param("layer_scale", nn.initializers.constant(1e-6), (width,))
        y = y * jnp.expand_dims(scale.astype(make.dtype), (0, 1, 2))
        return x + make.drop_branch(y, self.drop_rate)

    def _linear(self, x: jax.Array, features: int, name: str) -> jax.Array:
        zeros = nn.initializers.zeros
        return self.make.linear(
            features, fan_in=x.shape[-1], kernel_init=NORMAL, bias_init=zeros, name=name
        )(x)


class ConvNeXt(ResidualBackbone, kw_only=True):
    """Images [B, H, W, 3] -> normalised pooled features [B, 768], float32."""

    depths: tuple[int, ...]

    classifier_std = 0.02

    @nn.nowrap
    def features(self, x: jax.Array, make: Layers) -> jax.Array:
        options: dict[str, Any] = {"use_bias": True, "kernel_init": NORMAL}
        if self.stem == "cifar":
            x = make.conv(WIDTHS[0], 3, name="stem_conv", **options)(x)
        else:
            x = make.conv(WIDTHS[0], 4, stride=4, pad=0, name="stem_conv", **options)(x)
        x = norm("stem_norm", make.dtype)(x)
        block = self.repeated(Block)
        rates = iter(self.drop_rates(sum(self.depths)))
        for stage, (width, depth) in enumerate(zip(WIDTHS, self.depths, strict=True), start=1):
            if stage > 1:
                x = norm(f"downsample{stage}_norm", make.dtype)(x)
                conv = make.conv(
                    width, 2, stride=2, pad=0, name=f"downsample{stage}_conv", **options
                )
                x = conv(x)
            for index in range(depth):
                x = block(make, next(rates), name=f"stage{stage}_{index}")(x)
        x = norm("norm", jnp.float32)(global_average_pool(x))
        return make.dropout(self.dropout)(x)


def norm(name: str, dtype: Any) -> nn.LayerNorm:
    """LayerNorm over the channels of each pixel."""
    return nn.LayerNorm(NORM_EPSILON, dtype=dtype, name=name)


def create(name: str, **options: Any) -> ConvNeXt:
    """ConvNeXt-Tiny or -Small."""
    return ConvNeXt(depths=DEPTHS[name], **options)
