"""Every number of a detector in one place, with the values of the implementations it follows."""

import dataclasses
from typing import Any, Literal, get_args

import jax.numpy as jnp

from cone_jax.detection.anchors import Style
from cone_jax.detection.boxes import Weights
from cone_jax.models import ANY_PLATFORM

Neck = Literal["fpn", "c4"]
BackboneNorm = Literal["frozen", "batch"]
HeadNorm = Literal["none", "batch"]
BoxHead = Literal["linear", "convolutions"]
LossOver = Literal["sampled", "slots"]
Dtype = Literal["float32", "bfloat16"]

BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


@dataclasses.dataclass(frozen=True)
class Settings:
    """A Mask R-CNN; the defaults are Detectron2's with a feature pyramid.

    Classes are 1 to `num_classes`, 0 is the background. BatchNorm over a batch that `jit` shards
    over devices has global statistics, which is SyncBN.
    """

    num_classes: int = 80
    backbone: str = "resnet50"
    width: int = 64  # planes of the first stage
    neck: Neck = "fpn"
    dtype: Dtype = "float32"  # of the computation; parameters are float32
    platform: str = ANY_PLATFORM  # that programs are compiled for; see models.build
    remat: bool = False  # residual blocks are computed again in the backward pass

    backbone_norm: BackboneNorm = "frozen"
    head_norm: HeadNorm = "none"  # in the pyramid, box head and mask head
    res5_norm: bool = False  # C4: one more BatchNorm after res5
    norm_epsilon: float = 1e-5  # of frozen BatchNorm
    bn_momentum: float = 0.9
    bn_groups: int = 1
    freeze_at: int = 2  # the first stages, the stem counts as one, are not trained

    pyramid_channels: int = 256
    box_head: BoxHead = "linear"
    box_convolutions: int = 4  # of the head "convolutions"
    box_features: int = 1024
    masks: bool = True
    mask_convolutions: int = 4
    mask_channels: int = 256

    anchor_sizes: tuple[float, ...] = (32.0, 64.0, 128.0, 256.0, 512.0)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    anchor_style: Style = "detectron2"
    padding_anchors: bool = False  # anchors centred in the padding of an image take part
    crowd_overlap: float | None = None  # background inside a crowd is ignored; None: it is not

    rpn_low: float = 0.3
    rpn_high: float = 0.7
    rpn_samples: int = 256
    rpn_objects: float = 0.5  # the largest share of objects among the samples
    rpn_nms: float = 0.7
    rpn_loss_over: LossOver = "slots"  # divides by the samples found, or by those asked for
    nms_on_probabilities: bool = False  # sorts by rounded sigmoids, not by logits
    proposals_before_nms: tuple[int, int] = (2000, 1000)  # per level; training and inference
    proposals: tuple[int, int] = (1000, 1000)
    proposal_min_side: float = 0.0

    roi_threshold: float = 0.5
    roi_samples: int = 512
    roi_objects: float = 0.25
    box_weights: Weights = (10.0, 10.0, 5.0, 5.0)
    smooth_l1_beta: float = 0.0
    box_resolution: int = 7
    mask_resolution: int = 14  # of the pooled features; masks have twice as much
    sampling_ratio: int = 0
    aligned: bool = True
    binary_mask_targets: bool = True

    score_threshold: float = 0.05
    detection_nms: float = 0.5
    detections: int = 100
    detection_min_side: float = 0.0

    def __post_init__(self) -> None:
        self._check_choices()
        for name in ("num_classes", "width", "bn_groups", "pyramid_channels", "box_features"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("mask_channels", "rpn_samples", "roi_samples", "detections"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("rpn_low", "rpn_high", "rpn_objects", "rpn_nms", "roi_threshold"):
            self._require(name, 0.0 <= getattr(self, name) <= 1.0, "between 0 and 1")
        for name in ("roi_objects", "score_threshold", "detection_nms", "bn_momentum"):
            self._require(name, 0.0 <= getattr(self, name) <= 1.0, "between 0 and 1")
        for name in ("box_convolutions", "mask_convolutions", "sampling_ratio", "smooth_l1_beta"):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        for name in ("box_resolution", "mask_resolution"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("proposals_before_nms", "proposals"):
            pair = getattr(self, name)
            self._require(name, len(pair) == 2 and min(pair) >= 1, "two numbers of at least 1")
        self._require("freeze_at", 0 <= self.freeze_at <= 5, "between 0 and 5")
        self._require("rpn_low", self.rpn_low <= self.rpn_high, f"at most rpn_high {self.rpn_high}")
        self._require("anchor_ratios", min(self.anchor_ratios, default=0) > 0, "above 0")
        self._require("anchor_sizes", min(self.anchor_sizes, default=0) > 0, "above 0")
        if self.neck == "fpn":
            self._require("anchor_sizes", len(self.anchor_sizes) == 5, "one size per level, five")
            self._require("res5_norm", not self.res5_norm, "False with a feature pyramid")

    def _check_choices(self) -> None:
        for field in dataclasses.fields(self):
            choices = get_args(field.type)
            if choices and all(isinstance(choice, str) for choice in choices):
                value = getattr(self, field.name)
                self._require(field.name, value in choices, f"one of {', '.join(choices)}")
        self._require("backbone", self.backbone in BACKBONES, f"one of {', '.join(BACKBONES)}")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ValueError(f"detection.{name} ({getattr(self, name)!r}) must be {rule}")

    @classmethod
    def detectron2(cls, neck: Neck = "fpn", **changes: Any) -> "Settings":
        """Detectron2's defaults (its model zoo): frozen BatchNorm, stem and res2 not trained."""
        return cls(**{**(_C4 if neck == "c4" else {}), **changes})

    @classmethod
    def moco(cls, neck: Neck = "fpn", **changes: Any) -> "Settings":
        """MoCo's C4 and InfoMin's FPN, which CoNe follows: everything trained, with SyncBN."""
        trained = {"backbone_norm": "batch", "freeze_at": 0}
        if neck == "c4":
            return cls.detectron2("c4", **{**trained, "res5_norm": True, **changes})
        heads = {"head_norm": "batch", "box_head": "convolutions"}
        return cls.detectron2("fpn", **{**trained, **heads, **changes})

    @classmethod
    def torchvision(cls, neck: Neck = "fpn", **changes: Any) -> "Settings":
        """torchvision's `maskrcnn_resnet50_fpn`; for C4 the same choices, where they apply."""
        return cls.detectron2(neck, **{**_TORCHVISION, **changes})

    @property
    def compute_dtype(self) -> Any:
        return jnp.dtype(self.dtype)

    @property
    def level_sizes(self) -> tuple[tuple[float, ...], ...]:
        """The anchor sizes of each level."""
        if self.neck == "c4":
            return (self.anchor_sizes,)
        return tuple((size,) for size in self.anchor_sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Of the levels that have anchors."""
        return (16,) if self.neck == "c4" else (4, 8, 16, 32, 64)

    @property
    def mask_slots(self) -> int:
        """The most objects among an image's samples: what the mask head sees in training."""
        return max(int(self.roi_samples * self.roi_objects), 1)


_C4: dict[str, Any] = {
    "neck": "c4",
    "box_resolution": 14,  # res5 halves it
    "mask_convolutions": 0,
    "proposals_before_nms": (12000, 6000),
    "proposals": (2000, 1000),
}
_TORCHVISION: dict[str, Any] = {
    "anchor_style": "torchvision",
    "padding_anchors": True,
    "rpn_loss_over": "sampled",
    "nms_on_probabilities": True,
    "proposals": (2000, 1000),
    "proposal_min_side": 1e-3,
    "smooth_l1_beta": 1 / 9,
    "sampling_ratio": 2,
    "aligned": False,
    "binary_mask_targets": False,
    "detection_min_side": 1e-2,
}
