"""What a config becomes: the fixed parts of training, built once and shared by all steps."""

import dataclasses
import functools

import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict, FrozenConfigDict

from cone_jax import models, momentum, objectives
from cone_jax.training import optimizers, schedules


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Everything about a training step that is not in the state. Compared by identity."""

    encoder: models.Encoder
    objective: objectives.Objective
    optimizer: optax.GradientTransformation
    learning_rate: optax.Schedule
    key_momentum: optax.Schedule
    key_after_update: bool  # the average follows the optimiser step, instead of preceding it
    exclude_self: bool
    steps_per_epoch: int
    total_steps: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mesh: Mesh


def build(config: ConfigDict, *, num_classes: int, steps_per_epoch: int, mesh: Mesh) -> Learner:
    """The learner for a config; equal arguments give the same object, hence one compilation."""
    return _build(FrozenConfigDict(config), num_classes, steps_per_epoch, mesh)


@functools.lru_cache(maxsize=16)
def _build(config: FrozenConfigDict, num_classes: int, steps_per_epoch: int, mesh: Mesh) -> Learner:
    total_steps = num_steps(config, steps_per_epoch)
    rate = schedules.learning_rate(
        optimizers.peak_learning_rate(config.optimizer, config.batch_size),
        total_steps=total_steps,
        warmup_steps=round(config.schedule.warmup_epochs * steps_per_epoch),
        decay=config.schedule.decay,
        floor=config.schedule.floor,
        steps_per_unit=steps_per_epoch if config.schedule.unit == "epoch" else 1,
        milestones=[
            (round(epoch * steps_per_epoch), factor) for epoch, factor in config.schedule.milestones
        ],
    )
    name = config.objective.name
    return Learner(
        encoder=build_encoder(config.model, num_classes),
        objective=objectives.create(name, config.objective[name]),
        optimizer=optimizers.create(config.optimizer, rate),
        learning_rate=rate,
        key_momentum=momentum.schedule(config.ema.schedule, config.ema.momentum, total_steps),
        key_after_update=config.ema.order == "after_update",
        exclude_self=config.bank.exclude_self,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        mean=tuple(config.data.mean),
        std=tuple(config.data.std),
        mesh=mesh,
    )


def num_steps(config: ConfigDict, steps_per_epoch: int) -> int:
    """The length of the run in steps."""
    return config.steps or max(round(config.epochs * steps_per_epoch), 1)


def build_encoder(settings: ConfigDict, num_classes: int) -> models.Encoder:
    """The encoder that the section ``model`` of a config describes."""
    projection = None
    if settings.projection:
        projection = models.Projection(
            dim=settings.embedding_dim,
            hidden=settings.head_hidden or None,
            layers=settings.head_layers,
            batch_norm=settings.head_batch_norm,
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
        dtype=jnp.dtype(settings.dtype),
        # An option left at 0, False or "" is left to the architecture.
        **{name: value for name, value in settings.options.items() if value},
    )
