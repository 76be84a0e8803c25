"""What a config becomes: the fixed parts of training, built once per stage and handed over."""

import dataclasses
import functools
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax import models, momentum, objectives, sharding
from cone_jax.settings import Average, Mixing, Settings
from cone_jax.training import optimizers

Tree = Any


@dataclasses.dataclass(frozen=True)
class Averaging:
    """The averaged model: a slow average of parameters *and* BatchNorm statistics.

    It is what torchvision's training reference calls the EMA model, and distinct from the method's
    momentum network, which averages parameters only and makes the keys.
    """

    decay: float  # of one update
    every: int  # steps between two updates
    copy_steps: int  # up to here an update copies the model, since it still changes fast

    @classmethod
    def create(
        cls, settings: Average, *, batch_size: int, epochs: float, copy_steps: int
    ) -> "Averaging | None":
        """The averaging that a config section describes; None when it is off.

        With `rescale`, torchvision's rule: the configured decay is meant for updates each step
        with one image over one epoch, so that the horizon is the same share of any run.

        >>> settings = Average(decay=0.99998, every=32, rescale=True)
        >>> round(Averaging.create(settings, batch_size=1024, epochs=350, copy_steps=0).decay, 6)
        0.998128
        """
        if settings.decay == 0.0:
            return None
        decay = settings.decay
        if settings.rescale:
            decay = 1.0 - min(1.0, (1.0 - decay) * batch_size * settings.every / epochs)
        return cls(decay, settings.every, copy_steps)

    def update(self, averaged: Tree, variables: Tree, steps_taken: jax.Array) -> Tree:
        """The average after step number `steps_taken`, of which `variables` are the result."""

        def move() -> Tree:
            decay = jax.lax.select(steps_taken <= self.copy_steps, 0.0, self.decay)
            return momentum.update(averaged, variables, decay)

        return jax.lax.cond(steps_taken % self.every == 0, move, lambda: averaged)


@dataclasses.dataclass(frozen=True)
class Learner:
    """Everything about a training step that is not in the state.

    A compiled step belongs to a learner. Learners are equal when they are made from the same
    settings, so a run that is opened again does not compile again.
    """

    settings: Settings  # of the stage
    objective: objectives.Objective
    num_classes: int
    steps_per_epoch: int
    mesh: Mesh
    first_step: int = 0  # of the stage, in the whole run
    class_prior: tuple[float, ...] | None = None  # share of each class in the training set
    platform: str | None = None  # whose forms of operations the network takes; None: the mesh's

    def __post_init__(self) -> None:
        # Builds every part now: a model or an optimiser that cannot be built is named at once.
        _ = self.encoder, self.optimizer, self.key_momentum, self.averaging, self.mixing

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in dataclasses.fields(self)))

    def __hash__(self) -> int:
        # Asked for in every call of a compiled step.
        return self._hash

    @property
    def total_steps(self) -> int:
        """The length of the stage in steps."""
        epochs = self.settings.epochs
        return self.settings.steps or max(round(epochs * self.steps_per_epoch), 1)

    @property
    def mean(self) -> tuple[float, ...]:
        return self.settings.data.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.settings.data.std

    @functools.cached_property
    def mixing(self) -> Mixing | None:
        """MixUp and CutMix; None when both are off."""
        return self.settings.mixing if self.settings.mixing.on else None

    @functools.cached_property
    def encoder(self) -> models.Encoder:
        platform = self.platform or sharding.platform(self.mesh)
        return models.from_settings(self.settings.model, self.num_classes, platform)

    @functools.cached_property
    def learning_rate(self) -> optax.Schedule:
        """A function of the steps since `first_step`, as all schedules here."""
        return optimizers.scheduled_rate(
            self.settings.schedule,
            optimizers.peak_learning_rate(self.settings.optimizer, self.settings.batch_size),
            total_steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
        )

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return optimizers.create(self.settings.optimizer, self.learning_rate)

    @functools.cached_property
    def key_momentum(self) -> optax.Schedule:
        """The momentum network's, a function of the steps since `first_step`."""
        ema = self.settings.ema
        return momentum.schedule(ema.schedule, ema.momentum, self.total_steps)

    @functools.cached_property
    def averaging(self) -> Averaging | None:
        return Averaging.create(
            self.settings.average,
            batch_size=self.settings.batch_size,
            epochs=self.total_steps / self.steps_per_epoch,
            copy_steps=round(self.settings.schedule.warmup_epochs * self.steps_per_epoch),
        )


def build(config: ConfigDict, **others: Any) -> Learner:
    """The learner for the config of a stage; `others` are the further fields of `Learner`."""
    return Learner(Settings.read(config), objectives.chosen(config.objective), **others)
