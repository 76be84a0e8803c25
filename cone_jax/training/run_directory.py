"""The directory of a run: everything that it holds, loaded on demand.

    directory = RunDirectory.open("runs/birds")
    directory.config, directory.series("test/top1"), directory.deployed("best")

Config, records, checkpoints and the deployed network need neither the data nor the devices of the
run. `dataset` opens its data, `run` its data and all devices, and what is restored for a stage of
`run` is placed on the devices of that stage.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import models, objectives, storage, workdir
from cone_jax.console import Metric
from cone_jax.data import datasets, transforms
from cone_jax.data.datasets import Dataset
from cone_jax.errors import UserError
from cone_jax.evaluation import registry
from cone_jax.evaluation.registry import Variables
from cone_jax.interop import files
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.memory_bank import MemoryBank
from cone_jax.settings import Model
from cone_jax.training import train_log
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import CHECKPOINTS_FOLDER, Checkpoints, resolve_step
from cone_jax.workdir.metrics import METRICS_FILE, TIMING_FILE, read_records


class Series(NamedTuple):
    """One metric over training; as many values as steps."""

    steps: np.ndarray
    values: np.ndarray


class DeployedNetwork(NamedTuple):
    """The network that a run is for: the averaged one where the run kept one."""

    encoder: models.Encoder  # or a detector
    variables: dict[str, Any]  # NumPy arrays
    metadata: ExportMetadata


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """The files of a run in `path`, finished or not."""

    path: Path
    config: ConfigDict

    @classmethod
    def open(cls, path: Path | str) -> "RunDirectory":
        """Reads the config; `UserError` where `path` is not the directory of a run."""
        path = storage.path(path, "workdir")
        return cls(path, workdir.load_config(path))

    @property
    def has_objects(self) -> bool:
        """Whether the network is a detector."""
        return objectives.chosen(self.config.objective).needs.labels == "objects"

    def require_classes(self, mode: str) -> None:
        """`UserError` if the network is a detector, which `mode` does not support."""
        if self.has_objects:
            raise UserError(
                f"--mode={mode} is for classifiers, but --workdir ({self.path}) is the run of a "
                "detector; for one there are evaluate, predict, export, report and compare"
            )

    @property
    def name(self) -> str:
        return self.path.absolute().name

    def title(self, step: int) -> str:
        """The name of a checkpoint's network in results."""
        return f"{self.path}, step {step:,}"

    @functools.cached_property
    def records(self) -> Sequence[dict[str, Any]]:
        """Every line of the metrics and timing files, each with its ``step``."""
        names = (METRICS_FILE, TIMING_FILE)
        return [record for name in names for record in read_records(self.path / name)]

    @property
    def last_step(self) -> int:
        """The latest step anything is recorded of; 0 before the first."""
        return max((record["step"] for record in self.records), default=0)

    def metric_names(self) -> list[str]:
        """Everything recorded, in the order of its first appearance."""
        names = dict.fromkeys(name for record in self.records for name in record)
        return [name for name in names if name != "step"]

    def series(self, name: str) -> Series:
        """The values of one metric; empty where it was never recorded."""
        found = [(record["step"], record[name]) for record in self.records if name in record]
        steps, values = zip(*found, strict=True) if found else ((), ())
        return Series(np.array(steps, np.int64), np.array(values, np.float64))

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        values = self.series(name).values
        return float(values[-1]) if values.size else None

    @functools.cached_property
    def declared_metrics(self) -> dict[str, Metric]:
        """What is declared about the metrics of this run, by full names."""
        try:
            found = registry.declared_metrics(self.config)
        except UserError:  # an evaluator of somebody who is not here
            found = {}
        return found | train_log.declared_metrics()

    def resolve(self, step: int | str = "latest") -> int:
        """The number of a checkpoint: a number, ``latest`` or ``best``. Only reads."""
        best_metric = self.config.checkpoint.best_metric
        lower = step == "best" and registry.lower_is_better(self.config)
        return resolve_step(self.path, step, best_metric=best_metric, lower_is_better=lower)

    def checkpoint(self, step: int | str = "latest") -> Path:
        """Where a checkpoint is."""
        return self.path / CHECKPOINTS_FOLDER / str(self.resolve(step))

    def deployed(self, step: int | str = "latest") -> DeployedNetwork:
        """The network of a checkpoint, and what it says of itself, without the data."""
        number = self.resolve(step)
        variables = files.read_checkpoint(self.checkpoint(number))
        config = config_lib.deployed(self.config)
        num_classes = _num_classes(variables["params"])
        encoder = network_of(config, num_classes)
        names = self.class_names(num_classes)
        description = describe(config, names, run=self.path.name, step=number)
        if self.has_objects:
            return DeployedNetwork(encoder, variables, description)
        expected = models.abstract_variables(encoder, description.image_size)
        if flatten_dict(expected).keys() != flatten_dict(variables).keys():
            raise UserError(
                f"--step ({number}) of {self.path} holds another network than the one its config "
                "ends with: the first stage of a method that trains its classifier later; choose "
                "a later one"
            )
        return DeployedNetwork(encoder, variables, description)

    def class_names(self, num_classes: int) -> tuple[str, ...]:
        """The names kept here; else those of the data; else, where these are gone, numbers."""
        kept = workdir.class_names(self.path)
        if kept is not None:
            if len(kept) != num_classes:
                raise UserError(
                    f"{self.path / workdir.CLASSES_FILE} has {len(kept)} names, but the network "
                    f"{num_classes} classes; delete it, or write it again"
                )
            return kept
        try:
            return datasets.open_split(self.config.data, self.config.data.train_split).class_names
        except UserError:
            return tuple(map(str, range(num_classes)))

    @functools.cached_property
    def dataset(self) -> Dataset:
        """Both splits; `UserError` where they are gone."""
        return datasets.open_dataset(self.config.data)

    @functools.cached_property
    def run(self) -> Run:
        """The run on its data and devices; its first stage."""
        return Run.open(self.config)

    def variables(self, stage: Run, step: int, network: str = "evaluated") -> Variables:
        """Any network in `registry.NETWORKS` of the checkpoint at `step`, which is of `stage`.

        Of several processes one suffices: nothing here waits for another.
        """
        abstract = stage.abstract_state()
        with Checkpoints(self.path, read_only=True) as checkpoints:
            if network == "key":
                fields = {
                    "ema_params": abstract.ema_params,
                    "ema_batch_stats": abstract.ema_batch_stats,
                }
                key = checkpoints.restore_fields(step, fields)
                return {"params": key["ema_params"], "batch_stats": key["ema_batch_stats"]}
            if network != "query" and abstract.averaged is not None:
                return checkpoints.restore_fields(step, {"averaged": abstract.averaged})["averaged"]
            return checkpoints.restore_fields(step, abstract.variables)

    def bank(self, stage: Run, step: int) -> MemoryBank | None:
        """The bank at `step`; None for objectives without, or while there is nothing in it."""
        abstract = stage.abstract_state().bank
        if abstract is None:
            return None
        with Checkpoints(self.path, read_only=True) as checkpoints:
            bank = checkpoints.restore_fields(step, {"bank": abstract})["bank"]
        return bank if int(bank.filled) else None


def network_of(config: ConfigDict, num_classes: int) -> models.Encoder:
    """The network that a config describes: an encoder, or its method's own."""
    objective, model = objectives.chosen(config.objective), Model.read(config.model)
    detector = objective.network(model, num_classes, jax.default_backend())
    return detector or models.from_settings(model, num_classes)


def _num_classes(params: dict[str, Any]) -> int:
    """The number of classes of a classifier, or of a detector without its background."""
    if "classifier" in params:
        return int(params["classifier"]["kernel"].shape[-1])
    return int(params["box_predictor"]["logits"]["bias"].shape[-1]) - 1


def describe(config: ConfigDict, class_names: tuple[str, ...], **origin: Any) -> ExportMetadata:
    """What a config says about the use of its network; `origin` is kept as it is."""
    data = config.data
    size = None
    if objectives.chosen(config.objective).needs.labels == "class":
        size = transforms.parse(data.test_transforms).output_size()
    return ExportMetadata(
        class_names=class_names,
        image_size=size[0] if size else data.image_size,
        mean=tuple(data.mean),
        std=tuple(data.std),
        transforms=tuple(data.test_transforms),
        pixels=data.test_pixels,
        origin=origin,
    )
