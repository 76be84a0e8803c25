"""The evaluator ``long_tail``: accuracy of classes with many, some and few training pictures.

Every class counts the same within its group (Liu et al., 2019): many is more than 100 training
pictures, few is fewer than 20.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from cone_jax.console import Metric, Report
from cone_jax.data import datasets
from cone_jax.evaluation import accuracy
from cone_jax.evaluation.registry import EvaluatedRun, Evaluator, Outcome, Variables

MANY, FEW = 100, 20
GROUPS = ("many", "medium", "few")


@dataclasses.dataclass(frozen=True)
class LongTail(Evaluator):
    """Mean accuracy of the test pictures' classes, by how many training pictures they have."""

    many: int = MANY  # a class with more than so many training pictures
    few: int = FEW  # a class with fewer

    metrics: ClassVar[tuple[Metric, ...]] = tuple(
        Metric(name, unit="share", chart=accuracy.ACCURACY_CHART, label=f"{{}} {name}")
        for name in (*GROUPS, "all")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.few <= self.many:
            raise ValueError(f"few ({self.few}) must be positive and at most many ({self.many})")

    @property
    def default_name(self) -> str:
        return "long_tail"

    def evaluate(self, run: EvaluatedRun, variables: Variables, report: Report) -> Outcome:
        batches = run.eval_stream(run.dataset.test, report)
        examples = accuracy.examine(run.learner, variables, batches)
        result = accuracy.summarise(examples, run.dataset.num_classes)
        counts = datasets.class_counts(run.dataset.train)
        return Outcome(group_means(np.array(result.per_class), counts, self.many, self.few))


def group_means(
    per_class: np.ndarray, counts: np.ndarray, many: int = MANY, few: int = FEW
) -> dict[str, float]:
    """The mean accuracy of each group of classes; NaN for one without test pictures.

    >>> group_means(np.array([1.0, 0.5, 0.25, 0.75]), np.array([101, 100, 19, 5]))
    {'many': 1.0, 'medium': 0.5, 'few': 0.5, 'all': 0.625}
    """
    tested = ~np.isnan(per_class)
    chosen = {
        "many": counts > many,
        "medium": (counts <= many) & (counts >= few),
        "few": counts < few,
        "all": np.ones(len(counts), bool),
    }
    return {
        name: float(per_class[rows & tested].mean()) if np.any(rows & tested) else float("nan")
        for name, rows in chosen.items()
    }
