"""Whether the sections of a config fit together; what each may be by itself, it checks itself."""

from ml_collections import ConfigDict

from cone_jax import objectives
from cone_jax.errors import UserError
from cone_jax.evaluation import registry
from cone_jax.settings import Settings


def validate(config: ConfigDict) -> None:
    """Raises `UserError` for the first field that cannot work."""
    settings, objective = Settings.read(config), objectives.chosen(config.objective)
    _check_needs(settings, objective)
    stages = [(objective.needs, settings.average.decay > 0)]
    if not objective.needs.classifier:
        linear = objectives.create("linear", config.objective.linear)
        stages.append((linear.needs, False))
    registry.check(config, stages)


def _check_needs(settings: Settings, objective: objectives.Objective) -> None:
    """What the method asks for, the rest of the config must give."""
    needs, name, model = objective.needs, settings.objective.name, settings.model
    if needs.views != "any" and settings.data.views != 2:
        raise UserError(
            f"data.views ({settings.data.views}) must be 2 for {name}, which compares two views"
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
    if settings.mixing.on and not needs.mixed_labels:
        raise UserError(
            f"mixing.mixup_alpha ({settings.mixing.mixup_alpha}) and mixing.cutmix_alpha "
            f"({settings.mixing.cutmix_alpha}) must be 0 for {name}, which takes one label per "
            "image"
        )
    if settings.accumulate > 1 and (needs.whole_batch or needs.bank_first):
        raise UserError(
            f"accumulate ({settings.accumulate}) must be 1 for {name}, which needs the whole batch "
            "at once"
        )
    if needs.bank:
        _check_bank(settings, objective)


def _check_bank(settings: Settings, objective: objectives.Objective) -> None:
    needs, name = objective.needs, settings.objective.name
    rows = settings.batch_size * (2 if needs.views == "rows" and needs.key else 1)
    if settings.bank.size < rows:
        each = " of two rows each" if rows > settings.batch_size else ""
        raise UserError(
            f"bank.size ({settings.bank.size}) must be at least the global batch "
            f"({settings.batch_size}{each})"
        )
    neighbours = getattr(objective, "neighbours", 0)
    if neighbours > settings.bank.size:
        raise UserError(
            f"objective.{name}.neighbours ({neighbours}) must be at most bank.size "
            f"({settings.bank.size})"
        )
    if needs.bank_first and settings.bank.exclude_self:
        raise UserError(
            f"bank.exclude_self (True) must be False for {name} with these settings: a sample's "
            "own key is meant to be among its neighbours"
        )
