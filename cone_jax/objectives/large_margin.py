"""Large margins between an activation and the decision boundary.

Reference: Elsayed et al., "Large Margin Deep Networks for Classification", arXiv 1803.05598,
and its code.
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax.objectives import margin_losses
from cone_jax.objectives.objective import (
    Layer,
    Metrics,
    Needs,
    Objective,
    StepInputs,
    with_cross_entropy,
)
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class LargeMargin(Objective, path="objective.large_margin"):
    """``L = L_margin + ce_weight * L_ce``, the margin averaged over the chosen layers."""

    gamma: float = field(10000.0, "the margin to reach", above=0)
    alpha: float = field(2.0, "distances below gamma (1 - alpha) get no gradient", above=0)
    top_k: int = field(1, "how many wrong classes are considered", above=0)
    norm: margin_losses.Norm = field("l2", "norm in which distances are measured")
    layers: tuple[Layer, ...] = field(
        ("features",),
        "where distances are measured: in the pooled features (cheap), in the images (a forward "
        "and top_k backward passes more), or in both",
    )
    ce_weight: float = field(0.0, "weight of L_ce", low=0.0)

    @property
    def needs(self) -> Needs:
        return Needs(layers=self.layers)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        assert inputs.layers is not None
        per_layer = [
            margin_losses.large_margin(
                inputs.layers[layer].classify,
                inputs.layers[layer].value,
                inputs.labels,
                gamma=self.gamma,
                alpha=self.alpha,
                top_k=self.top_k,
                norm=self.norm,
            )
            for layer in self.layers
        ]
        loss = jnp.mean(jnp.stack(per_layer))
        return with_cross_entropy(loss, {"loss_margin": loss}, inputs, self.ce_weight)
