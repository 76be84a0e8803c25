"""PaCo: class centres take part in the contrast as anchors of a heavier weight.

Reference: Cui et al., "Parametric Contrastive Learning", arXiv 2107.12028, and its code. The
classifier sees the pooled features (``model.classifier_input = "features"``).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.objectives.contrast_set import contrast_set
from cone_jax.objectives.objective import Metrics, Needs, StepInputs, require


@dataclasses.dataclass(frozen=True)
class PaCo:
    """The joint softmax over class centres and anchors; values of the ImageNet recipe."""

    alpha: float = 0.05  # weight of each anchor of the class
    beta: float = 1.0  # weight of the class centre
    gamma: float = 1.0  # share of the anchors in the denominator
    temperature: float = 0.2
    # What is added to the class logits in the loss: the logarithm of each class's share of the
    # training set ("data", the long-tail code), of 1 / C ("uniform", the same on a balanced
    # set: not neutral, since anchors compete with the centres), or nothing.
    prior: Literal["none", "uniform", "data"] = "none"

    def __post_init__(self) -> None:
        require("paco", self, "temperature", above=0)
        require("paco", self, "alpha", "beta", "gamma", low=0.0)

    @property
    def needs(self) -> Needs:
        return Needs(
            views="query_key",
            key=True,
            bank=True,
            whole_batch=True,
            embedding=True,
            class_prior=self.prior == "data",
        )

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
