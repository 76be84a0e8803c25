"""The fields of a config: each declared once, with its default, its meaning and its limits."""

from cone_jax.settings.detector import Detector
from cone_jax.settings.model import Average, Bank, Ema, Model, ModelOptions
from cone_jax.settings.run import (
    Checkpoint,
    Data,
    Evaluation,
    LinearStage,
    Method,
    Mixing,
    Nonfinite,
    Optimizer,
    Schedule,
    Settings,
    Stage,
    Transfer,
    free_fields,
)
from cone_jax.settings.section import FieldEntry, Section, field

__all__ = [
    "Average",
    "Bank",
    "Checkpoint",
    "Data",
    "Detector",
    "Ema",
    "Evaluation",
    "FieldEntry",
    "LinearStage",
    "Method",
    "Mixing",
    "Model",
    "ModelOptions",
    "Nonfinite",
    "Optimizer",
    "Schedule",
    "Section",
    "Settings",
    "Stage",
    "Transfer",
    "field",
    "free_fields",
]
