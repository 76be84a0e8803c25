"""Plain cross-entropy against the class centres, with optional label smoothing.

With a projection head (``model.projection``) this is SL-MLP: the head is part of the network that
is trained and tested, and dropped for transfer.
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.objective import Metrics, Needs, StepInputs, class_targets, require


@dataclasses.dataclass(frozen=True)
class CrossEntropy:
    """``L = L_ce``."""

    label_smoothing: float = 0.0
    smoothing_form: losses.SmoothingForm = "official"

    def __post_init__(self) -> None:
        require("cross_entropy", self, "label_smoothing", low=0.0, high=1.0)

    @property
    def needs(self) -> Needs:
        return Needs(mixed_labels=True)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        per_sample = losses.cross_entropy(
            inputs.query.logits,
            class_targets(inputs),
            smoothing=self.label_smoothing,
            form=self.smoothing_form,
        )
        loss = jnp.mean(per_sample)
        return loss, {"loss_ce": loss}
