"""``--mode=sweep``: fill a table with runs."""

from rich.console import Console

from cone_jax.command_line import Arguments
from cone_jax.errors import TrainingFailed, UserError
from cone_jax.sweeps import load_sweep, runner, tables


def sweep(arguments: Arguments, console: Console) -> None:
    """Runs what is not finished and writes the table, also while it fills."""
    file, jobs = arguments.flags["sweep"], arguments.flags["jobs"]
    if not file:
        raise UserError("--sweep is not given; choose a file in configs/sweeps/")
    if not jobs.isdecimal() or int(jobs) < 1:
        raise UserError(f"--jobs ({jobs}) must be a whole number from 1")
    definition = load_sweep(file)
    runs = runner.plan(definition, arguments.recipe, arguments.config, arguments.workdir)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    def write_tables() -> None:
        tables.write(definition, tables.entries(definition, runs), arguments.workdir)

    say(f"{definition.title}: {len(runs)} runs in {arguments.workdir}, {jobs} at a time")
    try:
        failures = runner.carry_out(runs, jobs=int(jobs), say=say, finished=write_tables)
    except KeyboardInterrupt:
        raise TrainingFailed("interrupted; the same command goes on with what is left") from None
    write_tables()
    say((arguments.workdir / "table.md").read_text())
    say(f"written: {arguments.workdir}/table.md, .csv, .png, .svg")
    if failures:
        raise TrainingFailed(f"{len(failures)} of {len(runs)} runs; the first was {failures[0]}")
