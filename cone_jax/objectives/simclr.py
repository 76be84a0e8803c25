"""SimCLR: two views of an image recognise each other in the batch. No labels in the loss.

Reference: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations",
arXiv 2002.05709. A linear stage follows.
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.objective import Metrics, StepInputs, TwoViewContrast
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class SimClr(TwoViewContrast, path="objective.simclr"):
    """NT-Xent over the 2 n rows of a batch, averaged."""

    temperature: float = field(0.5, "temperature of the similarities", above=0)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        z = losses.normalise(inputs.query.embedding)
        row = jnp.arange(z.shape[0])
        partner = row[:, None] == (row ^ 1)  # views are neighbouring rows
        others = row[:, None] != row
        similarity = losses.cosines(z, z)
        per_row = losses.sup_out(similarity, partner, temperature=self.temperature, where=others)
        loss = jnp.mean(per_row)
        best = jnp.argmax(jnp.where(others, similarity, -jnp.inf), axis=-1)
        return loss * self.temperature / self.base_temperature, {
            "loss_contrast": loss,
            "match_top1": jnp.mean(best == row ^ 1),
        }
