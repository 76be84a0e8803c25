"""What a config's fields may be: choices, limits, and what must fit together."""

from typing import Any

from ml_collections import ConfigDict

from cone_jax import objectives
from cone_jax.errors import UserError, closest
from cone_jax.evaluation import registry

CHOICES: dict[str, tuple[str, ...]] = {
    "data.last_batch": ("drop", "carry"),
    "model.stem": ("imagenet", "cifar"),
    "model.dtype": ("float32", "bfloat16"),
    "model.classifier": ("linear", "cosine"),
    "model.classifier_input": ("embedding", "features"),
    "bank.init": ("masked", "official"),
    "bank.probs_dtype": ("float32", "bfloat16"),
    "bank.probs": ("stored", "recomputed"),
    "bank.sharding": ("replicated", "sharded"),
    "ema.schedule": ("official_auto", "cosine_to_one", "constant"),
    "ema.order": ("before_forward", "after_update"),
    "optimizer.decay_scope": ("all", "exclude_1d"),
    "schedule.decay": ("cosine", "linear", "constant", "steps", "exponential"),
    "schedule.unit": ("epoch", "step"),
    "transfer.metric": ("top1", "mean_per_class"),
    "nonfinite.policy": ("stop", "skip"),
}

# field: (lowest, highest) allowed; None: no limit
RANGES: dict[str, tuple[float | None, float | None]] = {
    "seed": (0, 2**31 - 1),
    "steps": (0, None),
    "batch_size": (1, None),
    "log_every": (1, None),
    "data.num_classes": (0, None),
    "data.cache_bytes": (0, None),
    "data.image_size": (1, None),
    "data.views": (1, 2),
    "data.damaged_limit": (0.0, 1.0),
    "data.threads": (1, None),
    "data.workers": (0, None),
    "data.prefetch": (1, None),
    "model.embedding_dim": (1, None),
    "model.head_layers": (0, None),
    "model.head_hidden": (0, None),
    "model.predictor_hidden": (1, None),
    "accumulate": (1, None),
    "bank.size": (1, None),
    "bank.recall_target": (0.01, 1.0),
    "ema.momentum": (0.0, 1.0),
    "mixing.mixup_alpha": (0.0, None),
    "mixing.cutmix_alpha": (0.0, None),
    "mixing.switch": (0.0, 1.0),
    "average.decay": (0.0, 1.0),
    "average.every": (1, None),
    "optimizer.learning_rate": (0.0, None),
    "optimizer.reference_batch": (0, None),
    "optimizer.momentum": (0.0, 1.0),
    "optimizer.beta1": (0.0, 1.0),
    "optimizer.beta2": (0.0, 1.0),
    "optimizer.rms_decay": (0.0, 1.0),
    "optimizer.epsilon": (0.0, None),
    "optimizer.trust_coefficient": (0.0, None),
    "optimizer.weight_decay": (0.0, None),
    "optimizer.clip_norm": (0.0, None),
    "schedule.warmup_epochs": (0.0, None),
    "schedule.warmup_start": (0.0, 1.0),
    "schedule.decay_epochs": (0.0, None),
    "schedule.decay_factor": (0.0, None),
    "schedule.floor": (0.0, 1.0),
    "evaluation.every_epochs": (0.0, None),
    "evaluation.batch_size": (1, None),
    "checkpoint.every_epochs": (0.0, None),
    "checkpoint.keep": (1, None),
    "nonfinite.skip_limit": (0, None),
}

# Sections of the config that are the linear stage's too.
STAGE_SECTIONS = ("steps", "batch_size", "optimizer", "schedule")


