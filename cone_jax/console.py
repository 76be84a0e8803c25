"""Results in readable form: metrics with their units, and summaries on the terminal.

A metric is declared once, as a `Metric` beside what computes it: an evaluator, an objective, the
training step. Tables, charts and the choice of the best checkpoint follow from the declaration.
"""

import dataclasses
import resource
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table

# Takes a line about what is going on, for a person to read.
Report = Callable[[str], object]

# The metrics that matter most, wherever only a few are shown.
HEADLINES = ("test/top1", "test/top5", "test/loss", "test/box_ap", "test/mask_ap")


def program() -> tuple[str, ...]:
    """The words that start this program, as the user wrote them."""
    name = Path(sys.argv[0]).name
    return {"cone": ("cone",), "main.py": ("python", "main.py")}.get(
        name, ("python", "-m", "cone_jax")
    )


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart for all metrics that declare it."""

    key: str  # a word for ids and file names
    title: str
    y_label: str
    note: str = ""  # how to read it
    factor: float = 1.0  # from the metric to the unit of the chart
    digits: int = 4  # of the last value, in the caption


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number that a run records under ``<prefix>/<name>``, such as ``test/top1``.

    >>> top1 = Metric("top1", unit="share", label="{} top-1")
    >>> top1.text(0.98125), top1.label_of("test/top1")
    ('98.12%', 'test top-1')
    """

    name: str  # one that ends in * stands for all that begin so
    better: Literal["higher", "lower"] = "higher"
    unit: Literal["number", "share", "seconds"] = "number"
    chart: Chart | None = None  # None: one of its own
    label: str = ""  # in legends and headings, {} being the prefix; "": from the name
    drawn: bool = True  # whether it says anything over the course of training

    def text(self, value: float) -> str:
        """A value as a person reads it: shares in per cent."""
        return {"share": "{:.2%}", "seconds": "{:,.0f}"}.get(self.unit, "{:.4f}").format(value)

    def label_of(self, name: str) -> str:
        """What the metric with this full name is called in a legend or a heading."""
        prefix, _, own = name.rpartition("/")
        return self.label.format(prefix) or own.removeprefix("loss_").replace("_", " ")


def find_metric(declared: Mapping[str, Metric], name: str) -> Metric:
    """The declaration of the metric with this full name; a plain number if there is none."""
    if name in declared:
        return declared[name]
    stems = (stem for stem in declared if stem.endswith("*") and name.startswith(stem[:-1]))
    return declared[stem] if (stem := next(stems, None)) else Metric(name.rpartition("/")[2])


def readable(size: float) -> str:
    """Bytes with a unit.

    >>> readable(512), readable(3 * 2**20), readable(1.5 * 2**30)
    ('512 B', '3.0 MiB', '1.5 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def peak_memory() -> int:
    """The most bytes of memory that this process has taken so far."""
    try:  # Linux's ru_maxrss may be that of the program which started this one
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def plain_lines(console: Console) -> Report:
    """A function that prints lines as they are: no markup, no colours, no wrapping."""
    return lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False)


def print_training(
    console: Console,
    metrics: Mapping[str, float],
    declared: Mapping[str, Metric],
    seconds: float,
    directory: Path,
    use: str = "classify pictures",
    sure: Mapping[str, str] | None = None,
) -> None:
    """Prints the end of training: the results, where they are, what to do next.

    `sure` has the intervals of metrics that have one.
    """
    say = plain_lines(console)
    say(f"finished at step {metrics['step']:,}")
    table = _table()
    others = [name for name in metrics if not name.startswith(("step", "train/", "test/"))]
    for name in (*HEADLINES, *others):
        if name in metrics:
            metric = find_metric(declared, name)
            heading = metric.label_of(name) if name in HEADLINES else name
            interval = f" ({sure[name]})" if sure and name in sure else ""
            table.add_row(heading, f"{metric.text(metrics[name])}{interval}")
    table.add_row("time", duration(seconds))
    table.add_row("memory", readable(peak_memory()))
    console.print(table)
    here = f"--workdir={directory}"
    lines = (
        ("look at it", f"{directory}/report.html"),
        ("numbers", f"{directory}/metrics.jsonl"),
        ("checkpoints", f"{directory}/checkpoints"),
        ("evaluate the best", shlex.join([*program(), "--mode=evaluate", here, "--step=best"])),
        ("see the curves", shlex.join(["tensorboard", f"--logdir={directory}"])),
        (use, shlex.join([*program(), "--mode=predict", here, "--images=..."])),
    )
    for name, text in lines:
        say(f"  {name:<20} {text}")


def print_evaluation(
    console: Console,
    title: str,
    scores: Mapping[str, float],
    declared: Mapping[str, Metric],
    remarks: Mapping[str, str],
) -> None:
    """Prints what evaluators measured, and remarks on it."""
    plain_lines(console)(title)
    table = _table()
    for name, score in scores.items():
        table.add_row(name, find_metric(declared, name).text(score))
    table.add_section()
    for name, text in remarks.items():
        table.add_row(name, text)
    console.print(table)


def _table() -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    return table


def duration(seconds: float) -> str:
    """A length of time in its two largest units.

    >>> duration(27), duration(75), duration(7260)
    ('27 s', '1 min 15 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
