"""The network, its momentum copy, its average, and the memory bank."""

import dataclasses
from typing import Literal

from cone_jax.settings.section import Section, field


@dataclasses.dataclass(frozen=True)
class ModelOptions(Section, path="options"):
    """Options of the architecture; None: its own default."""

    width: int | None = field(None, "channels of a ResNet's first stage")
    stride_in_1x1: bool | None = field(
        None, "for a ResNet-50 or deeper: the stride is in the first 1x1 convolution, as in Caffe"
    )
    last_width: int | None = field(None, "for RegNetX-400MF: 400 or 384")
    image_size: int | None = field(None, "image size of a transformer's learned positions")
    distilled: bool | None = field(None, "for DeiT: with the distillation token")
    channel_order: str | None = field(None, "for ShuffleNetV2: torchvision or authors")
    dropout: float | None = field(None, "dropout rate before the head")
    stochastic_depth: float | None = field(None, "stochastic depth: the rate of the last block")
    remat: bool | None = field(None, "recompute activations to save memory")
    bn_momentum: float | None = field(None, "weight of the old running statistics; 0.9 if not set")
    bn_frozen: bool | None = field(
        None, "the backbone's BatchNorm keeps the statistics it starts with, to fine-tune"
    )
    bn_groups: int | None = field(
        None, "groups with BatchNorm statistics of their own; 1: global statistics"
    )


@dataclasses.dataclass(frozen=True)
class Model(Section, path="model"):
    """Backbone, projection head, predictor and classifier."""

    name: str = field("resnet50", "the architecture; docs/models.md lists them")
    stem: Literal["imagenet", "cifar"] = field(
        "imagenet", "the first layers; cifar: for images of about 32 pixels"
    )
    dtype: Literal["float32", "bfloat16"] = field(
        "float32", "type of the computation; parameters are float32"
    )
    options: ModelOptions = field(ModelOptions(), "options of the architecture")
    projection: bool = field(True, "a projection head; False: the classifier sees pooled features")
    embedding_dim: int = field(256, "width of the embedding", low=1)
    head_layers: int = field(1, "hidden layers of the projection head", low=0)
    head_hidden: int = field(0, "width of these layers; 0: max(2 d, 4096) for d features", low=0)
    head_batch_norm: bool = field(True, "BatchNorm after each hidden layer of the head")
    head_normalise_input: bool = field(False, "the head sees features of unit norm")
    head_output_batch_norm: bool = field(False, "BatchNorm also after the last layer of the head")
    predictor: bool = field(False, "a second head on the embedding, where the objective needs one")
    predictor_hidden: int = field(4096, "width of the predictor's hidden layer", low=1)
    classifier: Literal["linear", "cosine"] = field(
        "linear", "cosine: the classifier sees unit-norm embeddings, as in the paper's equations"
    )
    classifier_input: Literal["embedding", "features"] = field(
        "embedding", "the input of the classifier"
    )
    classifier_bias: bool = field(True, "a bias in the classifier")
    sharding: Literal["replicated", "sharded"] = field(
        "replicated",
        "sharded: parameters, optimiser, momentum network and average split over all devices",
        free=True,
    )


@dataclasses.dataclass(frozen=True)
class Bank(Section, path="bank"):
    """The memory bank of earlier keys."""

    size: int = field(65536, "number of rows", low=1)
    init: Literal["masked", "official"] = field(
        "masked",
        "masked: a row counts once it is written; official: noise that counts from step 0, as in "
        "the released code, for comparison only",
    )
    probs: Literal["stored", "recomputed"] = field(
        "stored",
        "class probabilities of the rows: as they were when written, or recomputed from the "
        "embeddings by the current classifier of the key network",
    )
    probs_dtype: Literal["float32", "bfloat16"] = field(
        "float32", "type of the stored probabilities"
    )
    exclude_self: bool = field(False, "hide a sample's own older copy from its neighbours")
    recall_target: float = field(
        1.0,
        "below 1: neighbours are found by approx_max_k, which may miss some",
        low=0.01,
        high=1.0,
    )
    sharding: Literal["replicated", "sharded"] = field(
        "replicated", "sharded: rows split over all devices", free=True
    )


@dataclasses.dataclass(frozen=True)
class Ema(Section, path="ema"):
    """The momentum network, which makes the keys."""

    momentum: float = field(0.996, "weight of the old parameters in each step", low=0.0, high=1.0)
    schedule: Literal["official_auto", "cosine_to_one", "constant"] = field(
        "official_auto",
        "how the momentum rises; official_auto: along a cosine, but constant if above 0.996",
    )
    order: Literal["before_forward", "after_update"] = field(
        "before_forward", "when the average is taken; after_update: as in Algorithm 1 of the paper"
    )


@dataclasses.dataclass(frozen=True)
class Average(Section, path="average"):
    """The averaged model. If it is on, it is the one that is evaluated."""

    decay: float = field(
        0.0, "weight of the old average in each update; 0: no average", low=0.0, high=1.0
    )
    every: int = field(32, "steps between two updates", low=1)
    rescale: bool = field(True, "adapt the decay to batch and epochs, as torchvision does")
