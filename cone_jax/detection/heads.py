"""The trained parts around the backbone: pyramid, proposal head, box heads, mask heads.

Initialisation is Detectron2's. Every head takes features of any number of regions, NHWC.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from cone_jax.detection.settings import Settings
from cone_jax.models.layers import Initializer, Layers, he_normal_fan_out

xavier: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "uniform")


class Convolution(nn.Module):
    """A convolution with a bias or, with `norm`, with BatchNorm; then ReLU if asked."""

    features: int
    kernel: int
    make: Layers
    norm: bool = False
    relu: bool = False
    kernel_init: Initializer = he_normal_fan_out

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.make.conv(
            self.features,
            self.kernel,
            use_bias=not self.norm,
            kernel_init=self.kernel_init,
            name="conv",
        )(x)
        if self.norm:
            x = self.make.batch_norm(name="bn")(x)
        return nn.relu(x) if self.relu else x


class Doubling(nn.Module):
    """A transposed 2x2 convolution with stride 2: each cell becomes four, by one product."""

    features: int
    make: Layers

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (2, 2, x.shape[-1], self.features)
        # Fan-out as Detectron2 counts it for a transposed kernel: its input channels.
        init = nn.initializers.variance_scaling(2.0, "fan_in", "normal")
        kernel = self.param("kernel", init, shape).astype(self.make.dtype)
        bias = self.param("bias", nn.initializers.zeros, shape[-1:]).astype(self.make.dtype)
        n, height, width, _ = x.shape
        cells = jnp.einsum("nhwi,abio->nhawbo", x.astype(self.make.dtype), kernel)
        return cells.reshape(n, 2 * height, 2 * width, self.features) + bias[None, None, None]


class Pyramid(nn.Module):
    """Feature pyramid: C2 to C5 -> P2 to P6, all with the same channels.

    (Lin et al., "Feature Pyramid Networks for Object Detection", arXiv 1612.03144.)
    """

    settings: Settings
    make: Layers

    @nn.compact
    def __call__(self, stages: Sequence[jax.Array], *, train: bool) -> list[jax.Array]:
        channels, norm = self.settings.pyramid_channels, self.settings.head_norm == "batch"
        make = self.make.training(train)

        def convolution(kernel: int, name: str) -> Convolution:
            return Convolution(channels, kernel, make, norm, kernel_init=xavier, name=name)

        levels: list[jax.Array] = []
        above = None
        for level in reversed(range(len(stages))):
            x = convolution(1, f"inner{level}")(stages[level])
            above = x if above is None else x + _enlarge(above, x.shape[1:3])
            levels.insert(0, convolution(3, f"layer{level}")(above))
        return [*levels, levels[-1][:, ::2, ::2]]


class ProposalHead(nn.Module):
    """Features of each level -> objectness [B, N] and codes [B, N, 4] of all its anchors."""

    anchors_per_cell: int
    make: Layers

    @nn.compact
    def __call__(self, levels: Sequence[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
        init = nn.initializers.normal(0.01)
        count, make = self.anchors_per_cell, self.make

        def convolution(features: int, kernel: int, name: str, relu: bool = False) -> Convolution:
            return Convolution(features, kernel, make, relu=relu, kernel_init=init, name=name)

        shared = convolution(levels[0].shape[-1], 3, "conv", relu=True)
        logits, codes = convolution(count, 1, "logits"), convolution(4 * count, 1, "codes")
        results = []
        for level in levels:
            x = shared(level)
            batch = x.shape[0]
            results.append((logits(x).reshape(batch, -1), codes(x).reshape(batch, -1, 4)))
        return results


class BoxHead(nn.Module):
    """Pooled features [N, P, P, C] -> [N, D]: two linear layers, or convolutions and one."""

    settings: Settings
    make: Layers

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        settings, make = self.settings, self.make.training(train)
        linear_layers = 2
        if settings.box_head == "convolutions":
            linear_layers = 1
            norm = settings.head_norm == "batch"
            for index in range(settings.box_convolutions):
                channels = settings.pyramid_channels
                x = Convolution(channels, 3, make, norm, relu=True, name=f"conv{index}")(x)
        x = x.reshape(x.shape[0], -1)
        for index in range(linear_layers):
            linear = make.linear(
                settings.box_features,
                x.shape[-1],
                kernel_init=xavier,
                bias_init=nn.initializers.zeros,
                name=f"linear{index}",
            )
            x = nn.relu(linear(x))
        return x


class BoxPredictor(nn.Module):
    """[N, D] -> class logits [N, K + 1] and codes [N, K + 1, 4]; the background comes first."""

    settings: Settings
    make: Layers

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        classes, zeros = self.settings.num_classes + 1, nn.initializers.zeros

        def linear(features: int, std: float, name: str) -> nn.Dense:
            normal = nn.initializers.normal(std)
            return self.make.linear(
                features, x.shape[-1], kernel_init=normal, bias_init=zeros, name=name
            )

        logits = linear(classes, 0.01, "logits")(x)
        return logits, linear(4 * classes, 0.001, "codes")(x).reshape(-1, classes, 4)


class MaskHead(nn.Module):
    """Pooled features [N, P, P, C] -> mask logits [N, 2P, 2P, K + 1]."""

    settings: Settings
    make: Layers

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        settings, make = self.settings, self.make.training(train)
        channels, norm = settings.mask_channels, settings.head_norm == "batch"
        for index in range(settings.mask_convolutions):
            x = Convolution(channels, 3, make, norm, relu=True, name=f"conv{index}")(x)
        x = nn.relu(Doubling(channels, make, name="doubling")(x))
        init = nn.initializers.normal(0.001)
        return Convolution(settings.num_classes + 1, 1, make, kernel_init=init, name="logits")(x)


def _enlarge(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Nearest neighbour, [B, h, w, C] -> [B, H, W, C]."""
    height, width = shape
    if (height, width) == (2 * x.shape[1], 2 * x.shape[2]):
        return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
    rows = jnp.arange(height) * x.shape[1] // height
    columns = jnp.arange(width) * x.shape[2] // width
    return x[:, rows][:, :, columns]
