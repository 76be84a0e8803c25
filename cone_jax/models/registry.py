"""Architectures by name."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cone_jax.errors import UserError, closest
from cone_jax.models import deit, mobilenet, regnet, resnet, shufflenet
from cone_jax.models.encoder import Classifier, Encoder, ModelSpec, Projection
from cone_jax.models.layers import Layers
from cone_jax.registry import Registry
from cone_jax.settings import Model

# Each maps (name, *, make, stem, **options) to a backbone: images [B,H,W,3] -> features [B,d].
BackboneFactory = Callable[..., nn.Module]

_OWN: dict[str, BackboneFactory] = {
    **dict.fromkeys(resnet.VARIANTS, resnet.create),
    "regnetx_400mf": regnet.create,
    "mobilenet_v2": mobilenet.create,
    "shufflenet_v2": shufflenet.create,
    "deit_tiny": deit.create,
}
BACKBONES = Registry("network", "cone_jax.models", _OWN)


def names() -> tuple[str, ...]:
    """All architectures that `create` knows.

    >>> names()[:3]
    ('resnet8', 'resnet14', 'resnet20')
    """
    return tuple(BACKBONES)


def create(
    name: str,
    num_classes: int,
    *,
    stem: str = "imagenet",
    projection: Projection | None = Projection(),
    classifier: Classifier = Classifier(),
    predictor: Projection | None = None,
    dtype: Any = jnp.float32,
    platform: str | None = None,
    **options: Any,
) -> Encoder:
    """The encoder for architecture `name`, in the forms that suit `platform` (see `build`).

    `projection` None gives the plain classifier on pooled features; `predictor` adds a second
    head on the embedding, which some methods train against. Further `options`:

    * ``bn_momentum`` (0.9, the weight of old running statistics) and ``bn_groups`` (1: global
      statistics; the number of devices: per-device ones), of every network with BatchNorm;
    * ``dropout``, ``stochastic_depth`` (the last block's rate), ``remat`` (recompute the
      activations of a block in the backward pass), where the architecture has a place for them;
    * ``width`` of a ResNet, ``last_width`` of the RegNet, ``image_size`` of DeiT's positions.

    In train mode an encoder with dropout or stochastic depth needs ``rngs={"dropout": key}``,
    and one with BatchNorm ``mutable=["batch_stats"]``.

    >>> import jax
    >>> encoder = create("resnet8", 10, stem="cifar", projection=Projection(dim=32, hidden=64))
    >>> variables = encoder.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)), train=False)
    >>> out = encoder.apply(variables, jnp.zeros((2, 8, 8, 3)), train=False)
    >>> out.features.shape, out.embedding.shape, out.logits.shape
    ((2, 64), (2, 32), (2, 10))
    """
    return build(
        ModelSpec(
            name,
            num_classes,
            stem,
            projection,
            classifier,
            predictor,
            jnp.dtype(dtype).name,
            tuple(sorted(options.items())),
        ),
        platform=platform,
    )


def from_settings(settings: Model, num_classes: int, platform: str | None = None) -> Encoder:
    """The encoder that the section ``model`` of a config describes (see `build`)."""
    projection = predictor = None
    if settings.projection:
        projection = Projection(
            dim=settings.embedding_dim,
            hidden=settings.head_hidden or None,
            layers=settings.head_layers,
            batch_norm=settings.head_batch_norm,
            normalise_input=settings.head_normalise_input,
            output_batch_norm=settings.head_output_batch_norm,
        )
        if settings.predictor:
            predictor = Projection(dim=settings.embedding_dim, hidden=settings.predictor_hidden)
    options = dataclasses.asdict(settings.options)
    return create(
        settings.name,
        num_classes,
        stem=settings.stem,
        projection=projection,
        classifier=Classifier(
            input=settings.classifier_input,
            kind=settings.classifier,
            bias=settings.classifier_bias,
        ),
        predictor=predictor,
        dtype=jnp.dtype(settings.dtype),
        platform=platform,
        **{name: value for name, value in options.items() if value is not None},
    )


def build(spec: ModelSpec, *, platform: str | None = None) -> Encoder:
    """The encoder that `spec` describes.

    `platform` is the one that its programs will be compiled for: ``cpu``, ``gpu``, ``tpu`` or
    `ANY_PLATFORM`. None means that of JAX's default backend, now. It decides the form of
    operations, never their results, and is not part of what a network is.
    """
    if spec.name not in BACKBONES:
        raise UserError(
            f"model.name ({spec.name!r}) is not an architecture; {closest(spec.name, BACKBONES)}"
        )
    if spec.stem not in ("imagenet", "cifar"):
        raise UserError(f"model.stem ({spec.stem!r}) must be 'imagenet' or 'cifar'")
    options = dict(spec.options)
    make = Layers(
        dtype=jnp.dtype(spec.dtype),
        bn_momentum=options.pop("bn_momentum", 0.9),
        bn_groups=options.pop("bn_groups", 1),
        platform=jax.default_backend() if platform is None else platform,
    )
    for option in ("dropout", "stochastic_depth"):
        if not 0.0 <= options.get(option, 0.0) < 1.0:
            raise UserError(f"model.options.{option} ({options[option]}) must be in [0, 1)")
    try:
        backbone = BACKBONES[spec.name](spec.name, make=make, stem=spec.stem, **options)
    except TypeError as error:
        raise UserError(f"model.options ({options!r}) do not fit {spec.name}: {error}") from error
    return Encoder(backbone, spec, make)
