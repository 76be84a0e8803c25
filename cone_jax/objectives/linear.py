"""A linear classifier on the features of a frozen encoder.

The second stage of every method whose loss trains no classifier. BatchNorm uses its running
statistics and leaves them alone, so the features are those that evaluation sees.
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.objective import Metrics, Needs, StepInputs, require


@dataclasses.dataclass(frozen=True)
class Linear:
    """``L = L_ce``, with a gradient for the classifier alone."""

    label_smoothing: float = 0.0
    smoothing_form: losses.SmoothingForm = "uniform"

    def __post_init__(self) -> None:
        require("linear", self, "label_smoothing", low=0.0, high=1.0)

    @property
    def needs(self) -> Needs:
        return Needs(frozen=True)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        per_sample = losses.cross_entropy(
            inputs.query.logits,
            inputs.labels,
            smoothing=self.label_smoothing,
            form=self.smoothing_form,
        )
        loss = jnp.mean(per_sample)
        return loss, {"loss_ce": loss}
