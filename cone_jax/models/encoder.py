"""The encoder of the method: backbone, projection head, classifier.

    images [B,H,W,3] -> backbone -> features [B,d] -> projection -> embedding [B,D] -> logits [B,C]

The classifier's columns are the class centres. The embedding is returned un-normalised; only
similarities and the bank use its unit-norm version (`cone_jax.losses.normalise`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.models.layers import Layers

ClassifierInput = Literal["embedding", "features"]
ClassifierKind = Literal["linear", "cosine"]


class EncoderOutput(NamedTuple):
    """What a network makes of B images."""

    features: jax.Array  # [B, d] pooled backbone features, float32
    embedding: jax.Array  # [B, D] not normalised, float32
    logits: jax.Array  # [B, C] float32
    prediction: jax.Array | None = None  # [B, D] of the predictor, where there is one


@dataclasses.dataclass(frozen=True)
class Projection:
    """Shape of the projection head: `layers` hidden Linear-BN-ReLU blocks, then a Linear.

    `hidden` None means ``max(2 d, 4096)``, the released code's rule. SupCon's TensorFlow code
    scales the head's input to unit norm, NNCLR has a BatchNorm after the last Linear too.
    """

    dim: int = 256
    hidden: int | None = None
    layers: int = 1
    batch_norm: bool = True
    normalise_input: bool = False
    output_batch_norm: bool = False


@dataclasses.dataclass(frozen=True)
class Classifier:
    """What the class centres see.

    `input` is the embedding (default) or the pooled features. `kind` "linear" takes it as it
    is; "cosine" scales it to unit norm first (the paper's equations), and the lengths of the
    centres are the learned scale.
    """

    input: ClassifierInput = "embedding"
    kind: ClassifierKind = "linear"
    bias: bool = True


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """What a network is, in plain values: enough to build it again from a file.

    >>> spec = ModelSpec("resnet8", 10, stem="cifar", options=(("width", 8),))
    >>> ModelSpec.from_dict(spec.to_dict()) == spec
    True
    """

    name: str
    num_classes: int
    stem: str = "imagenet"
    projection: Projection | None = Projection()
    classifier: Classifier = Classifier()
    predictor: Projection | None = None  # a second head, on the embedding
    dtype: str = "float32"
    options: tuple[tuple[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
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
    """Backbone + projection head + classifier. Without a projection the embedding is d wide."""

    backbone: nn.Module
    spec: ModelSpec
    make: Layers

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
