"""Large-margin softmax: the paper's "Max-Margin" baseline.

Reference: Liu et al., "Large-Margin Softmax Loss for Convolutional Neural Networks",
arXiv 1612.02295. The classifier has no bias; evaluation is plain (margin 1).
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax.objectives import margin_losses
from cone_jax.objectives.objective import Metrics, Needs, Objective, StepInputs
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class LSoftmax(Objective, path="objective.l_softmax"):
    """Starts near plain softmax and anneals: its share is ``lambda / (1 + lambda)`` with

    ``lambda = max(minimum, base * (1 + gamma * step) ** -power)``; values of the authors' code.
    """

    margin: int = field(4, "factor of the angle to the true class", low=1, high=4)
    lambda_base: float = field(1000.0, "lambda at step 0, the weight of plain softmax", low=0.0)
    lambda_gamma: float = field(2e-5, "how fast lambda falls: its rate", low=0.0)
    lambda_power: float = field(45.0, "how fast lambda falls: its exponent")
    lambda_minimum: float = field(0.0, "least lambda; 5 to 10 if training is hard", low=0.0)

    @property
    def needs(self) -> Needs:
        return Needs(class_centres=True)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        assert inputs.class_centres is not None
        decayed = self.lambda_base * (1.0 + self.lambda_gamma * inputs.step) ** -self.lambda_power
        share = jnp.maximum(decayed, self.lambda_minimum)
        per_sample = margin_losses.l_softmax(
            inputs.class_centres.inputs,
            inputs.class_centres.kernel,
            inputs.labels,
            margin=self.margin,
            plain_share=share,
        )
        loss = jnp.mean(per_sample)
        return loss, {"loss_margin": loss, "margin_lambda": share}
