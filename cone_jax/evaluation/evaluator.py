"""What an evaluator is: something that finds named numbers about a network.

An evaluator is a frozen dataclass; its fields are the arguments of its spec in
``config.evaluation.evaluators``, where ``knn(k=20, network='key', every_epochs=5)`` stands for
``Knn(k=20, network="key", every_epochs=5)``. To add a kind:

1. Subclass `Evaluator` as a frozen dataclass. Declare `metrics`, the numbers it finds, each with
   its direction, unit and chart; set `needs_classifier` to False if it only looks at features or
   embeddings; check the fields in `__post_init__`, after ``super().__post_init__()``, with a
   ValueError for a wrong one.
2. Implement `evaluate`. It runs in every process at once and must give each the same numbers,
   every example counted once: `run.eval_stream(source, report)` reads a split so.
3. Add it to `registry.KINDS`: list it there, or register it (docs/extending.md).

The training loop, ``--mode=evaluate``, the choice of the best checkpoint, the report and the checks
of the config then know it by its name.
"""

import abc
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax.console import Metric, Report
from cone_jax.data.datasets import Dataset
from cone_jax.data.pipeline import HostBatch
from cone_jax.data.sources import Source
from cone_jax.evaluation.inference import Network

# Networks of a train state: the one that learns, its momentum copy, the averaged model; and
# the one that is deployed, the averaged model where there is one and the query otherwise.
NETWORKS = ("evaluated", "query", "key", "averaged")

Variables = dict[str, Any]


class EvaluatedRun(Protocol):
    """What an evaluator sees of a run: `cone_jax.training.run.Run` is one."""

    @property
    def config(self) -> ConfigDict: ...
    @property
    def dataset(self) -> Dataset: ...
    @property
    def mesh(self) -> Mesh: ...
    @property
    def learner(self) -> Network: ...

    def eval_stream(
        self, source: Source, report: Report, transforms: Sequence[str] | None = None
    ) -> Iterator[HostBatch]:
        """This process's rows of every batch of `source`, each record once."""
        ...


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an evaluation found. Subclasses keep what figures and tables are made of."""

    scores: Mapping[str, float]  # by the names in the evaluator's `metrics`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(abc.ABC):
    """One entry of ``config.evaluation.evaluators``."""

    network: str = "evaluated"
    # None: config.evaluation.every_epochs; 0: at the end only. At the end it always runs.
    every_epochs: float | None = None
    name: str = ""  # what its metrics are called, before the slash; "": `default_name`

    metrics: ClassVar[tuple[Metric, ...]]
    needs_classifier: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise ValueError(f"network must be one of {', '.join(NETWORKS)}, not {self.network!r}")
        every = self.every_epochs
        if every is not None and not (isinstance(every, int | float) and every >= 0):
            raise ValueError(f"every_epochs must be a number of at least 0, not {every!r}")
        # It becomes the name of a directory.
        if not (isinstance(self.name, str) and re.fullmatch(r"(\w[\w.-]*)?", self.name)):
            raise ValueError(f"name must be a word, not {self.name!r}")
        if self.prefix in ("train", "time"):
            raise ValueError(f"name must be given, since {self.prefix}/... come from training")

    @property
    @abc.abstractmethod
    def default_name(self) -> str:
        """What its metrics are called on the evaluated network."""

    @property
    def prefix(self) -> str:
        """What stands before the slash in its metrics: ``test`` in ``test/top1``."""
        network = "" if self.network == "evaluated" else f"_{self.network}"
        return self.name or self.default_name + network

    def declared(self) -> dict[str, Metric]:
        """All metrics it will report, by their full names."""
        return {f"{self.prefix}/{metric.name}": metric for metric in self.metrics}

    def named(self, outcome: Outcome) -> dict[str, float]:
        """The scores of an outcome by their full names."""
        return {f"{self.prefix}/{metric}": score for metric, score in outcome.scores.items()}

    @abc.abstractmethod
    def evaluate(self, run: EvaluatedRun, variables: Variables, report: Report) -> Outcome:
        """Judges a network of `run`, which is the stage that `variables` belong to."""
