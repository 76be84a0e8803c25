"""A linear classifier on the features of a frozen encoder.

The second stage of every method whose loss trains no classifier. BatchNorm uses its running
statistics and leaves them alone, so the features are those that evaluation sees.
"""

import dataclasses

from cone_jax import losses
from cone_jax.objectives.cross_entropy import CrossEntropy
from cone_jax.objectives.objective import Needs
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class Linear(CrossEntropy, path="objective.linear"):
    """``L = L_ce``, with a gradient for the classifier alone."""

    smoothing_form: losses.SmoothingForm = field(
        "uniform", "which classes get the smoothed share: see losses.cross_entropy"
    )

    @property
    def needs(self) -> Needs:
        return Needs(frozen=True)
