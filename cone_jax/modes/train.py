"""``--mode=train``: train a recipe, or go on with an interrupted run."""

from rich.console import Console

from cone_jax import summary, training
from cone_jax.analysis import report
from cone_jax.analysis.live_sheets import LiveSheets
from cone_jax.command_line import Arguments
from cone_jax.metric_writers import TIMING_FILE, latest_values


def train(arguments: Arguments, console: Console) -> None:
    """Trains, or says that there is nothing left to do."""
    metrics = training.train(arguments.config, arguments.workdir, console, LiveSheets())
    report.write_after_training(arguments.workdir, summary.plain_lines(console))
    timing = latest_values(arguments.workdir / TIMING_FILE)
    summary.print_training(console, metrics, timing["time/seconds"], arguments.workdir)
