"""What a config becomes: the fixed parts of training, built once and shared by all steps."""

import dataclasses
import functools

import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict, FrozenConfigDict

from cone_jax import models, momentum, objectives, sharding
from cone_jax.training import averaging, optimizers
from cone_jax.training.averaging import Averaging


@dataclasses.dataclass(frozen=True)
class Mixing:
    """MixUp and CutMix: see `cone_jax.data.on_device.mix`."""

    mixup_alpha: float
    cutmix_alpha: float
    switch: float


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Everything about a training step that is not in the state. Compared by identity."""

    encoder: models.Encoder
    objective: objectives.Objective
    optimizer: optax.GradientTransformation
    learning_rate: optax.Schedule  # of the steps since `first_step`, as all schedules here
    key_momentum: optax.Schedule
    key_after_update: bool  # the average follows the optimiser step, instead of preceding it
    averaging: Averaging | None
    mixing: Mixing | None
    exclude_self: bool
    accumulate: int  # parts that a batch is taken in, one after another
    skip_nonfinite: bool  # an update that is not finite is not made
    class_prior: tuple[float, ...] | None
    first_step: int  # of the stage
    steps_per_epoch: int
    total_steps: int  # of the stage
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mesh: Mesh


def build(
    config: ConfigDict,
    *,
    num_classes: int,
    steps_per_epoch: int,
    mesh: Mesh,
    first_step: int = 0,
    class_prior: tuple[float, ...] | None = None,
) -> Learner:
    """The learner for a config; equal arguments give the same object, hence one compilation."""
    return _build(
        FrozenConfigDict(config), num_classes, steps_per_epoch, mesh, first_step, class_prior
    )


@functools.lru_cache(maxsize=16)
def _build(
    config: FrozenConfigDict,
    num_classes: int,
    steps_per_epoch: int,
    mesh: Mesh,
    first_step: int,
    class_prior: tuple[float, ...] | None,
) -> Learner:
    total_steps = num_steps(config, steps_per_epoch)
    rate = _learning_rate(config, steps_per_epoch, total_steps)
    name = config.objective.name
    mixing = Mixing(config.mixing.mixup_alpha, config.mixing.cutmix_alpha, config.mixing.switch)
    return Learner(
        encoder=build_encoder(config.model, num_classes, sharding.platform(mesh)),
        objective=objectives.create(name, config.objective[name]),
        optimizer=optimizers.create(config.optimizer, rate),
        learning_rate=rate,
        key_momentum=momentum.schedule(config.ema.schedule, config.ema.momentum, total_steps),
        key_after_update=config.ema.order == "after_update",
        averaging=averaging.create(
            config.average,
            batch_size=config.batch_size,
            epochs=total_steps / steps_per_epoch,
            copy_steps=round(config.schedule.warmup_epochs * steps_per_epoch),
        ),
        mixing=mixing if mixing.mixup_alpha or mixing.cutmix_alpha else None,
        exclude_self=config.bank.exclude_self,
        accumulate=config.accumulate,
        skip_nonfinite=config.nonfinite.policy == "skip",
        class_prior=class_prior,
        first_step=first_step,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        mean=tuple(config.data.mean),
        std=tuple(config.data.std),
        mesh=mesh,
    )


def num_steps(config: ConfigDict, steps_per_epoch: int) -> int:
    """The length of a stage in steps."""
    return config.steps or max(round(config.epochs * steps_per_epoch), 1)


def _learning_rate(config: ConfigDict, steps_per_epoch: int, total_steps: int) -> optax.Schedule:
    schedule = config.schedule
    return optimizers.learning_rate(
        optimizers.peak_learning_rate(config.optimizer, config.batch_size),
        total_steps=total_steps,
        warmup_steps=round(schedule.warmup_epochs * steps_per_epoch),
        warmup_start=schedule.warmup_start,
        decay=schedule.decay,
        floor=schedule.floor,
        steps_per_unit=steps_per_epoch if schedule.unit == "epoch" else 1,
        milestones=[
            (round(epoch * steps_per_epoch), factor) for epoch, factor in schedule.milestones
        ],
        exponential=(
            max(round(schedule.decay_epochs * steps_per_epoch), 1),
            schedule.decay_factor,
        ),
    )


def build_encoder(
    settings: ConfigDict, num_classes: int, platform: str | None = None
) -> models.Encoder:
    """The encoder that the section ``model`` of a config describes; see `models.build`."""
    projection = predictor = None
    if settings.projection:
        projection = models.Projection(
            dim=settings.embedding_dim,
            hidden=settings.head_hidden or None,
            layers=settings.head_layers,
            batch_norm=settings.head_batch_norm,
            normalise_input=settings.head_normalise_input,
            output_batch_norm=settings.head_output_batch_norm,
        )
        if settings.predictor:
            predictor = models.Projection(
                dim=settings.embedding_dim, hidden=settings.predictor_hidden
            )
    classifier = models.Classifier(
        input=settings.classifier_input,
        kind=settings.classifier,
        bias=settings.classifier_bias,
    )
    return models.create(
        settings.name,
        num_classes,
        stem=settings.stem,
        projection=projection,
        classifier=classifier,
        predictor=predictor,
        dtype=jnp.dtype(settings.dtype),
        platform=platform,
        **{name: value for name, value in settings.options.items() if value is not None},
    )
