"""The evaluator ``real``: ImageNet's validation pictures with all labels that people accept.

ReaL (Beyer et al., 2020) lists, for each picture, every class that is in it. A prediction is right
if it is one of them; pictures with none are left out.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from cone_jax.console import Metric, Report
from cone_jax.evaluation import accuracy, label_maps, other_sets
from cone_jax.evaluation.registry import EvaluatedRun, Evaluator, Outcome, Variables

ORIGINAL_LABEL, REAL_LABELS = "original_label", "real_label"


@dataclasses.dataclass(frozen=True)
class Real(Evaluator):
    """Accuracy on a TFDS set of ReaL's form."""

    data: str = "imagenet2012_real"

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("top1", unit="share"),)

    @property
    def default_name(self) -> str:
        return "real"

    def evaluate(self, run: EvaluatedRun, variables: Variables, report: Report) -> Outcome:
        own = other_sets.open_tfds(run, self.data, label_key=ORIGINAL_LABEL)
        source = label_maps.relabel(own, run.dataset.train, f"data ({self.data})")
        examples = accuracy.examine(run.learner, variables, run.eval_stream(source, report))
        right = []
        for record, prediction in zip(
            examples.records.tolist(), examples.predictions.tolist(), strict=True
        ):
            accepted = np.atleast_1d(own.feature(record, REAL_LABELS)).tolist()
            if accepted:
                right.append(prediction in [source.label_of[label] for label in accepted])
        return Outcome({"top1": float(np.mean(right)) if right else float("nan")})
