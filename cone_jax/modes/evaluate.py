"""``--mode=evaluate``: score a checkpoint on the test split of its run."""

import dataclasses
import json

from rich.console import Console

from cone_jax import checkpointing, summary, workdir
from cone_jax.checkpointing import Checkpoints
from cone_jax.command_line import Arguments
from cone_jax.errors import UserError
from cone_jax.training.run import Run


def evaluate(arguments: Arguments, console: Console) -> None:
    """Scores one checkpoint with the config that is in the workdir."""
    config = workdir.load_config(arguments.workdir)
    checkpointing.resolve_step(arguments.workdir, None)
    run = Run.open(config)
    with Checkpoints(
        arguments.workdir, best_metric=config.checkpoint.best_metric, read_only=True
    ) as checkpoints:
        step = _choose_step(arguments, checkpoints)
        abstract = run.abstract_state()
        variables = checkpoints.restore_fields(
            step, {"params": abstract.params, "batch_stats": abstract.batch_stats}
        )
    result = run.evaluate(variables, console.print)
    path = arguments.workdir / "evaluation.json"
    path.write_text(json.dumps({"step": step, **dataclasses.asdict(result)}, indent=2) + "\n")
    title = f"{arguments.workdir}, step {step:,}, written to {path.name}"
    summary.print_evaluation(console, title, result, run.dataset.class_names)


def _choose_step(arguments: Arguments, checkpoints: Checkpoints) -> int:
    if arguments.step == "latest":
        return checkpointing.resolve_step(arguments.workdir, None)
    if arguments.step == "best":
        best = checkpoints.best_step()
        if best is None:
            raise UserError(f"--step (best): no checkpoint in {arguments.workdir} has been scored")
        return best
    if not arguments.step.isdecimal():
        raise UserError(f"--step ({arguments.step!r}) must be a number, 'latest' or 'best'")
    return checkpointing.resolve_step(arguments.workdir, int(arguments.step))
