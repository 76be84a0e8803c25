"""Networks by name, and the encoder around them: backbone, projection head, classifier.

    images [B,H,W,3] -> backbone -> features [B,d] -> projection -> embedding [B,D] -> logits [B,C]

The classifier's columns are the class centres. The embedding is returned un-normalised; only
similarities and the bank use its unit-norm version (`cone_jax.losses.normalise`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.errors import UserError, closest
from cone_jax.models import convnext, deit, efficientnet, mobilenet, regnet, resnet, shufflenet
from cone_jax.models.layers import Layers
from cone_jax.settings import Model
from cone_jax.spec_strings import Registry

ClassifierInput = Literal["embedding", "features"]
ClassifierKind = Literal["linear", "cosine"]


class EncoderOutput(NamedTuple):
    """A network's outputs for B images.

    >>> rows = jnp.zeros((2, 64))
    >>> EncoderOutput(features=rows, embedding=rows[:, :32], logits=rows[:, :10]).logits.shape
    (2, 10)
    """

    features: jax.Array  # [B, d] pooled backbone features, float32
    embedding: jax.Array  # [B, D] not normalised, float32
    logits: jax.Array  # [B, C] float32
    prediction: jax.Array | None = None  # [B, D] of the predictor, where there is one


@dataclasses.dataclass(frozen=True)
class Projection:
    """Shape of the projection head: `layers` hidden Linear-BN-ReLU blocks, then a Linear.

    `hidden` None means ``max(2 d, 4096)``, the released code's rule. SupCon's TensorFlow code
    scales the head's input to unit norm, NNCLR has a BatchNorm after the last Linear too.

    >>> encoder = create("resnet8", 10, stem="cifar", projection=Projection(dim=64, hidden=128))
    >>> encoder.spec.projection.dim
    64
    """

    dim: int = 256  # D, the width of the embedding
    hidden: int | None = None  # width of the hidden blocks
    layers: int = 1  # number of hidden blocks
    batch_norm: bool = True  # BatchNorm in the hidden blocks
    normalise_input: bool = False  # features are scaled to unit norm first
    output_batch_norm: bool = False  # one more BatchNorm, at the end


@dataclasses.dataclass(frozen=True)
class Classifier:
    """The linear classifier, whose columns are the class centres, and its input.

    `input` is the embedding (default) or the pooled features. `kind` "linear" takes it as it
    is; "cosine" scales it to unit norm first (the paper's equations), and the lengths of the
    centres are the learned scale.

    >>> create("resnet8", 10, classifier=Classifier(kind="cosine", bias=False)).spec.classifier.bias
    False
    """

    input: ClassifierInput = "embedding"  # "embedding" or "features"
    kind: ClassifierKind = "linear"  # "linear" or "cosine"
    bias: bool = True  # whether each class has a bias


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """The specification of a network in plain values, enough to rebuild it from a file.

    >>> spec = ModelSpec("resnet8", 10, stem="cifar", options=(("width", 8),))
    >>> ModelSpec.from_dict(spec.to_dict()) == spec
    True
    """

    name: str  # one of `names`
    num_classes: int  # the number of classes, C
    stem: str = "imagenet"  # "imagenet", or "cifar" for small images
    projection: Projection | None = Projection()  # None: the classifier sees pooled features
    classifier: Classifier = Classifier()  # kind and input of the classifier
    predictor: Projection | None = None  # a second head, on the embedding
    dtype: str = "float32"  # what the network computes in
    options: tuple[tuple[str, Any], ...] = ()  # further keywords of `create`

    def to_dict(self) -> dict[str, Any]:
        """The specification as JSON can hold it."""
        return {**dataclasses.asdict(self), "options": dict(self.options)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelSpec":
        """The inverse of `to_dict`."""
        heads = {name: values.get(name) for name in ("projection", "predictor")}
        return cls(
            **{
                **values,
                **{name: Projection(**head) if head else None for name, head in heads.items()},
                "classifier": Classifier(**values["classifier"]),
                "options": tuple(sorted(values["options"].items())),
            }
        )


class ProjectionHead(nn.Module):
    """The MLP between backbone and embedding, and the one between embedding and prediction."""

    spec: Projection
    make: Layers

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = self.spec.hidden or max(2 * x.shape[-1], 4096)
        if self.spec.normalise_input:
            x = losses.normalise(x)
        for index in range(1, self.spec.layers + 1):
            x = self.make.linear(hidden, fan_in=x.shape[-1], name=f"linear{index}")(x)
            if self.spec.batch_norm:
                x = self.make.batch_norm(name=f"bn{index}")(x)
            x = nn.relu(x)
        x = self.make.linear(self.spec.dim, fan_in=x.shape[-1], name="linear_out")(x)
        return self.make.batch_norm(name="bn_out")(x) if self.spec.output_batch_norm else x


class Encoder(nn.Module):
    """Backbone + projection head + classifier. Without a projection the embedding is d wide.

    >>> encoder = create("resnet8", 10, stem="cifar", width=4)
    >>> images = jnp.zeros((2, 32, 32, 3))
    >>> out, variables = jax.eval_shape(
    ...     lambda key: encoder.init_with_output(key, images, train=False), jax.random.key(0)
    ... )
    >>> out.features.shape, out.embedding.shape, out.logits.shape
    ((2, 16), (2, 256), (2, 10))
    """

    backbone: nn.Module  # images to pooled features
    spec: ModelSpec  # what it is
    make: Layers  # the layers of its heads
    # Columns of a batch that a network is shown beside the images; a detector has one.
    inputs: ClassVar[tuple[str, ...]] = ()

    def __call__(self, images: jax.Array, *, train: bool) -> EncoderOutput:
        features = self.backbone(images, train=train).astype(jnp.float32)
        return self.from_features(features, train=train)

    @nn.compact
    def from_features(self, features: jax.Array, *, train: bool) -> EncoderOutput:
        """Everything after the backbone: features [B, d], float32, to the whole output."""
        make = self.make.training(train)
        embedding = features
        if self.spec.projection is not None:
            head = ProjectionHead(self.spec.projection, make, name="projection")
            embedding = head(features).astype(jnp.float32)
        prediction = None
        if self.spec.predictor is not None:
            second_head = ProjectionHead(self.spec.predictor, make, name="predictor")
            prediction = second_head(embedding).astype(jnp.float32)
        classified = embedding if self.spec.classifier.input == "embedding" else features
        logits = self._class_centres(classified.shape[-1])(self._as_classified(classified))
        return EncoderOutput(features, embedding, logits, prediction)

    @nn.nowrap
    def classify(self, variables: Mapping[str, Any], seen: jax.Array) -> jax.Array:
        """Logits of what the classifier sees: embeddings [B, D], or features [B, d]."""
        centres = {"params": variables["params"]["classifier"]}
        layer = self._class_centres(seen.shape[-1])
        return cast(jax.Array, layer.apply(centres, self._as_classified(seen)))

    @nn.nowrap
    def _as_classified(self, seen: jax.Array) -> jax.Array:
        return losses.normalise(seen) if self.spec.classifier.kind == "cosine" else seen

    @nn.nowrap
    def _class_centres(self, width: int) -> nn.Dense:
        classifier = self.spec.classifier
        # An architecture's published initialisation is that of a layer on its own features.
        own = self.spec.projection is None or classifier.input == "features"
        std = getattr(self.backbone, "classifier_std", None) if own else None
        # Class centres stay in float32: they decide, and they cost nothing.
        return dataclasses.replace(self.make, dtype=jnp.float32).linear(
            self.spec.num_classes,
            fan_in=width,
            use_bias=classifier.bias,
            kernel_init=nn.initializers.normal(std) if std else None,
            bias_init=nn.initializers.zeros if std else None,
            name="classifier",
        )


# Each maps (name, *, make, stem, **options) to a backbone: images [B,H,W,3] -> features [B,d].
BackboneFactory = Callable[..., nn.Module]

_OWN: dict[str, BackboneFactory] = {
    **dict.fromkeys(resnet.VARIANTS, resnet.create),
    "regnetx_400mf": regnet.create,
    "mobilenet_v2": mobilenet.create,
    "shufflenet_v2": shufflenet.create,
    **dict.fromkeys(deit.VARIANTS, deit.create),
    **dict.fromkeys(convnext.DEPTHS, convnext.create),
    "efficientnet_b0": efficientnet.create,
}
BACKBONES = Registry("network", "cone_jax.models", _OWN)


def names() -> tuple[str, ...]:
    """All architectures that `create` knows.

    Returns:
        Names in the order of the list of networks.

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
    """The encoder for architecture `name`, in the forms that suit `platform`.

    In train mode an encoder with dropout or stochastic depth needs ``rngs={"dropout": key}``,
    and one with BatchNorm ``mutable=["batch_stats"]``.

    Args:
        name: one of `names`.
        num_classes: C.
        stem: ``imagenet``, or ``cifar`` for small images.
        projection: the head before the embedding; None gives the classifier on pooled features.
        classifier: the kind of classifier, and its input.
        predictor: a second head on the embedding, which some methods train against.
        dtype: what the network computes in.
        platform: see `build`.
        options: ``bn_momentum`` (0.9, the weight of old running statistics) and ``bn_groups`` (1:
            global statistics; the number of devices: per-device ones) of BatchNorm; ``bn_frozen``
            (the backbone's keeps its statistics); ``dropout``, ``stochastic_depth`` (the last
            block's rate), ``remat`` (recompute activations in the backward pass), where there is
            a place for them; ``width`` and ``stride_in_1x1`` of a ResNet, ``last_width`` of
            the RegNet, ``image_size`` of a transformer's positions, ``distilled``: the second
            token of DeiT, ``channel_order`` of ShuffleNetV2.

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
    """The encoder that the section ``model`` of a config describes (see `build`).

    Args:
        settings: the section, typed.
        num_classes: C.
        platform: see `build`.

    Returns:
        A Flax module that maps images to an `EncoderOutput`.

    >>> from_settings(Model(name="resnet8", stem="cifar"), 10).spec.num_classes
    10
    """
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

    Args:
        spec: a network in plain values.
        platform: what its programs will be compiled for: ``cpu``, ``gpu``, ``tpu`` or
            `ANY_PLATFORM`; None: JAX's current default backend. It decides the form of operations,
            never their results, and is not part of the specification.

    Returns:
        A Flax module that maps images to an `EncoderOutput`.

    >>> build(ModelSpec("resnet8", 10)).spec.num_classes
    10
    """
    if spec.name not in BACKBONES:
        raise UserError(
            f"model.name ({spec.name!r}) is not an architecture; {closest(spec.name, BACKBONES)}"
        )
    if spec.stem not in ("imagenet", "cifar"):
        raise UserError(f"model.stem ({spec.stem!r}) must be 'imagenet' or 'cifar'")
    options = dict(spec.options)
    frozen = bool(options.pop("bn_frozen", False))
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
        backbone = BACKBONES[spec.name](
            spec.name, make=dataclasses.replace(make, bn_frozen=frozen), stem=spec.stem, **options
        )
    except TypeError as error:
        raise UserError(f"model.options ({options!r}) do not fit {spec.name}: {error}") from error
    return Encoder(backbone, spec, make)
