"""Large margins between an activation and the decision boundary.

Reference: Elsayed et al., "Large Margin Deep Networks for Classification", arXiv 1803.05598,
and its code.
"""

import dataclasses
from typing import get_args

import jax
import jax.numpy as jnp

from cone_jax.errors import UserError, closest
from cone_jax.objectives import margin_losses
from cone_jax.objectives.objective import (
    Layer,
    Metrics,
    Needs,
    StepInputs,
    require,
    with_cross_entropy,
)


@dataclasses.dataclass(frozen=True)
class LargeMargin:
    """``L = L_margin + ce_weight * L_ce``, the margin averaged over the chosen layers."""

    gamma: float = 10000.0  # the margin wanted
    alpha: float = 2.0  # distances below gamma (1 - alpha) get no gradient
    top_k: int = 1  # how many wrong classes are considered
    norm: margin_losses.Norm = "l2"
    # Where distances are measured: in the pooled features (cheap), in the images (a forward
    # and top_k backward passes more), or in both.
    layers: tuple[Layer, ...] = ("features",)
    ce_weight: float = 0.0

    def __post_init__(self) -> None:
        require("large_margin", self, "gamma", "alpha", "top_k", above=0)
        require("large_margin", self, "ce_weight", low=0.0)
        for layer in self.layers or ("",):
            if layer not in get_args(Layer):
                cure = closest(layer, get_args(Layer))
                raise UserError(f"objective.large_margin.layers ({self.layers}) is unknown; {cure}")

    @property
    def needs(self) -> Needs:
        return Needs(layers=tuple(self.layers))

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