def validate(config: ConfigDict) -> None:
    """Raises `UserError` for the first field that cannot work."""
    for field, valid in CHOICES.items():
        for name in _with_stage(field):
            value = get_field(config, name)
            if value not in valid:
                raise UserError(f"{name} ({value!r}) is unknown; {closest(str(value), valid)}")
    for field, (low, high) in RANGES.items():
        for name in _with_stage(field):
            value = get_field(config, name)
            # `not >=` also refuses NaN
            if (low is not None and not value >= low) or (high is not None and not value <= high):
                limits = f"at least {low}" if high is None else f"between {low} and {high}"
                raise UserError(f"{name} ({value}) must be {limits}")
    for stage, prefix in ((config, ""), (config.linear_stage, "linear_stage.")):
        if not stage.epochs > 0 and stage.steps == 0:
            raise UserError(
                f"{prefix}epochs ({stage.epochs}) must be positive, or set {prefix}steps"
            )
    for field, lowest in (("learning_rates", "positive"), ("weight_decays", "at least 0")):
        for value in config.transfer[field]:
            if not (value > 0 or (value == 0 and lowest != "positive")):
                raise UserError(f"transfer.{field} ({value}) must be {lowest}")
    profiled = config.profile_steps
    if profiled and not (len(profiled) == 2 and 1 <= profiled[0] <= profiled[1]):
        raise UserError(
            f"profile_steps ({profiled}) must be the first and the last step to trace, such as "
            "(10, 12), or ()"
        )
    for field in ("mean", "std"):
        if len(config.data[field]) != 3:
            raise UserError(f"data.{field} ({config.data[field]}) must have three values, R G B")
    if config.data.key_transforms and config.data.views == 1:
        raise UserError(
            "data.key_transforms are for the second view: set data.views (1) to 2, or leave "
            "them empty"
        )
    name = config.objective.name
    if name not in objectives.names():
        raise UserError(
            f"objective.name ({name!r}) is unknown; {closest(name, objectives.names())}"
        )
    objective = objectives.create(name, config.objective[name])
    _check_needs(config, objective)
    stages = [(objective.needs, config.average.decay > 0)]
    if not objective.needs.classifier:
        linear = objectives.create("linear", config.objective.linear)
        stages.append((linear.needs, False))
    registry.check(config, stages)


def _check_needs(config: ConfigDict, objective: objectives.Objective) -> None:
    """What the method asks for, the rest of the config must give."""
    needs, name, model = objective.needs, config.objective.name, config.model
    if needs.views != "any" and config.data.views != 2:
        raise UserError(
            f"data.views ({config.data.views}) must be 2 for {name}, which compares two views"
        )
    if needs.predictor and not (model.predictor and model.projection):
        raise UserError(
            f"model.predictor ({model.predictor}) and model.projection ({model.projection}) must "
            f"both be True for {name}"
        )
    if needs.class_centres and (model.classifier_bias or model.classifier != "linear"):
        raise UserError(
            f"model.classifier ({model.classifier!r}) must be 'linear' and model.classifier_bias "
            f"({model.classifier_bias}) False for {name}, whose margin is an angle"
        )
    mixes = config.mixing.mixup_alpha > 0 or config.mixing.cutmix_alpha > 0
    if mixes and not needs.mixed_labels:
        raise UserError(
            f"mixing.mixup_alpha ({config.mixing.mixup_alpha}) and mixing.cutmix_alpha "
            f"({config.mixing.cutmix_alpha}) must be 0 for {name}, which takes one label an image"
        )
    if config.accumulate > 1 and (needs.whole_batch or needs.bank_first):
        raise UserError(
            f"accumulate ({config.accumulate}) must be 1 for {name}, which needs the whole batch "
            "at once"
        )
    if needs.bank:
        _check_bank(config, objective)


def _check_bank(config: ConfigDict, objective: objectives.Objective) -> None:
    needs, name = objective.needs, config.objective.name
    rows = config.batch_size * (2 if needs.views == "rows" and needs.key else 1)
    if config.bank.size < rows:
        each = " of two rows each" if rows > config.batch_size else ""
        raise UserError(
            f"bank.size ({config.bank.size}) must be at least the global batch "
            f"({config.batch_size}{each})"
        )
    neighbours = getattr(objective, "neighbours", 0)
    if neighbours > config.bank.size:
        raise UserError(
            f"objective.{name}.neighbours ({neighbours}) must be at most bank.size "
            f"({config.bank.size})"
        )
    if needs.bank_first and config.bank.exclude_self:
        raise UserError(
            f"bank.exclude_self (True) must be False for {name} with these settings: a sample's "
            "own key is meant to be among its neighbours"
        )


def get_field(config: ConfigDict, field: str) -> Any:
    """The value of ``section.field``."""
    value = config
    for part in field.split("."):
        value = value[part]
    return value


def _with_stage(field: str) -> tuple[str, ...]:
    if field.split(".")[0] in STAGE_SECTIONS:
        return (field, f"linear_stage.{field}")
    return (field,)
