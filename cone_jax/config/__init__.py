"""Every field of a run, what recipes make of them, and whether they fit together."""

from cone_jax.config.run_config import (
    PRESETS,
    VARIANTS,
    Option,
    apply_options,
    apply_preset,
    default,
    deployed,
    get_field,
    leave_open,
    load_recipe,
    open_fields,
    require_classifier,
    stage_configs,
    use_objective,
    validate,
)

__all__ = [
    "PRESETS",
    "VARIANTS",
    "Option",
    "apply_options",
    "apply_preset",
    "default",
    "deployed",
    "get_field",
    "leave_open",
    "load_recipe",
    "open_fields",
    "require_classifier",
    "stage_configs",
    "use_objective",
    "validate",
]
