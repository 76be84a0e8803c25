"""The stages of a run, each with a config of its own.

Most methods train network and classifier at once: one stage. A method whose loss trains no
classifier (SimCLR, SupCon, ...) is followed by a linear stage: the backbone is frozen as it
stands, projection head and predictor are dropped, and a new linear classifier is trained on the
pooled features. That stage is training like any other, with objective ``linear``.
"""

from ml_collections import ConfigDict

from cone_jax import objectives


def stage_configs(config: ConfigDict) -> tuple[ConfigDict, ...]:
    """The config of each stage, in order; the first is `config` itself."""
    name = config.objective.name
    if objectives.create(name, config.objective[name]).needs.classifier:
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
    stage.data.views = 1
    if settings.train_transforms:
        stage.data.train_transforms = settings.train_transforms
    stage.mixing.mixup_alpha = stage.mixing.cutmix_alpha = 0.0
    stage.average.decay = 0.0
    stage.accumulate = 1  # a frozen network needs little memory
    return stage.lock()
