"""SupCon: contrast with everything of the same class in the batch, two views per sample.

Reference: Khosla et al., "Supervised Contrastive Learning", arXiv 2004.11362. A linear stage
follows.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.objective import Metrics, StepInputs, TwoViewContrast
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class SupCon(TwoViewContrast, path="objective.supcon"):
    """L_out or L_in over the 2 n rows of a batch, averaged over all rows."""

    contrast: Literal["sup_out", "sup_in"] = field("sup_out", "form of the loss")

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        z = losses.normalise(inputs.query.embedding)
        others = ~jnp.eye(z.shape[0], dtype=bool)
        positive = (inputs.labels[:, None] == inputs.labels) & others
        similarity = losses.cosines(z, z)
        positives = jnp.sum(positive, axis=-1)
        if self.contrast == "sup_out":
            per_row = losses.sup_out(
                similarity, positive, temperature=self.temperature, where=others
            )
        else:
            # SupCon averages the positives inside the logarithm, where CoNe sums them.
            per_row = losses.sup_in(
                similarity, positive, temperature=self.temperature, where=others
            ) + jnp.log(jnp.maximum(positives, 1))
        loss = jnp.mean(per_row)
        return loss * self.temperature / self.base_temperature, {
            f"loss_{self.contrast}": loss,
            "positives": jnp.mean(positives.astype(jnp.float32)),
        }
