"""``--mode=report``: write the report of a run, at any time."""

from rich.console import Console

from cone_jax.analysis import report as reports
from cone_jax.console import plain_lines
from cone_jax.modes.command_line import Arguments


def report(arguments: Arguments, console: Console) -> None:
    """Writes `report.html` into the workdir."""
    path = reports.write(arguments.workdir, step=arguments.flags["step"])
    plain_lines(console)(f"written: {path}")
