"""Configs as flat lists of fields: which ones a run uses, and in which ones runs differ."""

from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from cone_jax import objectives
from cone_jax.settings import free_fields
from cone_jax.workdir import flatten

# Fields whose value says enough without the field's name.
_SPEAKING = ("objective.name", "model.name", "data.name", "data.source")
_MOST_IN_A_NAME = 3


def used_fields(config: ConfigDict) -> dict[str, Any]:
    """The fields of a config by their full names, without the sections of unused objectives."""
    flat = flatten(config)
    unused = tuple(
        f"objective.{name}." for name in objectives.names() if name != config.objective.name
    )
    return {name: flat[name] for name in sorted(flat) if not name.startswith(unused)}


def computed_fields(config: ConfigDict) -> dict[str, Any]:
    """The fields that decide what a run computes, except its seed.

    If some of them follow from a time budget, the budget stands for all.
    """
    used, measured = used_fields(config), dict(config.derive) if config.budget else {}
    left_out = {"seed", *free_fields(), *measured}
    return {name: used[name] for name in used if name not in left_out}


def distinguishing_names(configs: Sequence[ConfigDict]) -> list[str] | None:
    """A short, unique name for each config, from the fields that differ; None if there is none.

    Fields that only some of them use, such as the settings of one objective, do not count.
    """
    fields = [computed_fields(config) for config in configs]
    shared = set.intersection(*(set(each) for each in fields))
    differing = [
        name for name in sorted(shared) if any(each[name] != fields[0][name] for each in fields)
    ]
    # Where the objective's name tells runs apart, what follows from it need not be said.
    for chosen in ([name for name in differing if name in _SPEAKING], differing):
        names = [", ".join(_name(name, each[name]) for name in chosen) for each in fields]
        if chosen and len(chosen) <= _MOST_IN_A_NAME and len(set(names)) == len(names):
            return names
    return None


def _name(field: str, value: Any) -> str:
    return str(value) if field in _SPEAKING else f"{field.rsplit('.', 1)[-1]} {value}"
