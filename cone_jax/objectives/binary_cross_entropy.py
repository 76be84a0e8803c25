"""Binary cross-entropy: each class answered for itself, as in "ResNet strikes back".

Reference: Wightman, Touvron and Jegou, arXiv 2110.00476, and timm's loss of that name.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.objective import Metrics, Needs, StepInputs, class_targets, require


@dataclasses.dataclass(frozen=True)
class BinaryCrossEntropy:
    """``L = L_bce``."""

    label_smoothing: float = 0.0
    target_threshold: float = -1.0  # targets above it become 1, the others 0; negative: off
    reduction: Literal["mean", "sum"] = "mean"  # over the classes

    def __post_init__(self) -> None:
        require("binary_cross_entropy", self, "label_smoothing", low=0.0, high=1.0)
        require("binary_cross_entropy", self, "target_threshold", high=1.0)

    @property
    def needs(self) -> Needs:
        return Needs(mixed_labels=True)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        per_sample = losses.binary_cross_entropy(
            inputs.query.logits,
            class_targets(inputs),
            smoothing=self.label_smoothing,
            threshold=self.target_threshold if self.target_threshold >= 0.0 else None,
            reduction=self.reduction,
        )
        loss = jnp.mean(per_sample)
        return loss, {"loss_bce": loss}
