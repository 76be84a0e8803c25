"""Objectives by name."""

import itertools
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from cone_jax.console import Metric
from cone_jax.errors import UserError, closest
from cone_jax.objectives.binary_cross_entropy import BinaryCrossEntropy
from cone_jax.objectives.cmsf import Cmsf
from cone_jax.objectives.cone import Cone
from cone_jax.objectives.cross_entropy import CrossEntropy
from cone_jax.objectives.joint_supcon import JointSupCon
from cone_jax.objectives.l_softmax import LSoftmax
from cone_jax.objectives.large_margin import LargeMargin
from cone_jax.objectives.linear import Linear
from cone_jax.objectives.nnclr import Nnclr
from cone_jax.objectives.objective import SHARED_METRICS, Objective
from cone_jax.objectives.paco import PaCo
from cone_jax.objectives.simclr import SimClr
from cone_jax.objectives.supcon import SupCon
from cone_jax.objectives.supcon_bank import SupConBank
from cone_jax.registry import Registry

_OWN: dict[str, type[Objective]] = {
    "cone": Cone,
    "cross_entropy": CrossEntropy,
    "binary_cross_entropy": BinaryCrossEntropy,
    "l_softmax": LSoftmax,
    "large_margin": LargeMargin,
    "simclr": SimClr,
    "supcon": SupCon,
    "supcon_bank": SupConBank,
    "joint_supcon": JointSupCon,
    "paco": PaCo,
    "cmsf": Cmsf,
    "nnclr": Nnclr,
    "linear": Linear,
}
OBJECTIVES = Registry(
    "objective",
    "cone_jax.objectives",
    _OWN,
    form="a subclass of cone_jax.objectives.Objective",
    accepts=lambda thing: isinstance(thing, type) and issubclass(thing, Objective),
)


def names() -> tuple[str, ...]:
    """All objectives that `create` knows."""
    return tuple(OBJECTIVES)


def default_settings(name: str) -> ConfigDict:
    """The hyper-parameters of objective `name`, as a config section holds them."""
    return OBJECTIVES[name]().to_config()


def declared_metrics() -> tuple[Metric, ...]:
    """What objectives report about training, by the names they give it."""
    own = (getattr(OBJECTIVES[name], "metrics", ()) for name in names())
    return (*SHARED_METRICS, *itertools.chain.from_iterable(own))


def create(name: str, settings: Mapping[str, Any]) -> Objective:
    """The objective `name` with the given hyper-parameters; those left out have defaults.

    >>> create("cone", {"neighbours": 32}).sup_weight
    0.7
    """
    if name not in OBJECTIVES:
        raise UserError(f"objective.name ({name!r}) is unknown; {closest(name, OBJECTIVES)}")
    known = OBJECTIVES[name].field_names()
    for field in settings:
        if field not in known:
            raise UserError(f"objective.{name}.{field} is not a field; {closest(field, known)}")
    return OBJECTIVES[name].read(settings)


def chosen(section: Mapping[str, Any]) -> Objective:
    """The objective that a config's section ``objective`` chooses, with its hyper-parameters."""
    name = section["name"]
    return create(name, section.get(name, {}))
