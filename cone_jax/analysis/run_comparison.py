"""Several runs side by side: a table and overlaid curves, mean and deviation over seeds.

Runs whose configs differ in nothing but the seed are one group. `write` leaves a page, the tables
and the curves as figures.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import special

from cone_jax import models, storage, workdir
from cone_jax.analysis import figure_style, figures, page, training_curves
from cone_jax.analysis.config_fields import computed_fields, distinguishing_names
from cone_jax.analysis.figures import Line
from cone_jax.analysis.snapshot import pictures_tested
from cone_jax.analysis.tables import csv_table, markdown_table
from cone_jax.console import HEADLINES, Chart, Metric, find_metric
from cone_jax.errors import UserError
from cone_jax.evaluation.accuracy import SPLIT_ACCURACIES, interval_text
from cone_jax.training.run_directory import RunDirectory, network_of

# What a table shows of each group, where it was recorded.
COLUMNS = (*HEADLINES, "test/ece", "time/seconds")
# What the verdict on a difference is about: the first of them that both recorded.
JUDGED = "test/top1"


class Group(NamedTuple):
    """Runs of one config with different seeds."""

    name: str
    runs: Sequence[RunDirectory]


class Summary(NamedTuple):
    """A metric at the end of the runs of a group."""

    values: tuple[float, ...]
    mean: float
    deviation: float | None  # of the sample; None for one run


def group_runs(runs: Sequence[RunDirectory]) -> list[Group]:
    """Groups in the order of their first run, named after the fields in which they differ."""
    groups: list[tuple[dict, list[RunDirectory]]] = []
    for run in runs:
        fields = computed_fields(run.config)
        for known, members in groups:
            if known == fields:
                members.append(run)
                break
        else:
            groups.append((fields, [run]))
    leaders = [members[0] for _, members in groups]
    names = distinguishing_names([run.config for run in leaders])
    if names is None:
        names = [run.name for run in leaders]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in leaders]
    return [Group(name, members) for name, (_, members) in zip(names, groups, strict=True)]


def summarise(group: Group, metric: str) -> Summary | None:
    """The last value of a metric over the runs that recorded it."""
    last = (run.last(metric) for run in group.runs)
    values = tuple(value for value in last if value is not None)
    if not values:
        return None
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(values, float(np.mean(values)), deviation)


def mean_line(group: Group, metric: str, factor: float = 1.0) -> Line | None:
    """A metric over training: the mean of the group's runs at the steps that all of them have."""
    series = [run.series(metric) for run in group.runs]
    series = [each for each in series if each.steps.size]
    if not series:
        return None
    # A step may have been recorded twice, by training and by an evaluation: the later one counts.
    tables = [dict(zip(each.steps.tolist(), each.values, strict=True)) for each in series]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    if not steps:
        return None
    values = factor * np.array([[table[step] for step in steps] for table in tables])
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Line(group.name, np.array(steps), values.mean(axis=0), deviation)


