"""A run as its config defines it: data, devices, lengths. What training and evaluation share."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import distributed, objectives
from cone_jax.console import Report
from cone_jax.data import datasets, pipeline
from cone_jax.data.datasets import Dataset
from cone_jax.data.pipeline import DamageTally, Share
from cone_jax.data.sources import Source
from cone_jax.errors import UserError
from cone_jax.evaluation import registry
from cone_jax.evaluation.registry import Evaluator
from cone_jax.training import train_state
from cone_jax.training.train_state import Learner, TrainState, abstract_state, create_state


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything about a run, or one stage of it, that does not change while it goes on.

    Steps are counted over the whole run. `open` gives the first stage, which is all there is
    for most methods; `stages` lists them.
    """

    config: ConfigDict  # of this stage
    dataset: Dataset
    share: Share  # this process's part of every batch
    learner: Learner  # of this stage
    following: "Run | None" = None  # the next stage

    @classmethod
    def open(cls, config: ConfigDict, dataset: Dataset | None = None) -> "Run":
        """Checks the config against itself, the devices and the data. Writes nothing.

        `dataset` stands in for the one that the config names.
        """
        config_lib.validate(config)
        mesh = distributed.make_mesh()
        check_batches(config, mesh.size)
        dataset = dataset or datasets.open_dataset(config.data)
        share = Share(jax.process_index(), jax.process_count())
        first, *later = config_lib.stage_configs(config)
        objective = objectives.chosen(first.objective)
        needs = objective.needs
        datasets.check_labels(config, dataset, needs.labels)
        for source in (dataset.train, dataset.test):
            objective.check_data(source)
        prior = datasets.class_shares(dataset.train) if needs.class_prior else None

        def stage(config: ConfigDict, first_step: int) -> Run:
            order = datasets.train_order(config, len(dataset.train), dataset.train)
            learner = train_state.build_learner(
                config,
                num_classes=dataset.num_classes,
                steps_per_epoch=order.steps_per_epoch,
                mesh=mesh,
                first_step=first_step,
                class_prior=prior,
            )
            return cls(config, dataset, share, learner)

        run = stage(first, 0)
        for stage_config in later:
            run = dataclasses.replace(run, following=stage(stage_config, run.last_step))
        for each in run.stages:
            # Finds out before training whether the transforms give what the model expects.
            each._train_batches.check_size(each.config.data.image_size)
            _ = each.evaluators  # prepared before the first batch
        return run

    @property
    def mesh(self) -> Mesh:
        return self.learner.mesh

    @property
    def first_step(self) -> int:
        """The steps that the stages before this one take."""
        return self.learner.first_step

    @property
    def steps_per_epoch(self) -> int:
        return self.learner.steps_per_epoch

    @property
    def last_step(self) -> int:
        """The step with which this stage ends."""
        return self.first_step + self.learner.total_steps

    @property
    def stages(self) -> tuple["Run", ...]:
        """This stage and those after it."""
        return (self, *(self.following.stages if self.following else ()))

    @property
    def total_steps(self) -> int:
        """The step with which the whole run ends."""
        return self.stages[-1].last_step

    def stage_at(self, step: int) -> "Run":
        """The stage that a checkpoint at `step` belongs to: the one that took this step."""
        return next(stage for stage in self.stages if step <= stage.last_step)

    def on_local_devices(self) -> "Run":
        """This stage on this process's devices, for what it does without the other processes."""
        return self.on_mesh(distributed.make_mesh(jax.local_devices()))

    def on_mesh(self, mesh: Mesh) -> "Run":
        """This stage on the devices of `mesh`, whole batches in this process."""
        learner = dataclasses.replace(self.learner, mesh=mesh)
        return dataclasses.replace(self, learner=learner, share=Share(), following=None)

    def init_state(self) -> TrainState:
        """The state before the first step of this stage, if nothing came before it."""
        return create_state(self.learner, jax.random.key(self.config.seed))

    def start_from(self, earlier: TrainState) -> TrainState:
        """The state before the first step of this stage, with the backbone trained so far."""
        fresh, trained = self.init_state(), earlier.evaluated
        return fresh.replace(
            params={**fresh.params, **_only_backbone(trained["params"])},
            batch_stats={**fresh.batch_stats, **_only_backbone(trained["batch_stats"])},
        )

    def abstract_state(self) -> TrainState:
        """What a checkpoint of this stage looks like."""
        return abstract_state(self.learner)

    def train_stream(self, start: int, report: Report) -> Iterator[dict[str, jax.Array]]:
        """Training batches on the devices, from step `start` of the run on."""
        tally = DamageTally(self.dataset.train, self.config.data.damaged_limit, report, self.share)
        for batch in self._read(self._train_batches, start - self.first_step):
            tally.add(batch.pop("damaged"))
            yield distributed.to_devices(self.mesh, batch)

    def host_batch(self, step: int) -> pipeline.HostBatch:
        """The whole batch that step number `step` (from 1) of the run takes, made anew.

        The same pixels as in training, whatever the number of processes there.
        """
        stage = self.stage_at(step)
        whole = dataclasses.replace(stage._train_batches, share=Share())
        return whole[step - 1 - stage.first_step]

    @functools.cached_property
    def _train_batches(self) -> Any:
        """This process's share of every batch of this stage."""
        length = self.last_step - self.first_step
        return datasets.train_batches(self.config, self.dataset.train, length, self.share)

    def require_classifier(self, step: int) -> None:
        """`UserError` where the checkpoint at `step` has no trained classifier."""
        stage = self.stage_at(step)
        if not stage.learner.objective.needs.classifier:
            raise UserError(
                f"--step ({step}) is in the first stage of {stage.config.objective.name}, which "
                f"trains no classifier; choose one after {stage.last_step}"
            )

    @functools.cached_property
    def evaluators(self) -> tuple[Evaluator, ...]:
        """The config's evaluators whose classifier and network this stage has."""
        return tuple(filter(self.can_serve, registry.parse(self.config.evaluation.evaluators)))

    def can_serve(self, evaluator: Evaluator) -> bool:
        """Whether this stage has what `evaluator` needs."""
        learner = self.learner
        return registry.fits(
            evaluator, learner.objective.needs, averaged=learner.averaging is not None
        )

    @property
    def eval_batch_size(self) -> int:
        """Rows of an evaluation batch; those beyond `evaluation.batch_size` even out the shares."""
        return distributed.rounded_up(self.config.evaluation.batch_size, self.mesh.size)

    def eval_stream(
        self,
        source: Source,
        report: Report,
        transforms: Sequence[str] | None = None,
        *,
        readable_only: bool = False,
    ) -> Iterator[pipeline.HostBatch]:
        """This process's rows of every batch of `source`, as test pictures, each record once.

        `transforms` replace those of the config. An unreadable picture counts as a black one or,
        with `readable_only`, not at all.
        """
        batches = datasets.eval_batches(
            self.config, source, self.share, transforms, self.eval_batch_size
        )
        tally = DamageTally(source, self.config.data.damaged_limit, report, self.share)
        for batch in self._read(batches, 0):
            damaged = batch.pop("damaged")
            tally.add(damaged)
            if readable_only:
                batch["mask"] &= damaged == pipeline.NOT_DAMAGED
            yield batch

    def _read(self, batches: Any, start: int) -> Iterator[pipeline.HostBatch]:
        data = self.config.data
        return pipeline.read_ahead(
            batches,
            start=start,
            threads=data.threads,
            prefetch=data.prefetch,
            workers=data.workers,
        )

    def idle_terms(self) -> Iterator[str]:
        """A line about each part of the method that most of this stage would do without."""
        settings, total = self.learner.settings, self.last_step - self.first_step
        name, objective = settings.objective.name, self.learner.objective
        rows = settings.batch_size * (2 if objective.needs.views == "rows" else 1)
        first = objective.first_active_step(
            steps_per_epoch=self.steps_per_epoch,
            steps_to_fill_bank=-(-settings.bank.size // rows),
        )
        if 2 * first > total:
            yield (
                f"warning: the terms that {name} adds to cross-entropy count in "
                f"{max(total - first, 0):,} of {total:,} steps (the bank of "
                f"{settings.bank.size:,} rows and objective.{name}.start_epochs wait until step "
                f"{first:,}): train longer or lower bank.size"
            )
        warmup = round(settings.schedule.warmup_epochs * self.steps_per_epoch)
        if 2 * warmup > total:
            yield (
                f"warning: schedule.warmup_epochs ({settings.schedule.warmup_epochs:g}) takes "
                f"{min(warmup, total):,} of {total:,} steps: train longer or lower it"
            )


def check_batches(config: ConfigDict, devices: int) -> None:
    """`UserError` where the batches of a run cannot be split over that many devices."""
    first, *later = config_lib.stage_configs(config)
    distributed.check_divisible("batch_size", first.batch_size, devices, first.accumulate)
    for stage in later:
        distributed.check_divisible("linear_stage.batch_size", stage.batch_size, devices)


def _only_backbone(collection: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in collection.items() if name == "backbone"}
