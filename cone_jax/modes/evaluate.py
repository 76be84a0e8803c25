"""``--mode=evaluate``: score a checkpoint on the test split of its run."""

import dataclasses
import json

from rich.console import Console

from cone_jax import atomic_file, checkpointing, summary, workdir
from cone_jax.checkpointing import Checkpoints
from cone_jax.command_line import Arguments
from cone_jax.training.run import Run


def evaluate(arguments: Arguments, console: Console) -> None:
    """Scores one checkpoint with the config that is in the workdir."""
    config = workdir.load_config(arguments.workdir)
    step = checkpointing.resolve_step(
        arguments.workdir, arguments.flags["step"], best_metric=config.checkpoint.best_metric
    )
    run = Run.open(config)
    with Checkpoints(arguments.workdir, read_only=True) as checkpoints:
        variables = run.restore_network(checkpoints, step)
    result = run.stage_at(step).evaluate(variables, console.print)
    path = arguments.workdir / "evaluation.json"
    with atomic_file.replacing(path) as unfinished:
        record = {"step": step, **dataclasses.asdict(result)}
        unfinished.write_text(json.dumps(record, indent=2) + "\n")
    title = f"{arguments.workdir}, step {step:,}, written to {path.name}"
    summary.print_evaluation(console, title, result, run.dataset.class_names)
