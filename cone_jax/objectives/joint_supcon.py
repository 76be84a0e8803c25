"""Cross-entropy and L_out side by side: the multi-task baseline of PaCo's comparison.

The classifier sees the pooled features, the contrast the embedding; anchors as in PaCo.
(Cross-entropy with L_out on CoNe's bank is ``objective.cone.contrast = "sup_out"``.)
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.contrast_set import CONTRAST_SET_NEEDS, contrast_set
from cone_jax.objectives.objective import Metrics, Needs, Objective, StepInputs, with_cross_entropy
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class JointSupCon(Objective, path="objective.joint_supcon"):
    """``L = L_ce + sup_weight * L_sup_out``."""

    sup_weight: float = field(0.5, "weight of L_sup_out", low=0.0)
    temperature: float = field(0.07, "temperature of L_sup_out", above=0)

    @property
    def needs(self) -> Needs:
        return CONTRAST_SET_NEEDS

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        anchors = contrast_set(inputs)
        per_row = losses.sup_out(
            anchors.similarity,
            anchors.positive,
            temperature=self.temperature,
            where=anchors.where,
        )
        loss_sup = jnp.mean(per_row)
        metrics = {"loss_sup_out": loss_sup}
        return with_cross_entropy(self.sup_weight * loss_sup, metrics, inputs, weight=1.0)
