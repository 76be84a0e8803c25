"""Training methods: one file each, all with the same interface. docs/recipes.md lists them."""

from cone_jax.objectives.objective import (
    Activation,
    ClassCentres,
    LabelKind,
    Metrics,
    MixedLabels,
    Needs,
    Objective,
    StepInputs,
    chosen,
    create,
    declared_metrics,
    default_settings,
    exchangeable,
    names,
)

__all__ = [
    "Activation",
    "ClassCentres",
    "LabelKind",
    "Metrics",
    "MixedLabels",
    "Needs",
    "Objective",
    "StepInputs",
    "chosen",
    "create",
    "declared_metrics",
    "default_settings",
    "exchangeable",
    "names",
]
