"""``--mode=sweep``: fill a table with runs."""

from rich.console import Console

from cone_jax.console import plain_lines
from cone_jax.errors import TrainingFailed, UserError
from cone_jax.evaluation import registry
from cone_jax.modes.command_line import Arguments
from cone_jax.sweeps import load_sweep, runner, tables
from cone_jax.sweeps.definition import beside
from cone_jax.training import pretrained
from cone_jax.workdir import lock


def sweep(arguments: Arguments, console: Console) -> None:
    """Runs what is not finished and writes the table, also while it fills."""
    file = arguments.flags["sweep"]
    if not file:
        raise UserError("--sweep is not given; choose a file in configs/sweeps/")
    jobs, config, say = number_of_jobs(arguments), arguments.config, plain_lines(console)
    definition = beside(load_sweep(file), config)
    if config.init_from:
        config = pretrained.adopt_input(config, arguments.recipe, arguments.workdir, say)
    runs = runner.plan(definition, arguments.recipe, config, arguments.workdir)
    for run in runs:
        known = registry.declared_metrics(run.config)
        if definition.metric.startswith("test/") and definition.metric not in known:
            raise UserError(
                f"--sweep ({file}) compares {definition.metric}, which no evaluator of "
                f"{arguments.recipe} finds; set evaluation.evaluators, or the sweep's metric"
            )
    with lock.held(arguments.workdir, say, config.checkpoint.store_timeout):
        failures = tables.fill(definition, runs, arguments.workdir, jobs=jobs, say=say)
    if failures:
        raise TrainingFailed(f"{len(failures)} of {len(runs)} runs; the first was {failures[0]}")


def number_of_jobs(arguments: Arguments) -> int:
    """The value of --jobs."""
    jobs = arguments.flags["jobs"]
    if not jobs.isdecimal() or int(jobs) < 1:
        raise UserError(f"--jobs ({jobs}) must be a whole number from 1")
    return int(jobs)
