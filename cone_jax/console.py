"""Results as a person wants to read them, on the terminal."""

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

# Metrics, by the last part of their names, that are fractions; top1 and the like are too.
_SHARES = ("mean_per_class", "ece", "error", "clean_error")
_HEADINGS = {"test/top1": "test top-1", "test/top5": "test top-5", "test/loss": "test loss"}


def program() -> tuple[str, ...]:
    """The words that start this program, as the user wrote them."""
    name = Path(sys.argv[0]).name
    return {"cone": ("cone",), "main.py": ("python", "main.py")}.get(
        name, ("python", "-m", "cone_jax")
    )


def plain_lines(console: Console) -> Callable[[str], None]:
    """A function that prints lines as they are: no markup, no colours, none broken in two."""
    return lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False)


def print_training(
    console: Console, metrics: Mapping[str, float], seconds: float, directory: Path
) -> None:
    """The end of training: what came out, where it is, what to do next."""
    say = plain_lines(console)
    say(f"finished at step {metrics['step']:,}")
    table = _table()
    others = [name for name in metrics if not name.startswith(("step", "train/", "test/"))]
    for name in ("test/top1", "test/top5", "test/loss", *others):
        if name in metrics:
            table.add_row(_HEADINGS.get(name, name), score_text(name, metrics[name]))
    table.add_row("time", duration(seconds))
    console.print(table)
    command = shlex.join(program())
    lines = (
        ("look at it", f"{directory}/report.html"),
        ("numbers", f"{directory}/metrics.jsonl"),
        ("checkpoints", f"{directory}/checkpoints"),
        ("score the best one", f"{command} --mode=evaluate --workdir={directory} --step=best"),
        ("see the curves", f"tensorboard --logdir={directory}"),
        ("classify pictures", f"{command} --mode=predict --workdir={directory} --images=..."),
    )
    for name, text in lines:
        say(f"  {name:<20} {text}")


def print_evaluation(
    console: Console, title: str, scores: Mapping[str, float], remarks: Mapping[str, str]
) -> None:
    """What evaluators found, and remarks on it."""
    plain_lines(console)(title)
    table = _table()
    for name, score in scores.items():
        table.add_row(name, score_text(name, score))
    table.add_section()
    for name, text in remarks.items():
        table.add_row(name, text)
    console.print(table)


def score_text(name: str, score: float) -> str:
    """A score as a person reads it: accuracies and errors in per cent.

    >>> score_text("test/top1", 0.98125), score_text("test/loss", 0.98125)
    ('98.12%', '0.9812')
    """
    metric = name.rpartition("/")[2]
    is_share = metric.startswith("top") or metric in _SHARES
    return f"{score:.2%}" if is_share else f"{score:.4f}"


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
