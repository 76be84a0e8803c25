"""A run as its config defines it: data, devices, lengths. What training and evaluation share."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import sharding
from cone_jax.data import datasets, pipeline
from cone_jax.data.datasets import Dataset
from cone_jax.data.pipeline import DamageTally, Share
from cone_jax.errors import UserError
from cone_jax.evaluation import classification
from cone_jax.evaluation.classification import ClassificationResult
from cone_jax.training import learner as learners
from cone_jax.training.train_state import TrainState, abstract_state, init_state

Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything about a run that does not change while it goes on."""

    config: ConfigDict
    dataset: Dataset
    mesh: Mesh
    share: Share  # this process's part of every batch
    steps_per_epoch: int
    total_steps: int

    @classmethod
    def open(cls, config: ConfigDict) -> "Run":
        """Checks the config against itself, the devices and the data. Writes nothing."""
        config_lib.validate(config)
        mesh = sharding.make_mesh()
        sharding.check_divisible("batch_size", config.batch_size, mesh)
        sharding.check_divisible("evaluation.batch_size", config.evaluation.batch_size, mesh)
        dataset = datasets.open_dataset(config.data)
        order = datasets.train_order(config, len(dataset.train))
        run = cls(
            config=config,
            dataset=dataset,
            mesh=mesh,
            share=Share(jax.process_index(), jax.process_count()),
            steps_per_epoch=order.steps_per_epoch,
            total_steps=learners.num_steps(config, order.steps_per_epoch),
        )
        run._check_image_size()
        _ = run.learner  # names the model or the optimiser that cannot be built
        return run

    def init_state(self) -> TrainState:
        """The state before step 0."""
        return init_state(self.config, jax.random.key(self.config.seed), **self._shapes())

    def abstract_state(self) -> TrainState:
        """What a checkpoint of this run looks like."""
        return abstract_state(self.config, **self._shapes())

    def train_stream(self, start: int, report: Report) -> Iterator[dict[str, jax.Array]]:
        """Training batches on the devices, from step `start` on."""
        batches = datasets.train_batches(
            self.config, self.dataset.train, self.total_steps, self.share
        )
        tally = DamageTally(self.dataset.train, self.config.data.damaged_limit, report)
        for batch in self._read(batches, start):
            tally.add(batch.pop("damaged"))
            yield sharding.to_devices(self.mesh, batch)

    def evaluate(self, variables: dict[str, Any], report: Report) -> ClassificationResult:
        """The accuracy of a network on the test split."""
        batches = datasets.eval_batches(self.config, self.dataset.test, self.share)
        tally = DamageTally(self.dataset.test, self.config.data.damaged_limit, report)

        def checked() -> Iterator[pipeline.HostBatch]:
            for batch in self._read(batches, 0):
                tally.add(batch.pop("damaged"))
                yield batch

        return classification.evaluate(
            self.learner.encoder,
            variables,
            checked(),
            mean=self.learner.mean,
            std=self.learner.std,
            mesh=self.mesh,
        )

    @property
    def learner(self) -> learners.Learner:
        return learners.build(self.config, **self._shapes())

    def _shapes(self) -> dict[str, Any]:
        return {
            "num_classes": self.dataset.num_classes,
            "steps_per_epoch": self.steps_per_epoch,
            "mesh": self.mesh,
        }

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
        batches = datasets.train_batches(self.config, self.dataset.train, 1, Share())
        sample = batches._sample(batches.order[0])["image"]
        if sample.shape[-3:] != (size, size, 3):
            height, width, _ = sample.shape[-3:]
            raise UserError(
                f"data.image_size ({size}) does not fit data.train_transforms, which give "
                f"{height} x {width} pixels"
            )
