"""``--mode=compare``: several runs in one table and one set of charts."""

from rich import box
from rich.console import Console
from rich.table import Table

from cone_jax.analysis import run_comparison
from cone_jax.console import plain_lines
from cone_jax.errors import UserError
from cone_jax.modes.command_line import Arguments
from cone_jax.training.run_directory import RunDirectory


def compare(arguments: Arguments, console: Console) -> None:
    """Prints the table; writes it, the curves and a page into the workdir."""
    if len(arguments.workdirs) < 2:
        raise UserError(
            f"--workdirs ({arguments.flags['workdirs']!r}) must name two runs or more, joined by "
            "commas; for one run beside the paper: python -m cone_jax.analysis.paper_comparison RUN"
        )
    runs = [RunDirectory.open(directory) for directory in arguments.workdirs]
    groups = run_comparison.group_runs(runs)
    header, rows = run_comparison.table(groups)
    # A column for each group: a few fit a terminal, all that is known of one does not.
    table = Table(box=box.SIMPLE, show_header=True)
    for place, cells in enumerate([header, *rows]):
        table.add_column(cells[0], justify="right" if place else "left", overflow="fold")
    for values in zip(*(row[1:] for row in [header, *rows]), strict=True):
        table.add_row(*values)
    console.print(table)
    say = plain_lines(console)
    for line in run_comparison.verdicts(groups):
        say(line)
    say(f"written: {run_comparison.write(runs, arguments.workdir)}")
