"""CMSF: the query moves to the mean of its target's nearest neighbours of the same class.

Reference: Koohpayegani et al., "Constrained Mean Shift Using Distant Yet Related Neighbors for
Representation Learning", arXiv 2112.04607, supervised form. Without cross-entropy a linear
stage follows.
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax import losses, memory_bank
from cone_jax.objectives.objective import Metrics, Needs, Objective, StepInputs, with_cross_entropy
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class Cmsf(Objective, path="objective.cmsf"):
    """``L = shift_weight * L_cmsf + ce_weight * L_ce``."""

    neighbours: int = field(
        10, "number of neighbours of the sample's class that attract the query", above=0
    )
    shift_weight: float = field(1.0, "weight of L_cmsf", above=0)
    ce_weight: float = field(0.0, "weight of L_ce; 1: CMSF + CE", low=0.0)
    fill_up: bool = field(
        False,
        "if the bank has too few rows of the class, the nearest of other classes make up the "
        "number, as in the authors' code; False: the few count alone",
    )

    @property
    def needs(self) -> Needs:
        # The target is in the bank when it is looked up, so it is its own nearest neighbour.
        return Needs(
            key=True,
            bank=True,
            bank_first=True,
            whole_batch=True,  # it enters the bank at once
            embedding=True,
            predictor=True,
            classifier=self.ce_weight > 0,
        )

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        assert inputs.key is not None and inputs.bank is not None
        assert inputs.query.prediction is not None
        query = losses.normalise(inputs.query.prediction)
        target = losses.normalise(inputs.key.embedding)
        near = memory_bank.neighbours(
            inputs.bank, target, self.neighbours, same_class=inputs.labels
        )
        rows, chosen = near.rows, near.valid
        if self.fill_up:
            more_rows, also = self._fill_up(inputs, target, chosen)
            rows = jnp.concatenate((rows, more_rows), axis=-1)
            chosen = jnp.concatenate((chosen, also), axis=-1)
        anchors = jax.lax.stop_gradient(inputs.bank.features[rows])
        similarity = jnp.sum(query[:, None, :] * anchors, axis=-1)
        loss_shift = jnp.mean(losses.mean_shift(similarity, where=chosen))
        metrics = {
            "loss_shift": loss_shift,
            "positives": jnp.mean(jnp.sum(near.valid, axis=-1, dtype=jnp.float32)),
        }
        return with_cross_entropy(self.shift_weight * loss_shift, metrics, inputs, self.ce_weight)

    def _fill_up(
        self, inputs: StepInputs, target: jax.Array, chosen: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The nearest rows of any class, and which of them make up for those not `chosen`.

        Of the k nearest at most as many are of the class as were chosen, so the rest suffice.
        """
        assert inputs.bank is not None
        near = memory_bank.neighbours(inputs.bank, target, self.neighbours)
        other = near.valid & (near.labels != inputs.labels[:, None])
        lacking = self.neighbours - jnp.sum(chosen, axis=-1, keepdims=True)
        return near.rows, other & (jnp.cumsum(other, axis=-1) <= lacking)
