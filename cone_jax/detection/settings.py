"""The settings of a detector in plain values, and presets for known implementations."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from cone_jax.errors import UserError, closest
from cone_jax.models import ANY_PLATFORM
from cone_jax.settings import Detector, Model

BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


@dataclasses.dataclass(frozen=True)
class Settings(Detector):
    """A Mask R-CNN: the fields of a config's ``objective.detection``, and the network they are for.

    Classes are 1 to `num_classes`, 0 is the background. BatchNorm over a batch that `jit` shards
    over devices has global statistics, which is SyncBN.

    >>> Settings.detectron2("c4").strides, Settings.moco().head_norm
    ((16,), 'batch')
    """

    num_classes: int = 80  # C, without the background
    backbone: str = "resnet50"  # resnet18 to resnet152
    width: int = 64  # channels of the first stage
    dtype: str = "float32"  # type of the computation; parameters are float32
    platform: str = ANY_PLATFORM  # what programs are compiled for; see models.build
    remat: bool = False  # residual blocks are computed again in the backward pass
    bn_momentum: float = 0.9  # weight of BatchNorm's old running statistics
    bn_groups: int = 1  # parts of a batch with statistics of their own

    @classmethod
    def of_config(
        cls, chosen: Detector, model: Model, num_classes: int, platform: str
    ) -> "Settings":
        """The detector that the sections ``objective.detection`` and ``model`` describe."""
        given = dataclasses.asdict(model.options)
        known = ("width", "remat", "bn_momentum", "bn_groups")
        for name, value in given.items():
            if value is not None and name not in known:
                raise UserError(
                    f"model.options.{name} ({value}) is not for detectors; leave it out"
                )
        options = {name: given[name] for name in known if given[name] is not None}
        return cls(
            **{name: getattr(chosen, name) for name in Detector.field_names()},
            num_classes=num_classes,
            backbone=model.name,
            dtype=model.dtype,
            platform=platform,
            **options,
        )

    def check(self) -> None:
        """Raises `UserError` if fields do not fit together."""
        if self.backbone not in BACKBONES:
            cure = closest(self.backbone, BACKBONES)
            raise UserError(f"model.name ({self.backbone!r}) is not a detector's; {cure}")
        if jnp.dtype(self.dtype) not in (jnp.float32, jnp.bfloat16):
            raise UserError(f"model.dtype ({self.dtype!r}) must be float32 or bfloat16")
        for name in ("num_classes", "width", "bn_groups"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        self._require("bn_momentum", 0.0 <= self.bn_momentum <= 1.0, "between 0 and 1")
        for name in ("proposals_before_nms", "proposals"):
            self._require(name, len(getattr(self, name)) == 2, "two numbers")
        self._require("box_weights", len(self.box_weights) == 4, "four numbers")
        self._require("rpn_low", self.rpn_low <= self.rpn_high, f"at most rpn_high {self.rpn_high}")
        self._require("anchor_ratios", len(self.anchor_ratios) > 0, "at least one number")
        self._require("anchor_sizes", len(self.anchor_sizes) > 0, "at least one number")
        if self.neck == "fpn":
            self._require("anchor_sizes", len(self.anchor_sizes) == 5, "one size per level, five")
            self._require("res5_norm", not self.res5_norm, "False with a feature pyramid")
        frozen = self.backbone_norm == "frozen" and self.head_norm == "none" and not self.res5_norm
        precise = self.precise_bn_batches > 0
        self._require(
            "precise_bn_batches", not (precise and frozen), "0 where all BatchNorm is frozen"
        )

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise UserError(f"{self.field_path(name)} ({getattr(self, name)!r}) must be {rule}")

    @classmethod
    def detectron2(cls, neck: str = "fpn", **changes: Any) -> "Settings":
        """Detectron2's defaults (its model zoo): frozen BatchNorm, stem and res2 not trained."""
        return cls(**{**preset("detectron2", neck), **changes})

    @classmethod
    def moco(cls, neck: str = "fpn", **changes: Any) -> "Settings":
        """MoCo's C4 and InfoMin's FPN, which CoNe follows: everything trained, with SyncBN."""
        return cls(**{**preset("moco", neck), **changes})

    @classmethod
    def torchvision(cls, neck: str = "fpn", **changes: Any) -> "Settings":
        """torchvision's `maskrcnn_resnet50_fpn`; for C4 the same choices, where they apply."""
        return cls(**{**preset("torchvision", neck), **changes})

    @property
    def compute_dtype(self) -> Any:
        """`dtype`, as JAX knows it."""
        return jnp.dtype(self.dtype)

    @property
    def level_sizes(self) -> tuple[tuple[float, ...], ...]:
        """The anchor sizes of each level."""
        if self.neck == "c4":
            return (self.anchor_sizes,)
        return tuple((size,) for size in self.anchor_sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of the levels that have anchors."""
        return (16,) if self.neck == "c4" else (4, 8, 16, 32, 64)

    @property
    def mask_side(self) -> int:
        """The side of predicted masks: twice that of the features, which res5 halves."""
        return 2 * (self.mask_resolution if self.neck == "fpn" else -(-self.box_resolution // 2))

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
_TRAINED: dict[str, Any] = {"backbone_norm": "batch", "freeze_at": 0}
_MOCO: dict[str, dict[str, Any]] = {
    "c4": {**_TRAINED, "res5_norm": True},
    "fpn": {**_TRAINED, "head_norm": "batch", "box_head": "convolutions"},
}


def preset(name: str, neck: str) -> dict[str, Any]:
    """The fields of ``objective.detection`` in which an implementation differs from the defaults.

    >>> preset("moco", "c4")["res5_norm"], preset("detectron2", "fpn")
    (True, {})
    """
    own = {"detectron2": {}, "moco": _MOCO[neck], "torchvision": _TORCHVISION}[name]
    return {**(_C4 if neck == "c4" else {}), **own}
