"""The charts of recorded metrics, and which metrics share one.

What a metric is called and which chart it belongs to is declared beside what computes it. Every
metric of a run is in a chart: one that is not declared gets a chart of its own.
"""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from cone_jax.analysis import figures
from cone_jax.analysis.figures import Line
from cone_jax.console import Chart, Metric, find_metric
from cone_jax.training.run_directory import RunDirectory


def charts_of(
    names: Sequence[str], declared: Mapping[str, Metric]
) -> list[tuple[Chart, list[str]]]:
    """The charts for the metrics `names`, each with those it shows; declared ones come first."""
    order = {chart: place for place, chart in enumerate(_charts(declared))}
    charts: dict[Chart, list[str]] = {}
    for name in names:
        metric = find_metric(declared, name)
        if metric.drawn:
            charts.setdefault(metric.chart or _own_chart(name), []).append(name)
    return sorted(charts.items(), key=lambda item: order.get(item[0], len(order)))


def label(name: str, declared: Mapping[str, Metric]) -> str:
    """The name of a metric in a legend.

    >>> label("train/gradient_norm", {})
    'gradient norm'
    """
    return find_metric(declared, name).label_of(name)


def draw(run: RunDirectory, chart: Chart, names: Sequence[str]) -> Figure:
    """One chart of one run."""
    lines = []
    for name in names:
        series, called = run.series(name), label(name, run.declared_metrics)
        lines.append(Line(called, series.steps, series.values * chart.factor))
    return figures.curves(lines, y_label=chart.y_label)


def _charts(declared: Mapping[str, Metric]) -> dict[Chart, None]:
    return dict.fromkeys(metric.chart for metric in declared.values() if metric.chart is not None)


def _own_chart(name: str) -> Chart:
    title = name.split("/", 1)[-1].replace("_", " ")
    return Chart(name.replace("/", "_"), title.capitalize(), title)
