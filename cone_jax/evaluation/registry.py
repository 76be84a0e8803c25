"""The interface of evaluators, which measure named numbers of a network, and their registry.

An evaluator is a frozen dataclass; its fields are the arguments of its spec in
``config.evaluation.evaluators``, where ``knn(k=20, network='key', every_epochs=5)`` stands for
``Knn(k=20, network="key", every_epochs=5)``. To add a kind:

1. Subclass `Evaluator` as a frozen dataclass. Declare `metrics`, what it measures, each with
   its direction, unit and chart; set `needs_classifier` to False if it only looks at features or
   embeddings; check the fields in `__post_init__`, after ``super().__post_init__()``, with a
   ValueError for a wrong one.
2. Implement `evaluate`. It runs in every process at once and must give each the same numbers,
and count every example once: `run.eval_stream(source, report)` reads a split that way.
3. Add it to `KINDS`: list it there, or register it (docs/extending.md).

The training loop, ``--mode=evaluate``, the choice of the best checkpoint, the report and the checks
of the config then know it by its name.
"""

import abc
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax import spec_strings
from cone_jax.console import Metric, Report, find_metric
from cone_jax.data.datasets import Dataset
from cone_jax.data.pipeline import HostBatch, Share
from cone_jax.data.sources import Source
from cone_jax.errors import UserError, closest
from cone_jax.evaluation.inference import Network
from cone_jax.objectives import LabelKind, Needs
from cone_jax.spec_strings import Registry

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
    @property
    def share(self) -> Share: ...

    def eval_stream(
        self,
        source: Source,
        report: Report,
        transforms: Sequence[str] | None = None,
        *,
        readable_only: bool = False,
    ) -> Iterator[HostBatch]:
        """This process's rows of every batch of `source`, each record once."""
        ...


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of an evaluation. Subclasses keep the data for figures and tables."""

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
    labels: ClassVar[LabelKind] = "class"  # what it knows of a test picture

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
        """The name of its metrics for the evaluated network."""

    @property
    def prefix(self) -> str:
        """The part of its metrics' names before the slash: ``test`` in ``test/top1``."""
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


_OWN = {
    "classification": "cone_jax.evaluation.classification:Classification",
    "knn": "cone_jax.evaluation.probes.evaluators:Knn",
    "linear": "cone_jax.evaluation.probes.evaluators:Linear",
    "long_tail": "cone_jax.evaluation.long_tail:LongTail",
    "robustness": "cone_jax.evaluation.robustness:Robustness",
    "real": "cone_jax.evaluation.real_labels:Real",
    "detection": "cone_jax.evaluation.detection:DetectionEvaluator",
}
KINDS: Registry[type[Evaluator]] = Registry(
    "evaluator",
    "cone_jax.evaluators",
    _OWN,
    form="a subclass of cone_jax.evaluation.registry.Evaluator",
    accepts=lambda thing: isinstance(thing, type) and issubclass(thing, Evaluator),
)


def parse(specs: Iterable[str]) -> tuple[Evaluator, ...]:
    """The evaluators that a config's list describes.

    >>> [evaluator.prefix for evaluator in parse(("classification(network='key')",))]
    ['test_key']
    """
    if isinstance(specs, str):
        raise UserError(f"evaluation.evaluators must be a list of strings, not {specs!r}")
    evaluators = tuple(_evaluator(spec) for spec in specs)
    prefixes = [evaluator.prefix for evaluator in evaluators]
    for prefix in prefixes:
        if prefixes.count(prefix) > 1:
            raise UserError(
                f"evaluation.evaluators has two called {prefix!r}; give one another name='...'"
            )
    return evaluators


def declared_metrics(config: ConfigDict) -> dict[str, Metric]:
    """The metrics that the evaluators of a config measure, by full names."""
    evaluators = parse(config.evaluation.evaluators)
    return {name: metric for each in evaluators for name, metric in each.declared().items()}


def lower_is_better(config: ConfigDict) -> bool:
    """Whether lower values of ``checkpoint.best_metric`` are better."""
    metric = find_metric(declared_metrics(config), config.checkpoint.best_metric)
    return metric.better == "lower"


def fits(evaluator: Evaluator, needs: Needs, *, averaged: bool) -> bool:
    """Whether a stage has what an evaluator needs: its classifier, its network."""
    if evaluator.labels != needs.labels or (evaluator.needs_classifier and not needs.classifier):
        return False
    return {"key": needs.key, "averaged": averaged}.get(evaluator.network, True)


def check(config: ConfigDict, stages: Iterable[tuple[Needs, bool]]) -> None:
    """Refuses evaluators that no stage can run, and a best metric that none of them measures.

    `stages` says of each stage what its objective needs, and whether it has an averaged model.
    """
    evaluators = parse(config.evaluation.evaluators)
    stages = tuple(stages)
    for spec, evaluator in zip(config.evaluation.evaluators, evaluators, strict=True):
        if not any(fits(evaluator, needs, averaged=averaged) for needs, averaged in stages):
            if all(evaluator.labels != needs.labels for needs, _ in stages):
                raise UserError(
                    f"evaluation.evaluators ({spec}) cannot evaluate {config.objective.name}; "
                    f"{_cure(stages[0][0])}"
                )
            cure = "set average.decay" if evaluator.network == "averaged" else "leave network out"
            raise UserError(
                f"evaluation.evaluators ({spec}): {config.objective.name} has no "
                f"{evaluator.network} network to evaluate; {cure}"
            )
    metric = config.checkpoint.best_metric
    known = declared_metrics(config)
    if metric and metric not in known:
        cure = closest(metric, known) if known else 'set it to ""'
        raise UserError(
            f"checkpoint.best_metric ({metric!r}) is not measured by any of "
            f"evaluation.evaluators; {cure}"
        )


def _cure(needs: Needs) -> str:
    suitable = [name for name in _OWN if KINDS[name].labels == needs.labels]
    return f"choose among {', '.join(suitable)}"


def _evaluator(spec: str) -> Evaluator:
    return spec_strings.build(
        spec,
        KINDS,
        where=f"evaluation.evaluators ({spec})",
        noun="evaluator",
        example="knn(k=20, every_epochs=5)",
    )
