"""``--mode=sweep``: fill a table with runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from cone_jax.console import plain_lines
from cone_jax.errors import TrainingFailed, UserError
from cone_jax.modes.command_line import Arguments
from cone_jax.sweeps import Sweep, load_sweep, runner, tables
from cone_jax.sweeps.runner import CellRun, Say


def sweep(arguments: Arguments, console: Console) -> None:
    """Runs what is not finished and writes the table, also while it fills."""
    file = arguments.flags["sweep"]
    if not file:
        raise UserError("--sweep is not given; choose a file in configs/sweeps/")
    jobs = number_of_jobs(arguments)
    definition = load_sweep(file)
    runs = runner.plan(definition, arguments.recipe, arguments.config, arguments.workdir)
    say = plain_lines(console)
    failures = fill_table(definition, runs, arguments.workdir, jobs=jobs, say=say)
    if failures:
        raise TrainingFailed(f"{len(failures)} of {len(runs)} runs; the first was {failures[0]}")


def fill_table(
    definition: Sweep,
    runs: Sequence[CellRun],
    directory: Path,
    *,
    jobs: int,
    say: Say,
    to_run: Sequence[CellRun] | None = None,
) -> list[str]:
    """Carries out `to_run` (all `runs` by default), prints the table; a line for each failure."""

    def write_tables() -> None:
        tables.write(definition, tables.entries(definition, runs), directory)

    say(f"{definition.title}: {len(runs)} runs in {directory}, {jobs} at a time")
    wanted = runs if to_run is None else to_run
    failures = carry_out(wanted, jobs=jobs, say=say, finished=write_tables)
    write_tables()
    say((directory / "table.md").read_text())
    say(f"written: {directory}/table.md, .csv, .png, .svg")
    return failures


def carry_out(
    runs: Sequence[CellRun], *, jobs: int, say: Say, finished: Callable[[], None]
) -> list[str]:
    """As `runner.carry_out`, where an interruption is a failure that says how to go on."""
    try:
        return runner.carry_out(runs, jobs=jobs, say=say, finished=finished)
    except KeyboardInterrupt:
        raise TrainingFailed("interrupted; the same command goes on with what is left") from None


def number_of_jobs(arguments: Arguments) -> int:
    """The value of --jobs."""
    jobs = arguments.flags["jobs"]
    if not jobs.isdecimal() or int(jobs) < 1:
        raise UserError(f"--jobs ({jobs}) must be a whole number from 1")
    return int(jobs)
