"""Every field of a run, what recipes make of them, and whether they fit together."""

from cone_jax.config.checks import validate
from cone_jax.config.options import (
    PRESETS,
    VARIANTS,
    Option,
    apply_options,
    apply_preset,
    use_objective,
)
from cone_jax.config.recipe import load_recipe
from cone_jax.config.run_config import default, deployed, get_field, stage_configs

__all__ = [
    "PRESETS",
    "VARIANTS",
    "Option",
    "apply_options",
    "apply_preset",
    "default",
    "deployed",
    "get_field",
    "load_recipe",
    "stage_configs",
    "use_objective",
    "validate",
]
