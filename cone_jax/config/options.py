"""What follows the colon in ``--config=configs/x.py:a,b``: methods, variants, presets."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from cone_jax import objectives
from cone_jax.errors import UserError, closest

PRESETS = ("official", "paper")

Option = Callable[[ConfigDict], object]


def apply_preset(config: ConfigDict, preset: str) -> ConfigDict:
    """Sets every field on which the paper's text and its released code disagree.

    Learning-rate warm-up is not among them: its length belongs to the recipe.
    """
    if preset not in PRESETS:
        raise UserError(f"preset ({preset!r}) is unknown; {closest(preset, PRESETS)}")
    paper = preset == "paper"
    cone = config.objective.cone
    cone.min_positive_prob = 0.0 if paper else 1e-8
    cone.conf_mask_eps = 0.0 if paper else 1e-8
    cone.start_epochs = 0 if paper else 1
    config.model.classifier = "cosine" if paper else "linear"
    config.model.classifier_bias = not paper
    config.ema.schedule = "cosine_to_one" if paper else "official_auto"
    config.ema.order = "after_update" if paper else "before_forward"
    config.schedule.unit = "step" if paper else "epoch"
    config.schedule.floor = 0.0 if paper else 1e-3
    return config


def apply_options(
    config: ConfigDict,
    options: str,
    recipe_options: Mapping[str, Option] | None = None,
) -> ConfigDict:
    """Applies what follows the colon in ``--config=configs/x.py:a,b`` and locks the config.

    Every recipe understands the names of the objectives, which replace CoNe in the same recipe,
    CoNe's variants and the presets; `recipe_options` are its own, and replace a common option
    of the same name. They take effect in this order, whatever the order they are given in:
    objectives, variants, the recipe's own as it lists them, presets.
    """
    recipe_options = recipe_options or {}
    methods = {name: functools.partial(use_objective, name=name) for name in objectives.names()}
    common: dict[str, Option] = {**methods, **VARIANTS}
    known: dict[str, Option] = {
        **{name: option for name, option in common.items() if name not in recipe_options},
        **recipe_options,
        **{preset: functools.partial(apply_preset, preset=preset) for preset in PRESETS},
    }
    chosen = {part.strip() for part in options.split(",")} - {""}
    unknown = sorted(chosen - known.keys())
    if unknown:
        raise UserError(f"config option ({unknown[0]!r}) is unknown; {closest(unknown[0], known)}")
    for name, option in known.items():
        if name in chosen:
            option(config)
    return config.lock()


def use_objective(config: ConfigDict, name: str) -> None:
    """Chooses the method, and what it cannot do without: views, heads, a classifier's form."""
    config.objective.name = name
    needs = objectives.chosen(config.objective).needs
    config.data.views = 1 if needs.views == "any" else 2
    config.model.projection = needs.embedding
    config.model.predictor = needs.predictor
    config.model.classifier_bias = not needs.class_centres
    config.model.classifier_input = needs.classifier_sees
    if needs.bank_first:
        config.bank.exclude_self = False


def _set_cone(config: ConfigDict, **fields: Any) -> None:
    config.objective.cone.update(fields)


def _contrastive_view(config: ConfigDict) -> None:
    config.objective.cone.contrastive_view = "key"
    config.data.views = 2


def _two_views(config: ConfigDict) -> None:
    config.objective.cone.views = "rows"
    config.data.views = 2


def _add_projection(config: ConfigDict) -> None:
    config.model.projection = True


def _add_cross_entropy(config: ConfigDict) -> None:
    """Cross-entropy beside CMSF or NNCLR, on CoNe's frame: one view, its bank and key."""
    config.objective.cmsf.ce_weight = 1.0
    config.objective.nnclr.ce_weight = 1.0
    config.objective.nnclr.lookup = "key"
    config.data.views = 1


# What the paper's ablations change, for any recipe.
VARIANTS: dict[str, Option] = {
    "no_dc": functools.partial(_set_cone, dc_weight=0.0),
    "no_contrast": functools.partial(_set_cone, sup_weight=0.0),
    "sup_out": functools.partial(_set_cone, contrast="sup_out"),
    "contrastive_view": _contrastive_view,
    "two_views": _two_views,
    "projection": _add_projection,
    "with_ce": _add_cross_entropy,
}
