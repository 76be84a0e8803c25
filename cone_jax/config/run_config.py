"""The config of a run, and of each of its stages.

A recipe in `configs/` starts from `default()`, changes what it needs and returns the result locked,
so that a misspelt field is an error. Fields are declared in `cone_jax/settings/` and, those of a
method, in its file in `cone_jax/objectives/`. Defaults follow the released code (preset
``official``); where the paper's text differs, `apply_preset(config, "paper")` sets its value. The
points that neither settles are listed with their fields in docs/recipes.md.

Most methods train network and classifier at once: one stage. A method whose loss trains no
classifier (SimCLR, SupCon, ...) is followed by a linear stage: the backbone is frozen as it stands,
projection head and predictor are dropped, and a new linear classifier is trained on the pooled
features. That stage is training like any other, with objective ``linear``.
"""

from typing import Any

from ml_collections import ConfigDict

from cone_jax import objectives
from cone_jax.settings import Settings


def default() -> ConfigDict:
    """A complete config: CoNe as released, on the bundled digits."""
    config = Settings().to_config()
    for name in objectives.names():  # one section per method: config.objective.cone.sup_weight
        config.objective[name] = objectives.default_settings(name)
    return config


def get_field(config: ConfigDict, field: str) -> Any:
    """The value of ``section.field``."""
    value = config
    for part in field.split("."):
        value = value[part]
    return value


def stage_configs(config: ConfigDict) -> tuple[ConfigDict, ...]:
    """The config of each stage, in order; the first is `config` itself."""
    if objectives.chosen(config.objective).needs.classifier:
        return (config,)
    return (config, _linear_stage(config))


def deployed(config: ConfigDict) -> ConfigDict:
    """The config that describes the network a finished run leaves behind."""
    return stage_configs(config)[-1]


def _linear_stage(config: ConfigDict) -> ConfigDict:
    settings = config.linear_stage
    stage = ConfigDict(config.to_dict())
    stage.objective.name = "linear"
    stage.model.projection = False
    stage.model.predictor = False
    stage.model.classifier = "linear"
    stage.model.classifier_bias = True
    for field in ("epochs", "steps", "batch_size"):
        stage[field] = settings[field]
    stage.optimizer = ConfigDict(settings.optimizer.to_dict())
    stage.schedule = ConfigDict(settings.schedule.to_dict())
    stage.data.views, stage.data.key_transforms = 1, ()
    if settings.train_transforms:
        stage.data.train_transforms = settings.train_transforms
    stage.mixing.mixup_alpha = stage.mixing.cutmix_alpha = 0.0
    stage.average.decay = 0.0
    stage.accumulate = 1  # a frozen network needs little memory
    return stage.lock()
