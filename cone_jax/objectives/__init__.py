"""Training methods: one file each, all with the same interface."""

from cone_jax.objectives.objective import Metrics, Needs, Objective, StepInputs
from cone_jax.objectives.registry import create, default_settings, names

__all__ = [
    "Metrics",
    "Needs",
    "Objective",
    "StepInputs",
    "create",
    "default_settings",
    "names",
]
