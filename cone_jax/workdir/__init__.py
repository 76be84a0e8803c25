"""The directory of a run: its config, its records, its checkpoints, and what can happen to them."""

from cone_jax.workdir.directory import (
    ACCOUNT_FILE,
    CLASSES_FILE,
    CONFIG_FILE,
    claim,
    class_names,
    flatten,
    has_checkpoints,
    keep_account,
    keep_class_names,
    load_config,
    unwritable_refused,
)

__all__ = [
    "ACCOUNT_FILE",
    "CLASSES_FILE",
    "CONFIG_FILE",
    "claim",
    "class_names",
    "flatten",
    "has_checkpoints",
    "keep_account",
    "keep_class_names",
    "load_config",
    "unwritable_refused",
]
