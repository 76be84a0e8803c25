"""Plain cross-entropy against the class centres, with optional label smoothing.

With a projection head (``model.projection``) this is SL-MLP: the head is part of the network that
is trained and tested, and dropped for transfer.
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.objective import BalancedCrossEntropy, Metrics, Needs, StepInputs
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class CrossEntropy(BalancedCrossEntropy, path="objective.cross_entropy"):
    """``L = L_ce``."""

    label_smoothing: float = field(
        0.0, "share of the target that is spread over classes", low=0.0, high=1.0
    )
    smoothing_form: losses.SmoothingForm = field(
        "official", "which classes get that share: see losses.cross_entropy"
    )

    @property
    def needs(self) -> Needs:
        return Needs(mixed_labels=True, class_prior=self.needs_prior)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        per_sample = self.cross_entropy(inputs, self.label_smoothing, self.smoothing_form)
        loss = jnp.mean(per_sample)
        return loss, {"loss_ce": loss}
