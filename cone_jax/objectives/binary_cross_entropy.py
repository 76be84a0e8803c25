"""Binary cross-entropy: each class answered for itself, as in "ResNet strikes back".

Reference: Wightman, Touvron and Jegou, arXiv 2110.00476, and timm's loss of that name.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.objective import Metrics, Needs, Objective, StepInputs, class_targets
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class BinaryCrossEntropy(Objective, path="objective.binary_cross_entropy"):
    """``L = L_bce``."""

    label_smoothing: float = field(
        0.0, "share of the target that goes to all classes alike", low=0.0, high=1.0
    )
    target_threshold: float = field(
        -1.0, "targets above this become 1, the others 0; negative: off", high=1.0
    )
    reduction: Literal["mean", "sum"] = field("mean", "how the losses of the classes are combined")

    @property
    def needs(self) -> Needs:
        return Needs(mixed_labels=True)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        threshold = self.target_threshold if self.target_threshold >= 0.0 else None
        per_sample = losses.binary_cross_entropy(
            inputs.query.logits,
            class_targets(inputs),
            smoothing=self.label_smoothing,
            threshold=threshold,
            reduction=self.reduction,
        )
        loss = jnp.mean(per_sample)
        return loss, {"loss_bce": loss}
