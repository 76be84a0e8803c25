"""Which recorded metrics belong in one chart, what they are called, and how to read them.

Every metric of a run is in a chart: those not named here get one of their own.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from cone_jax.analysis import figures
from cone_jax.analysis.figures import Line
from cone_jax.analysis.recorded_run import RecordedRun

LABELS = {
    "train/loss": "total",
    "train/loss_ce": "cross-entropy",
    "train/loss_sup_in": "L_sup_in",
    "train/loss_sup_out": "L_sup_out",
    "train/loss_dc": "L_dc",
    "train/top1": "train top-1",
    "test/top1": "test top-1",
    "test/top5": "test top-5",
    "test/mean_per_class": "test mean per class",
    "test/loss": "test",
    "train/m_p_times_tau": "positives, τ m_p",
    "train/m_n_times_tau": "negatives, τ m_n",
    "train/m_p": "positives, m_p",
    "train/m_n": "negatives, m_n",
}


class Chart(NamedTuple):
    """A chart of the metrics that match; a name that ends in ``*`` stands for all beginning so."""

    key: str  # a word for ids and file names
    title: str
    metrics: tuple[str, ...]
    y_label: str
    note: str = ""
    factor: float = 1.0
    digits: int = 4  # of the last value, in the caption


CHARTS = (
    Chart(
        "accuracy",
        "Accuracy",
        ("test/top1", "train/top1", "test/top5", "test/mean_per_class"),
        "accuracy, %",
        "Test pictures are never trained on; train accuracy is that of augmented pictures.",
        factor=100.0,
    ),
    Chart("loss", "Loss terms", ("train/loss", "train/loss_*"), "loss", "Before weighting."),
    Chart("test_loss", "Test loss", ("test/loss",), "cross-entropy"),
    Chart("learning_rate", "Learning rate", ("train/learning_rate",), "learning rate"),
    Chart(
        "momentum",
        "Momentum of the key network",
        ("train/ema_momentum",),
        "momentum m",
        "θ_key ← m θ_key + (1 − m) θ_query.",
        digits=6,
    ),
    Chart(
        "positives",
        "Positives among the neighbours",
        ("train/positives",),
        "positives a query",
    ),
    Chart(
        "purity",
        "Purity of the neighbours",
        ("train/purity", "train/without_positive"),
        "share, %",
        "The share of neighbours of the query's class, and of queries that have none.",
        factor=100.0,
    ),
    Chart(
        "masked",
        "Masked samples",
        ("train/masked_fraction",),
        "share, %",
        "So confident that the released code leaves them out of L_ce and L_dc.",
        factor=100.0,
    ),
    Chart(
        "log_sum_exp",
        "Log-sum-exp errors",
        ("train/m_p_times_tau", "train/m_n_times_tau"),
        "τ m",
        "What is lost in reading L_sup_in as a margin between the nearest positive and the "
        "nearest negative. The paper reports averages of 0.06 to 0.1 and 0.3 to 0.45; that its "
        "unit is τ m is our reading.",
    ),
    Chart("log_sum_exp_raw", "Log-sum-exp errors, raw", ("train/m_p", "train/m_n"), "m"),
    Chart("active", "Method switched on", ("train/active",), "share of steps, %", factor=100.0),
    Chart("gradient", "Gradient norm", ("train/gradient_norm",), "gradient norm"),
    Chart("speed", "Speed", ("time/images_per_second",), "images a second"),
)
_NOT_CURVES = ("time/seconds",)


def charts_of(names: Sequence[str]) -> Iterator[tuple[Chart, list[str]]]:
    """The charts for the metrics `names`, each with those it shows."""
    left = [name for name in names if name not in _NOT_CURVES]
    for chart in CHARTS:
        shown = [name for pattern in chart.metrics for name in left if _matches(pattern, name)]
        shown = list(dict.fromkeys(shown))
        if shown:
            yield chart, shown
        left = [name for name in left if name not in shown]
    for name in left:
        title = name.split("/", 1)[-1].replace("_", " ")
        yield Chart(name.replace("/", "_"), title.capitalize(), (name,), title), [name]


def label(name: str) -> str:
    """What a metric is called in a legend.

    >>> label("train/loss_dc"), label("train/gradient_norm")
    ('L_dc', 'gradient norm')
    """
    return LABELS.get(name, name.split("/", 1)[-1].removeprefix("loss_").replace("_", " "))


def draw(run: RecordedRun, chart: Chart, names: Sequence[str]) -> Figure:
    """One chart of one run."""
    lines = []
    for name in names:
        series = run.series(name)
        lines.append(Line(label(name), series.steps, series.values * chart.factor))
    return figures.curves(lines, y_label=chart.y_label)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
