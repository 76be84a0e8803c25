"""Exact accuracy: every example counts once, whatever the batch size or the device count.

The devices give a few numbers for each example. All metrics are computed from these in float64 on
the host.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cone_jax import losses
from cone_jax.console import Chart, Metric
from cone_jax.evaluation.inference import Network, infer
from cone_jax.models import EncoderOutput

# Of the test split, by full names: shares of its pictures, which have a Wilson interval.
SPLIT_ACCURACIES = ("test/top1", "test/top5")
RANKS = 5  # how many of the most probable classes count for top-5
BINS = 15  # of the calibration error

ACCURACY_CHART = Chart(
    "accuracy",
    "Accuracy",
    "accuracy, %",
    "Test pictures are never trained on; train accuracy is that of augmented pictures.",
    factor=100.0,
)
# What `summarise` finds, beside the accuracy of each class.
METRICS = (
    Metric("top1", unit="share", chart=ACCURACY_CHART, label="{} top-1"),
    Metric("top5", unit="share", chart=ACCURACY_CHART, label="{} top-5"),
    Metric(
        "loss",
        better="lower",
        chart=Chart("test_loss", "Test loss", "cross-entropy"),
        label="{} loss",
    ),
    Metric("mean_per_class", unit="share", chart=ACCURACY_CHART, label="{} mean per class"),
    Metric("ece", better="lower", unit="share"),
)
# What `ranked_accuracies` finds.
RANKED_METRICS = tuple(Metric(name, unit="share") for name in ("top1", "top5", "mean_per_class"))


class Examples(NamedTuple):
    """A network's results for each of n examples, in the order of their records."""

    records: np.ndarray  # [n] int
    labels: np.ndarray  # [n] int
    predictions: np.ndarray  # [n] int, the most probable class
    in_top5: np.ndarray  # [n] bool, whether the label is among the five most probable
    losses: np.ndarray  # [n], cross-entropy
    confidences: np.ndarray  # [n], the probability of the prediction
    ranked: np.ndarray | None = None  # [n, up to 5], the most probable classes, best first
    probabilities: np.ndarray | None = None  # [n, up to 5], theirs


@dataclasses.dataclass(frozen=True)
class ClassificationResult:
    """Accuracies are fractions."""

    top1: float
    top5: float  # top-C where there are fewer than five classes
    loss: float
    mean_per_class: float  # over the classes that have examples
    ece: float  # expected calibration error, 15 bins
    per_class: tuple[float, ...]  # NaN for a class without examples
    examples: int

    def scores(self) -> dict[str, float]:
        """The numbers for a metrics file."""
        return {metric.name: getattr(self, metric.name) for metric in METRICS}


def examine(
    network: Network,
    variables: Mapping[str, Any],
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    classes: Iterable[int] | None = None,
) -> Examples:
    """Runs the network on host batches of ``image``, ``label``, ``id`` and ``mask``, in order.

    With `classes` it chooses among those only.
    """
    allowed = None
    if classes is not None:
        allowed = np.zeros(network.encoder.spec.num_classes, bool)
        allowed[list(classes)] = True
    return Examples(**infer(network, variables, batches, answers, allowed))


def answers(
    out: EncoderOutput, batch: dict[str, jax.Array], allowed: jax.Array | None
) -> dict[str, jax.Array]:
    """The columns of `Examples`."""
    logits, labels = out.logits, batch["label"]
    if allowed is not None:
        logits = jnp.where(allowed, logits, -jnp.inf)
    _, ranked = jax.lax.top_k(logits, min(RANKS, logits.shape[-1]))
    probabilities = jax.nn.softmax(logits)
    return {
        "records": batch["id"],
        "labels": labels,
        "predictions": ranked[:, 0],
        "in_top5": jnp.any(ranked == labels[:, None], axis=-1),
        "losses": losses.cross_entropy(logits, labels),
        "confidences": jnp.max(probabilities, axis=-1),
        "ranked": ranked,
        "probabilities": jnp.take_along_axis(probabilities, ranked, axis=-1),
    }


def summarise(examples: Examples, num_classes: int) -> ClassificationResult:
    """The metrics over all examples."""
    if not len(examples.labels):
        raise ValueError("nothing to evaluate: no example")
    correct = examples.predictions == examples.labels
    totals = np.bincount(examples.labels, minlength=num_classes)
    right = np.bincount(examples.labels[correct], minlength=num_classes)
    with np.errstate(invalid="ignore"):
        per_class = right / totals
    return ClassificationResult(
        top1=float(correct.mean()),
        top5=float(examples.in_top5.mean()),
        loss=float(examples.losses.mean(dtype=np.float64)),
        mean_per_class=float(per_class[totals > 0].mean()),
        ece=expected_calibration_error(examples.confidences, correct),
        per_class=tuple(per_class.tolist()),
        examples=len(correct),
    )


def wilson_interval(share: float, examples: int) -> tuple[float, float]:
    """The 95 % confidence interval of an accuracy, given so many examples (Wilson, 1927).

    >>> low, high = wilson_interval(0.9, 50)
    >>> round(low, 3), round(high, 3)
    (0.786, 0.957)
    """
    if not examples:
        return 0.0, 1.0
    z = 1.959963984540054
    spread = 1 + z**2 / examples
    centre = (share + z**2 / (2 * examples)) / spread
    half = z / spread * math.sqrt(share * (1 - share) / examples + z**2 / (4 * examples**2))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def interval_text(share: float, examples: int) -> str:
    """The interval as text.

    >>> interval_text(0.9, 50)
    '78.6 to 95.7%'
    """
    low, high = wilson_interval(share, examples)
    return f"{100 * low:.1f} to {100 * high:.1f}%"


def expected_calibration_error(
    confidences: np.ndarray, correct: np.ndarray, bins: int = BINS
) -> float:
    """The mean distance between confidence and accuracy, over bins of equal width.

    An example with confidence p is in the bin (b / bins, (b + 1) / bins] that p falls into; each
    bin counts by its number of examples (Guo et al., 2017).

    >>> confidences = np.array([0.9, 0.9, 0.9, 0.9])
    >>> round(expected_calibration_error(confidences, np.array([1, 1, 1, 0])), 4)
    0.15
    """
    confidence = confidences.astype(np.float64)
    # Against the edges as float32 has them, in which confidences come.
    edges = np.linspace(0.0, 1.0, bins + 1)[1:-1].astype(confidences.dtype)
    place = np.searchsorted(edges, confidences, side="left")
    gaps = np.bincount(place, confidence - correct.astype(np.float64), minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def ranked_accuracies(ranked: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Fractions from the most probable classes [n, up to 5] of each example, best first.

    The mean per class is over the classes that have examples.

    >>> ranked_accuracies(np.array([[0, 1], [1, 0], [1, 0]]), np.array([0, 0, 1]))
    {'top1': 0.6666666666666666, 'top5': 1.0, 'mean_per_class': 0.75}
    """
    hits = ranked == labels[:, None]
    per_class = [hits[labels == label, 0].mean() for label in np.unique(labels)]
    return {
        "top1": float(hits[:, 0].mean()),
        "top5": float(hits.any(axis=1).mean()),
        "mean_per_class": float(np.mean(per_class)),
    }
