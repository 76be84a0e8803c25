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
    def open(cls, config: ConfigDict) -> "Run":
        """Checks the config against itself, the devices and the data. Writes nothing."""
        config_lib.validate(config)
        mesh = distributed.make_mesh()
        distributed.check_divisible("evaluation.batch_size", config.evaluation.batch_size, mesh)
        dataset = datasets.open_dataset(config.data)
        share = Share(jax.process_index(), jax.process_count())
        first, *later = config_lib.stage_configs(config)
        distributed.check_divisible("batch_size", first.batch_size, mesh, first.accumulate)
        needs = objectives.chosen(first.objective).needs
        prior = datasets.class_shares(dataset.train) if needs.class_prior else None

        def stage(config: ConfigDict, first_step: int) -> Run:
            learner = train_state.build_learner(
                config,
                num_classes=dataset.num_classes,
                steps_per_epoch=datasets.train_order(config, len(dataset.train)).steps_per_epoch,
                mesh=mesh,
                first_step=first_step,
                class_prior=prior,
            )
            return cls(config, dataset, share, learner)

        run = stage(first, 0)
        for stage_config in later:
            distributed.check_divisible("linear_stage.batch_size", stage_config.batch_size, mesh)
            run = dataclasses.replace(run, following=stage(stage_config, run.last_step))
        for each in run.stages:
            each._check_image_size()
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
    def _train_batches(self) -> pipeline.TrainBatches:
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
        """Those of the config that this stage has a classifier and a network for."""
        return tuple(filter(self.can_serve, registry.parse(self.config.evaluation.evaluators)))

    def can_serve(self, evaluator: Evaluator) -> bool:
        """Whether this stage has what `evaluator` looks at."""
        learner = self.learner
        return registry.fits(
            evaluator, learner.objective.needs, averaged=learner.averaging is not None
        )

    def eval_stream(
        self, source: Source, report: Report, transforms: Sequence[str] | None = None
    ) -> Iterator[pipeline.HostBatch]:
        """This process's rows of every batch of `source`, as test pictures, each record once.

        `transforms` replace those of the config.
        """
        batches = datasets.eval_batches(self.config, source, self.share, transforms)
        tally = DamageTally(source, self.config.data.damaged_limit, report, self.share)
        for batch in self._read(batches, 0):
            tally.add(batch.pop("damaged"))
            yield batch

    def _read(
        self, batches: pipeline.TrainBatches | pipeline.EvalBatches, start: int
    ) -> Iterator[pipeline.HostBatch]:
        data = self.config.data
        return pipeline.read_ahead(
            batches,
            start=start,
            threads=data.threads,
            prefetch=data.prefetch,
            workers=data.workers,
        )

    def _check_image_size(self) -> None:
        """Finds out before training whether the transforms give what the model expects."""
        size = self.config.data.image_size
        batches = self._train_batches
        sample = batches.sample(batches.order[0])["image"]
        if sample.shape[-3:] != (size, size, 3):
            height, width, _ = sample.shape[-3:]
            raise UserError(
                f"data.image_size ({size}) does not fit data.train_transforms, which give "
                f"{height} x {width} pixels"
            )


def _only_backbone(collection: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in collection.items() if name == "backbone"}
