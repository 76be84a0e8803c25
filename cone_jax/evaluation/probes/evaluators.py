"""The evaluators ``knn`` and ``linear``: probes of the frozen features, while training or after.

The training split is seen as test pictures are, without augmentation.
"""

import abc
import dataclasses
from typing import Any, ClassVar

from cone_jax.console import Metric, Report
from cone_jax.evaluation.accuracy import RANKED_METRICS
from cone_jax.evaluation.probes import knn, linear
from cone_jax.evaluation.probes.extraction import SPACES, Labelled, extract
from cone_jax.evaluation.registry import EvaluatedRun, Evaluator, Outcome, Variables


@dataclasses.dataclass(frozen=True)
class _Probe(Evaluator):
    """What both have in common."""

    metrics: ClassVar[tuple[Metric, ...]] = RANKED_METRICS
    needs_classifier: ClassVar[bool] = False

    space: str = dataclasses.field(default="features", kw_only=True)  # or embedding, the head's

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space not in SPACES:
            raise ValueError(f"space must be one of {', '.join(SPACES)}, not {self.space!r}")

    @property
    def _suffix(self) -> str:
        return "" if self.space == "features" else f"_{self.space}"

    def evaluate(self, run: EvaluatedRun, variables: Variables, report: Report) -> Outcome:
        train, test = (
            extract(run.learner, variables, run.eval_stream(source, report)).labelled(self.space)
            for source in (run.dataset.train, run.dataset.test)
        )
        scores = self._scores(train, test, num_classes=run.dataset.num_classes, mesh=run.mesh)
        return Outcome(
            {metric: scores[name] for name in scores if (metric := name.partition("/")[2]) != "l2"}
        )

    @abc.abstractmethod
    def _scores(self, *sets: Labelled, **common: Any) -> dict[str, float]:
        """The probe's results, by names such as ``knn20/top1``."""


@dataclasses.dataclass(frozen=True)
class Knn(_Probe):
    """Weighted votes of the k nearest training examples."""

    k: int = 20
    temperature: float = knn.TEMPERATURE

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.k, int) and self.k >= 1):
            raise ValueError(f"k must be a whole number of at least 1, not {self.k!r}")
        if not (isinstance(self.temperature, int | float) and self.temperature > 0):
            raise ValueError(f"temperature must be a positive number, not {self.temperature!r}")

    @property
    def default_name(self) -> str:
        return f"knn{self.k}{self._suffix}"

    def _scores(self, *sets: Labelled, **common: Any) -> dict[str, float]:
        return knn.knn_scores(*sets, ks=(self.k,), temperature=self.temperature, **common)


@dataclasses.dataclass(frozen=True)
class Linear(_Probe):
    """Logistic regression; `l2` 0 chooses its strength on a part of the training split."""

    l2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.l2, int | float) and self.l2 >= 0):
            raise ValueError(f"l2 must be a number of at least 0, not {self.l2!r}")

    @property
    def default_name(self) -> str:
        return f"linear{self._suffix}"

    def _scores(self, *sets: Labelled, **common: Any) -> dict[str, float]:
        grid = (self.l2,) if self.l2 else linear.L2_GRID
        return linear.linear_scores(*sets, l2_grid=grid, **common)
