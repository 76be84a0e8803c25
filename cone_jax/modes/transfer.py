"""``--mode=transfer``: fine-tune a network on another data set, settings chosen on validation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from cone_jax.config import require_classifier
from cone_jax.console import Report, plain_lines
from cone_jax.errors import TrainingFailed
from cone_jax.modes.command_line import Arguments
from cone_jax.modes.sweep import number_of_jobs
from cone_jax.sweeps import runner, tables, transfer_protocol, transfer_results
from cone_jax.sweeps.definition import Sweep
from cone_jax.sweeps.runner import CellRun
from cone_jax.sweeps.transfer_protocol import Choice
from cone_jax.training import pretrained
from cone_jax.workdir import lock

GRID_FOLDER = "grid"


def transfer(arguments: Arguments, console: Console) -> None:
    """Fills the grid, trains the best again, writes the table; or one table of --workdirs."""
    say = plain_lines(console)
    if arguments.workdirs:
        records = [transfer_results.read(directory) for directory in arguments.workdirs]
    else:
        records = [_fine_tune(arguments, number_of_jobs(arguments), say)]
    path = transfer_results.write_table(arguments.workdir, records)
    say(path.read_text(encoding="utf-8"))
    say(f"written: {path}")


def _fine_tune(arguments: Arguments, jobs: int, say: Report) -> dict[str, Any]:
    """The whole protocol, or what is left of it; returns and writes the record of it."""
    recipe, place = arguments.recipe, arguments.workdir
    require_classifier(arguments.config, "transfer")
    transfer_protocol.check(arguments.config)
    grid = transfer_protocol.grid(arguments.config, recipe)
    config = pretrained.adopt(arguments.config, recipe, arguments.flags["step"])
    account = pretrained.check_weights(config)
    runs = runner.plan(grid, recipe, config, place / GRID_FOLDER)
    say(account)
    with lock.held(place, say, config.checkpoint.store_timeout):
        choice = _choose(grid, runs, config, jobs, place, say)
        final = transfer_protocol.final(config, recipe, choice)
        last = runner.plan(final, recipe, config, place)
        failures = runner.carry_out(last, jobs=1, say=say, finished=lambda: None)
        if failures:
            raise TrainingFailed(f"{failures[0]}; the same command tries it again")
        record = _record(config, choice, runs, last[0])
        transfer_results.write(place, record)
    return record


def _choose(
    grid: Sweep, runs: list[CellRun], config: ConfigDict, jobs: int, place: Path, say: Report
) -> Choice:
    """The best of the grid, once it is filled."""
    to_run = [run for run in runs if not transfer_protocol.diverged(run)]
    failures = tables.fill(grid, runs, place / GRID_FOLDER, jobs=jobs, say=say, to_run=to_run)
    if any(runner.result(run) is None and not transfer_protocol.diverged(run) for run in runs):
        raise TrainingFailed(f"{failures[0]}; the same command continues with what is left")
    choice = transfer_protocol.choose(config, runs)
    say(
        f"best on validation: learning rate {choice.learning_rate:g}, weight decay "
        f"{choice.weight_decay:g} / learning rate: {config.transfer.metric} "
        f"{choice.validation:.2%}; now on all training images"
    )
    return choice


def _record(
    config: ConfigDict, choice: Choice, runs: Sequence[CellRun], last: CellRun
) -> dict[str, Any]:
    test = runner.result(last) or {}
    return {
        "dataset": transfer_protocol.target_name(config),
        "metric": config.transfer.metric,
        "network": config.model.name,
        "init_from": config.init_from,
        "steps": config.steps,
        "batch_size": config.batch_size,
        "image_size": config.data.image_size,
        "chosen": choice._asdict(),
        "test": {name: test[f"test/{name}"] for name in ("top1", "mean_per_class")},
        "run": last.directory.name,
        "grid": {
            "runs": len(runs),
            "finished": sum(runner.result(run) is not None for run in runs),
            "diverged": [run.name for run in runs if transfer_protocol.diverged(run)],
        },
    }
