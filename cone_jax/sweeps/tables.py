"""A sweep's table, filled with runs: CSV, Markdown and heat map, with the paper's values."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from cone_jax import storage
from cone_jax.analysis import figure_style, figures
from cone_jax.analysis.figures import Matrix
from cone_jax.analysis.tables import csv_table, markdown_table, one_decimal
from cone_jax.console import Report
from cone_jax.sweeps import runner
from cone_jax.sweeps.definition import Cell, Sweep
from cone_jax.sweeps.runner import CellRun, result


class Entry(NamedTuple):
    """What is known of one cell."""

    cell: Cell
    values: tuple[float, ...]  # of the finished runs, in the table's unit

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    @property
    def deviation(self) -> float | None:
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


def fill(
    sweep: Sweep,
    runs: Sequence[CellRun],
    directory: Path,
    *,
    jobs: int,
    say: Report,
    to_run: Sequence[CellRun] | None = None,
) -> list[str]:
    """Carries out `to_run` (all `runs` by default), prints the table; a line for each failure."""

    def write_table() -> None:
        write(sweep, entries(sweep, runs), directory)

    say(f"{sweep.title}: {len(runs)} runs in {directory}, {jobs} at a time")
    wanted = runs if to_run is None else to_run
    failures = runner.carry_out(wanted, jobs=jobs, say=say, finished=write_table)
    write_table()
    say((directory / "table.md").read_text())
    say(f"written: {directory}/table.md, .csv, .png, .svg")
    return failures


def entries(sweep: Sweep, runs: Sequence[CellRun]) -> list[Entry]:
    """The cells of a sweep with what has been measured so far."""
    found = []
    for cell in sweep.cells:
        finished = [result(run) for run in runs if run.cell is cell]
        values = tuple(
            metrics[sweep.metric] * sweep.factor for metrics in finished if metrics is not None
        )
        found.append(Entry(cell, values))
    if sweep.mean_row:
        means = tuple(entry.mean for entry in found if entry.mean is not None)
        found.append(Entry(Cell(sweep.mean_row), means))
    return found


def write(sweep: Sweep, measured: Sequence[Entry], directory: Path) -> list[Path]:
    """Writes ``table.csv``, ``table.md``, ``table.png`` and ``table.svg``."""
    texts = {"table.csv": as_csv(sweep, measured), "table.md": as_markdown(sweep, measured)}
    for name, text in texts.items():
        with storage.replacing(directory / name) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    paths = [directory / name for name in texts]
    if any(entry.values for entry in measured):
        paths += figure_style.save(heat_map(sweep, measured), directory / "table")
    return paths


def as_csv(sweep: Sweep, measured: Sequence[Entry]) -> str:
    """One row per cell."""
    row_name, column_name = sweep.row_name, sweep.column_name or "column"
    rows = []
    for entry in measured:
        cell = entry.cell
        numbers = (entry.mean, entry.deviation, cell.paper)
        shown = ("" if number is None else number for number in numbers)
        rows.append((cell.row, cell.column, sweep.unit, len(entry.values), *shown))
    return csv_table((row_name, column_name, "unit", "runs", "mean", "deviation", "paper"), rows)


def as_markdown(sweep: Sweep, measured: Sequence[Entry]) -> str:
    """The table as the paper prints it: our value, and the paper's in brackets."""
    lines = [f"# {sweep.title}", "", f"Numbers are {sweep.unit}.{_paper_note(sweep)}", ""]
    if sweep.column_name:
        columns = _order(entry.cell.column for entry in measured)
        header = [f"{sweep.row_name} \\ {sweep.column_name}", *columns]
        by_place = {(e.cell.row, e.cell.column): e for e in measured}
        rows = [
            [row, *(_both(by_place.get((row, column))) for column in columns)]
            for row in _order(entry.cell.row for entry in measured)
        ]
    else:
        has_paper = any(e.cell.paper is not None for e in measured)
        header = [sweep.row_name, "here", *(["paper"] if has_paper else [])]
        rows = [
            [e.cell.row, _ours(e), *([one_decimal(e.cell.paper)] if has_paper else [])]
            for e in measured
        ]
    return "\n".join([*lines, markdown_table(header, rows), ""])


def heat_map(sweep: Sweep, measured: Sequence[Entry]) -> Figure:
    """Our values, and the paper's beside them where it has any."""
    rows = _order(entry.cell.row for entry in measured)
    columns = _order(entry.cell.column for entry in measured)
    ours, theirs = (np.full((len(rows), len(columns)), np.nan) for _ in range(2))
    for entry in measured:
        place = rows.index(entry.cell.row), columns.index(entry.cell.column)
        ours[place] = np.nan if entry.mean is None else entry.mean
        theirs[place] = np.nan if entry.cell.paper is None else entry.cell.paper
    labels = (rows, columns, sweep.row_name, sweep.column_name)
    panels = [Matrix("here", ours, *labels)]
    if np.isfinite(theirs).any():
        panels.append(Matrix("paper", theirs, *labels))
    title = f"{sweep.title}: {sweep.unit}"
    return figures.matrices(panels, number="{:.1f}", colour_label=sweep.unit, title=title)


def _order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _paper_note(sweep: Sweep) -> str:
    setting = sweep.paper_setting
    where = " in brackets" if sweep.column_name else ""
    return f" The paper's{where}: {setting}." if setting else ""


def _both(entry: Entry | None) -> str:
    if entry is None:
        return ""
    paper = "" if entry.cell.paper is None else f" ({one_decimal(entry.cell.paper)})"
    return f"{_ours(entry)}{paper}"


def _ours(entry: Entry) -> str:
    if entry.mean is None:
        return "–"
    spread = "" if entry.deviation is None else f" ± {entry.deviation:.2f}"
    return f"{entry.mean:.2f}{spread}"
