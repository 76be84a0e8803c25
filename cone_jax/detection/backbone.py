"""A ResNet that gives the output of each stage, with the parameters of the classification one."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from cone_jax import settings as config_sections
from cone_jax.detection.settings import Settings
from cone_jax.models import resnet
from cone_jax.models.layers import BatchNorm, Initializer, Layers

STEM, RES5 = 0, 4


class FrozenBatchNorm(BatchNorm):
    """BatchNorm whose statistics, scale and bias are constants; its variables are BatchNorm's."""

    @nn.compact
    def __call__(self, x: jax.Array, kernel: jax.Array | None = None) -> jax.Array:
        if kernel is not None:
            x = x @ kernel.astype(x.dtype)
        shape = (x.shape[-1],)
        scale = lax.stop_gradient(self.param("scale", nn.initializers.ones, shape))
        bias = lax.stop_gradient(self.param("bias", self.bias_init, shape))
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32).value
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32).value
        factor = scale * lax.rsqrt(var + self.epsilon)
        wide = (1,) * (x.ndim - 1) + shape
        y = x.astype(jnp.float32) * factor.reshape(wide) + (bias - mean * factor).reshape(wide)
        return y.astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class FrozenLayers(Layers):
    """The same layers, with BatchNorm frozen."""

    epsilon: float = 1e-5

    def batch_norm(
        self, *, bias_init: Initializer = nn.initializers.zeros, name: str | None = None
    ) -> BatchNorm:
        return FrozenBatchNorm(
            train=False, epsilon=self.epsilon, dtype=self.dtype, bias_init=bias_init, name=name
        )


class Backbone(nn.Module):
    """The stem (stage 0) and the four stages of a ResNet.

    Reference: He et al., "Deep Residual Learning for Image Recognition", arXiv 1512.03385.

    >>> backbone = Backbone(Settings.detectron2(backbone="resnet18", width=8))
    >>> image = jnp.zeros((1, 64, 64, 3))
    >>> outputs, _ = jax.eval_shape(
    ...     lambda key: backbone.init_with_output(key, image, train=False), jax.random.key(0)
    ... )
    >>> [output.shape[1] for output in outputs]
    [16, 16, 8, 4, 2]
    """

    settings: Settings  # architecture, width, and what is frozen

    @nn.compact
    def __call__(
        self, x: jax.Array, *, train: bool, stages: Sequence[int] = range(RES5 + 1)
    ) -> list[jax.Array]:
        """Images [B, H, W, 3], or the output before the first of `stages` -> that of each stage.

        A C4 detector runs `RES5` by itself, on regions.
        """
        outputs = []
        for stage in stages:
            make = self._layers(stage, train)
            x = _stem(x, make, self.settings) if stage == STEM else _stage(x, stage, make, self)
            if stage < self.settings.freeze_at:
                x = lax.stop_gradient(x)
            outputs.append(x)
        return outputs

    def _layers(self, stage: int, train: bool) -> Layers:
        settings = self.settings
        if settings.backbone_norm == "frozen" or stage < settings.freeze_at:
            return FrozenLayers(
                dtype=settings.compute_dtype,
                platform=settings.platform,
                epsilon=settings.norm_epsilon,
            )
        return head_layers(settings).training(train)


def _stem(x: jax.Array, make: Layers, settings: Settings) -> jax.Array:
    x = make.conv(settings.width, 7, stride=2, name="conv1")(x.astype(make.dtype))
    return make.max_pool(nn.relu(make.batch_norm(name="bn1")(x)))


def _stage(x: jax.Array, stage: int, make: Layers, backbone: Backbone) -> jax.Array:
    settings = backbone.settings
    variant = resnet.VARIANTS[settings.backbone]
    block: Any = nn.remat(variant.block) if settings.remat else variant.block
    for index in range(variant.depths[stage - 1]):
        x = block(
            planes=settings.width * 2 ** (stage - 1),
            stride=2 if stage > 1 and index == 0 else 1,
            make=make,
            name=f"layer{stage}_{index}",
        )(x)
    return x


def head_layers(settings: Settings) -> Layers:
    """Makes the layers of everything that is trained."""
    return Layers(
        dtype=settings.compute_dtype,
        bn_momentum=settings.bn_momentum,
        bn_groups=settings.bn_groups,
        platform=settings.platform,
    )


def is_frozen(settings: config_sections.Detector, path: Sequence[str]) -> bool:
    """Whether the parameter at `path` is a constant: neither gradient nor weight decay moves it.

    Args:
        settings: of the detector.
        path: the names that lead to the parameter.

    Returns:
        True for what `freeze_at` and frozen BatchNorm take out of training.

    >>> settings = Settings.detectron2()
    >>> is_frozen(settings, ["backbone", "layer1_0", "conv1", "kernel"])
    True
    >>> is_frozen(settings, ["backbone", "layer2_0", "conv1", "kernel"])
    False
    """
    if path[0] != "backbone":
        return False
    norm = path[-1] in ("scale", "bias")
    if norm and settings.backbone_norm == "frozen":
        return True
    layer = path[1].removeprefix("layer")[0]
    stage = int(layer) if layer.isdigit() else STEM
    return stage < settings.freeze_at
