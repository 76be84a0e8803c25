"""SimCLR: two views of an image recognise each other in the batch. No labels in the loss.

Reference: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations",
arXiv 2002.05709. A linear stage follows.
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.objective import Metrics, Needs, StepInputs, require


@dataclasses.dataclass(frozen=True)
class SimClr:
    """NT-Xent over the 2 n rows of a batch, averaged."""

    temperature: float = 0.5
    # The loss is multiplied by temperature / base_temperature. SupContrast's code, whose recipe
    # the paper's number comes from, has 0.07 here; a base equal to the temperature is plain.
    base_temperature: float = 0.07

    def __post_init__(self) -> None:
        require("simclr", self, "temperature", "base_temperature", above=0)

    @property
    def needs(self) -> Needs:
        return Needs(views="rows", whole_batch=True, embedding=True, classifier=False)

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
