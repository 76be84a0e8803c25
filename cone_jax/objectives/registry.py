"""Objectives by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cone_jax.errors import UserError, closest
from cone_jax.objectives.cone import Cone
from cone_jax.objectives.cross_entropy import CrossEntropy
from cone_jax.objectives.objective import Objective

OBJECTIVES: dict[str, type[Objective]] = {"cone": Cone, "cross_entropy": CrossEntropy}


def names() -> tuple[str, ...]:
    """All objectives that `create` knows."""
    return tuple(OBJECTIVES)


def default_settings(name: str) -> dict[str, Any]:
    """The hyper-parameters of objective `name`, as a config section holds them."""
    return {field.name: field.default for field in dataclasses.fields(OBJECTIVES[name])}


def create(name: str, settings: Mapping[str, Any]) -> Objective:
    """The objective `name` with the given hyper-parameters; those left out have defaults.

    >>> create("cone", {"neighbours": 32}).sup_weight
    0.7
    """
    if name not in OBJECTIVES:
        raise UserError(f"objective.name ({name!r}) is unknown; {closest(name, OBJECTIVES)}")
    objective = OBJECTIVES[name](**settings)
    for field, hint in get_type_hints(type(objective)).items():
        value = getattr(objective, field)
        if get_origin(hint) is Literal and value not in get_args(hint):
            cure = closest(str(value), get_args(hint))
            raise UserError(f"objective.{name}.{field} ({value!r}) is unknown; {cure}")
    return objective
