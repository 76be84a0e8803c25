"""Cross-entropy and L_out side by side: the multi-task baseline of PaCo's comparison.

The classifier sees the pooled features, the contrast the embedding; anchors as in PaCo.
(Cross-entropy with L_out on CoNe's bank is ``objective.cone.contrast = "sup_out"``.)
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.contrast_set import contrast_set
from cone_jax.objectives.objective import (
    Metrics,
    Needs,
    StepInputs,
    require,
    with_cross_entropy,
)


@dataclasses.dataclass(frozen=True)
class JointSupCon:
    """``L = L_ce + sup_weight * L_sup_out``."""

    sup_weight: float = 0.5
    temperature: float = 0.07

    def __post_init__(self) -> None:
        require("joint_supcon", self, "temperature", above=0)
        require("joint_supcon", self, "sup_weight", low=0.0)

    @property
    def needs(self) -> Needs:
        return Needs(views="query_key", key=True, bank=True, whole_batch=True, embedding=True)

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
