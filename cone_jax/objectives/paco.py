"""PaCo: class centres take part in the contrast as anchors with a larger weight.

Reference: Cui et al., "Parametric Contrastive Learning", arXiv 2107.12028, and its code. The
classifier sees the pooled features (``model.classifier_input = "features"``).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.contrast_set import CONTRAST_SET_NEEDS, contrast_set
from cone_jax.objectives.objective import Metrics, Needs, Objective, StepInputs
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class PaCo(Objective, path="objective.paco"):
    """The joint softmax over class centres and anchors; values of the ImageNet recipe."""

    alpha: float = field(0.05, "weight of each anchor of the class", low=0.0)
    beta: float = field(1.0, "weight of the class centre", low=0.0)
    gamma: float = field(1.0, "weight of the anchors in the denominator", low=0.0)
    temperature: float = field(0.2, "temperature of the similarities", above=0)
    prior: Literal["none", "uniform", "data"] = field(
        "none",
        "what is added to the class logits in the loss: the logarithm of each class's share of the "
        "training set (data, the long-tail code), of 1 / C (uniform, the same on a balanced set: "
        "not neutral, since anchors compete with the centres), or nothing",
    )

    @property
    def needs(self) -> Needs:
        return dataclasses.replace(CONTRAST_SET_NEEDS, class_prior=self.prior == "data")

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        logits = inputs.query.logits
        if self.prior == "uniform":
            logits = logits - jnp.log(float(logits.shape[-1]))
        elif self.prior == "data":
            assert inputs.class_prior is not None
            logits = logits + jnp.log(inputs.class_prior + 1e-9)
        anchors = contrast_set(inputs)
        per_row = losses.parametric_contrast(
            logits,
            inputs.labels,
            anchors.similarity,
            anchors.positive,
            temperature=self.temperature,
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
            where=anchors.where,
        )
        loss = jnp.mean(per_row)
        return loss, {
            "loss_paco": loss,
            "positives": jnp.mean(jnp.sum(anchors.positive, axis=-1, dtype=jnp.float32)),
        }