def table(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows for a person to read."""
    declared = _declared(groups)
    names = [name for name in COLUMNS if any(summarise(group, name) for group in groups)]
    columns = [(name, find_metric(declared, name)) for name in names]
    labels = [metric.label_of(name) for name, metric in columns]
    header = ["run", "seeds", *labels, "parameters"]
    rows = [
        [
            group.name,
            str(len(group.runs)),
            *(_cell(group, name, metric) for name, metric in columns),
            _parameters(group.runs[0]),
        ]
        for group in groups
    ]
    return header, rows


def _parameters(run: RunDirectory) -> str:
    """The parameters of the trained network with its heads; unknown if the classes are."""
    names = workdir.class_names(run.path)
    if names is None:
        return "–"
    try:
        encoder = network_of(run.config, len(names))
    except UserError:  # a network of somebody who is not here
        return "–"
    return f"{models.parameters(encoder, run.config.data.image_size):,}"


class Verdict(NamedTuple):
    """The difference of a group from the first one, over the seeds that both have."""

    seeds: int
    mean: float
    half: float | None  # of the 95 % interval; None for one seed


def verdict(first: Group, other: Group, metric: str) -> Verdict | None:
    """The paired difference; None if the groups share no seed."""
    by_seed = [
        {run.config.seed: value for run in group.runs if (value := run.last(metric)) is not None}
        for group in (first, other)
    ]
    shared = sorted(by_seed[0].keys() & by_seed[1].keys())
    if not shared:
        return None
    difference = np.array([by_seed[1][seed] - by_seed[0][seed] for seed in shared])
    count, half = len(shared), None
    if count > 1:
        error = difference.std(ddof=1) / np.sqrt(count)
        half = float(special.stdtrit(count - 1, 0.975) * error)
    return Verdict(count, float(difference.mean()), half)


def verdicts(groups: Sequence[Group]) -> list[str]:
    """A sentence on each group beside the first: whether it differs by more than noise."""
    said = []
    for other in groups[1:]:
        found = verdict(groups[0], other, JUDGED)
        between = f"{other.name} against {groups[0].name}"
        if found is None:
            said.append(f"{between}: no seed in common, so nothing can be paired.")
            continue
        points = f"{100 * found.mean:+.2f} points of {JUDGED}"
        if found.half is None:
            said.append(
                f"{between}: {points}, a single seed, which cannot show whether that is more than "
                "noise; repeat both with --config.seed=1 and 2."
            )
            continue
        if found.half < 1e-9 and found.mean:  # but for rounding, none
            said.append(
                f"{between}: {points}, the same in all of {found.seeds} paired seeds, as a small "
                "test set may give by chance; more seeds will show whether it is more than noise."
            )
            continue
        low, high = (100 * (found.mean + sign * found.half) for sign in (-1, 1))
        clear = low > 0 or high < 0
        said.append(
            f"{between}: {points} over {found.seeds} paired seeds, 95% interval {low:+.2f} to "
            f"{high:+.2f}: {'more than' if clear else 'within'} noise."
        )
    return said


def _declared(groups: Sequence[Group]) -> dict[str, Metric]:
    runs = [run for group in groups for run in group.runs]
    return {name: metric for run in runs for name, metric in run.declared_metrics.items()}


def _cell(group: Group, name: str, metric: Metric) -> str:
    """A value with its deviation over seeds or, for a single accuracy, its interval."""
    summary = summarise(group, name)
    if summary is None:
        return "–"
    mean = metric.text(summary.mean)
    if summary.deviation is not None:
        return f"{mean} ± {metric.text(summary.deviation)}"
    tested = _tested(group, name) if name in SPLIT_ACCURACIES else None
    return f"{mean} ({interval_text(summary.mean, tested)})" if tested else mean


def _tested(group: Group, name: str) -> int | None:
    """The number of pictures that a metric was measured on, if the run's snapshot has it."""
    for run in group.runs:
        series = run.series(name)
        if series.steps.size:
            return pictures_tested(run.path, int(series.steps[-1]))
    return None


def long_csv(groups: Sequence[Group]) -> str:
    """Every metric of every group at the end of training, one per row, as a program reads it."""
    rows = []
    for group in groups:
        names = dict.fromkeys(name for run in group.runs for name in run.metric_names())
        for name in names:
            summary = summarise(group, name)
            if summary is not None:
                deviation = "" if summary.deviation is None else summary.deviation
                values = " ".join(map(str, summary.values))
                rows.append(
                    (group.name, name, len(summary.values), summary.mean, deviation, values)
                )
    return csv_table(("run", "metric", "seeds", "mean", "deviation", "values"), rows)


class Overlay(NamedTuple):
    """One metric of all groups that recorded it. A group looks the same in every overlay."""

    metric: str
    title: str
    chart: Chart
    lines: Sequence[Line]


def overlays(groups: Sequence[Group]) -> list[Overlay]:
    """An overlay for each metric."""
    names = dict.fromkeys(n for group in groups for run in group.runs for n in run.metric_names())
    found, declared = [], _declared(groups)
    for chart, metrics in training_curves.charts_of(list(names), declared):
        for metric in metrics:
            lines = []
            for look, group in enumerate(groups):
                line = mean_line(group, metric, chart.factor)
                if line is not None:
                    lines.append(line._replace(look=look))
            own = f": {training_curves.label(metric, declared)}" if len(metrics) > 1 else ""
            if lines:
                found.append(Overlay(metric, chart.title + own, chart, lines))
    return found


def write(runs: Sequence[RunDirectory], directory: Path) -> Path:
    """Writes ``comparison.{html,md,csv}`` and the curves as PNG and SVG; returns the page."""
    groups = group_runs(runs)
    header, rows = table(groups)
    directory.mkdir(parents=True, exist_ok=True)
    charts = []
    for overlay in overlays(groups):
        key, chart = figure_style.file_name(overlay.metric.replace("/", "_")), overlay.chart
        figure = figures.curves(overlay.lines, y_label=chart.y_label)
        figure_style.save(figure, directory / "figures" / key)
        charts.append(page.chart(figure, key, overlay.title))
    note = (
        "Bands and ± are one standard deviation over seeds. Each value is the last one recorded. "
        "The interval after a single run's accuracy is its 95% interval for so many test pictures."
    )
    sections = [
        page.Section("table", "Table", page.table(header, rows, numbers=range(1, len(header)))),
        page.Section("curves", "Curves", page.grid(charts)),
    ]
    said = verdicts(groups)
    opening = page.join(
        [
            page.paragraph(f"{len(runs)} runs in {len(groups)} groups. {note}"),
            *(page.paragraph(line, quiet=False) for line in said),
        ]
    )
    text = page.page("Comparison", "cone_jax", opening, sections)
    files = {
        "comparison.html": text,
        "comparison.md": "\n\n".join([markdown_table(header, rows), *said, note]) + "\n",
        "comparison.csv": long_csv(groups),
    }
    for name, content in files.items():
        with storage.replacing(directory / name) as unfinished:
            unfinished.write_text(content, encoding="utf-8")
    return directory / "comparison.html"
