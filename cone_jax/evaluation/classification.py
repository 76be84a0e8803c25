"""The evaluator ``classification``: accuracy, loss and calibration on labelled pictures."""

import dataclasses
import re
from pathlib import Path
from typing import ClassVar

import numpy as np
from ml_collections import ConfigDict

from cone_jax.console import Metric, Report
from cone_jax.data import datasets
from cone_jax.data.sources import Source
from cone_jax.evaluation import accuracy, label_maps, other_sets
from cone_jax.evaluation.accuracy import ClassificationResult, Examples
from cone_jax.evaluation.probes.extraction import Features, extract
from cone_jax.evaluation.registry import EvaluatedRun, Evaluator, Outcome, Variables


@dataclasses.dataclass(frozen=True)
class ClassificationOutcome(Outcome):
    """The network's results for every picture of `source`."""

    result: ClassificationResult
    examples: Examples
    source: Source
    class_names: tuple[str, ...]
    config: ConfigDict  # of the stage; it says how pictures are prepared
    # Of each example the training records most like it, nearest first; None: nobody has looked.
    nearest: np.ndarray | None = None
    train: Source | None = None


# Sets of only some of ImageNet's classes, among which a network is to choose. TFDS lists all.
_SOME_CLASSES = ("imagenet_a", "imagenet_r")


@dataclasses.dataclass(frozen=True)
class Classification(Evaluator):
    """Accuracy on the run's test split, another split, or another data set with its classes.

    `data` is a TFDS set such as ``imagenet_v2``, or a folder ``<class>/*``. With `among`
    ``present`` the network chooses among the classes that occur there, not all of its own.
    """

    split: str = ""  # "": data.test_split, or the part for testing of `data`
    data: str = ""  # "": the run's own
    among: str = ""  # all or present; "": present for ImageNet-A and -R

    metrics: ClassVar[tuple[Metric, ...]] = accuracy.METRICS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.among not in ("", "all", "present"):
            raise ValueError(f"among must be all or present, not {self.among!r}")

    @property
    def default_name(self) -> str:
        words = re.findall(r"\w+", f"{Path(self.data).name if self.data else ''} {self.split}")
        return "_".join(words) or "test"

    def evaluate(
        self, run: EvaluatedRun, variables: Variables, report: Report
    ) -> ClassificationOutcome:
        source = self._open(run)
        some = self.data.partition("/")[0].partition(":")[0] in _SOME_CLASSES
        restricted = self.among == "present" or (not self.among and some)
        classes = label_maps.present_labels(source) if restricted else None
        batches = run.eval_stream(source, report)
        examples = accuracy.examine(run.learner, variables, batches, classes=classes)
        result = accuracy.summarise(examples, run.dataset.num_classes)
        return ClassificationOutcome(
            scores=result.scores(),
            result=result,
            examples=examples,
            source=source,
            class_names=run.dataset.class_names,
            config=run.config,
        )

    def with_nearest(
        self,
        outcome: ClassificationOutcome,
        run: EvaluatedRun,
        variables: Variables,
        report: Report,
        count: int = 3,
    ) -> ClassificationOutcome:
        """The outcome with the training pictures whose features are nearest to each example's."""
        train = run.dataset.train
        known = _unit_rows(run, variables, train, report, readable_only=True)
        asked = _unit_rows(run, variables, outcome.source, report)
        place = {record: row for row, record in enumerate(asked.ids.tolist())}
        rows = asked.features[[place[record] for record in outcome.examples.records.tolist()]]
        found = [
            known.ids[np.argsort(-(known.features @ row), kind="stable")[:count]] for row in rows
        ]
        return dataclasses.replace(outcome, nearest=np.stack(found), train=train)

    def _open(self, run: EvaluatedRun) -> Source:
        if self.data:
            return other_sets.open_set(run, self.data, self.split)
        if self.split:
            return datasets.open_split(run.config.data, self.split)
        return run.dataset.test


def _unit_rows(
    run: EvaluatedRun,
    variables: Variables,
    source: Source,
    report: Report,
    *,
    readable_only: bool = False,
) -> Features:
    stream = run.eval_stream(source, report, readable_only=readable_only)
    found = extract(run.learner, variables, stream)
    length = np.linalg.norm(found.features, axis=1, keepdims=True)
    return found._replace(features=found.features / np.maximum(length, 1e-12))
