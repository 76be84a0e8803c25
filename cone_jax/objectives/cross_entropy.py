"""Plain cross-entropy against the class centres, with optional label smoothing."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.objective import Metrics, Needs, StepInputs


@dataclasses.dataclass(frozen=True)
class CrossEntropy:
    """``L = L_ce``."""

    label_smoothing: float = 0.0
    smoothing_form: losses.SmoothingForm = "official"

    needs: ClassVar[Needs] = Needs()

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        per_sample = losses.cross_entropy(
            inputs.query.logits,
            inputs.labels,
            smoothing=self.label_smoothing,
            form=self.smoothing_form,
        )
        loss = jnp.mean(per_sample)
        return loss, {"loss_ce": loss}
