"""Results as a person wants to read them, on the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from cone_jax.evaluation.classification import ClassificationResult


def print_training(
    console: Console, metrics: Mapping[str, float], seconds: float, directory: Path
) -> None:
    """The end of training: what came out, where it is, what to do next."""
    console.print(f"finished at step {metrics['step']:,}")
    table = _table()
    table.add_row("test top-1", f"{metrics['test/top1']:.2%}")
    table.add_row("test top-5", f"{metrics['test/top5']:.2%}")
    table.add_row("test loss", f"{metrics['test/loss']:.4f}")
    table.add_row("time", duration(seconds))
    console.print(table)
    lines = (
        ("look at it", f"{directory}/report.html"),
        ("numbers", f"{directory}/metrics.jsonl"),
        ("checkpoints", f"{directory}/checkpoints"),
        ("score the best one", f"python main.py --mode=evaluate --workdir={directory} --step=best"),
        ("see the curves", f"tensorboard --logdir={directory}"),
        ("try the baseline", "python main.py --config=configs/digits.py:cross_entropy"),
    )
    for name, text in lines:
        console.print(f"  {name:<20} {text}", soft_wrap=True, markup=False)


def print_evaluation(
    console: Console,
    title: str,
    result: ClassificationResult,
    class_names: Sequence[str],
    most: int = 10,
) -> None:
    """Accuracies, and the classes that are hardest."""
    console.print(title, soft_wrap=True, markup=False)
    table = _table()
    table.add_row("examples", f"{result.examples:,}")
    table.add_row("top-1", f"{result.top1:.2%}")
    table.add_row("top-5", f"{result.top5:.2%}")
    table.add_row("mean per class", f"{result.mean_per_class:.2%}")
    table.add_row("loss", f"{result.loss:.4f}")
    table.add_section()
    scored = [
        (accuracy, name)
        for accuracy, name in zip(result.per_class, class_names, strict=True)
        if accuracy == accuracy  # NaN: no examples
    ]
    for accuracy, name in sorted(scored)[:most]:
        table.add_row(f"class {name}", f"{accuracy:.2%}")
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
