"""``--mode=evaluate``: what evaluators find about a checkpoint of a run."""

import json
import math
from pathlib import Path

from rich.console import Console

from cone_jax import atomic_file, distributed, spec_strings, workdir
from cone_jax.analysis import evaluation_files
from cone_jax.console import plain_lines, print_evaluation
from cone_jax.errors import UserError
from cone_jax.evaluation import registry
from cone_jax.evaluation.evaluator import Evaluator, Outcome
from cone_jax.modes.command_line import Arguments
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import Checkpoints, resolve_step


def evaluate(arguments: Arguments, console: Console) -> None:
    """Runs the evaluators of the run's config, or those of --evaluators, on one checkpoint."""
    try:
        asked_for = spec_strings.separate(arguments.flags["evaluators"])
    except ValueError as error:
        raise UserError(f"--evaluators: {error}") from error
    config = workdir.load_config(arguments.workdir)
    evaluators = registry.parse(asked_for or config.evaluation.evaluators)
    evaluate_checkpoint(arguments, console, evaluators)


def evaluate_checkpoint(
    arguments: Arguments, console: Console, evaluators: tuple[Evaluator, ...]
) -> dict[str, float]:
    """Runs `evaluators` on the checkpoint of --step; prints, writes and returns the scores.

    All scores go to ``evaluation.json``, the tables and figures of each evaluator to
    ``evaluation/<its name>/``.
    """
    directory = arguments.workdir
    config = workdir.load_config(directory)
    step = resolve_step(
        directory, arguments.flags["step"], best_metric=config.checkpoint.best_metric
    )
    outcomes = _outcomes(Run.open(config), directory, step, evaluators, console)
    scores: dict[str, float] = {}
    remarks: dict[str, str] = {}  # of the first that has any
    for evaluator, outcome in outcomes:
        scores |= evaluator.named(outcome)
        remarks = remarks or evaluation_files.remarks(outcome)
    print_evaluation(console, f"{directory}, step {step:,}", scores, remarks)
    if distributed.is_primary():
        for path in _write(directory, step, scores, outcomes):
            plain_lines(console)(f"written: {path}")
    return scores


def _outcomes(
    run: Run, directory: Path, step: int, evaluators: tuple[Evaluator, ...], console: Console
) -> list[tuple[Evaluator, Outcome]]:
    stage = run.stage_at(step)
    served = [evaluator for evaluator in evaluators if stage.can_serve(evaluator)]
    if len(served) < len(evaluators):
        left_out = next(item for item in evaluators if item not in served)
        if left_out.needs_classifier:
            stage.require_classifier(step)
        raise UserError(
            f"--evaluators: the checkpoint at step {step} has no {left_out.network} network"
        )
    outcomes: list[tuple[Evaluator, Outcome]] = []
    with Checkpoints(directory, read_only=True) as checkpoints:
        for evaluator in evaluators:
            variables = run.restore_variables(checkpoints, step, evaluator.network)
            outcome = evaluator.evaluate(stage, variables, plain_lines(console))
            outcomes.append((evaluator, outcome))
    return outcomes


def _write(
    directory: Path,
    step: int,
    scores: dict[str, float],
    outcomes: list[tuple[Evaluator, Outcome]],
) -> list[Path]:
    path = directory / "evaluation.json"
    # JSON has no NaN.
    known = {name: None if math.isnan(score) else score for name, score in scores.items()}
    record = {"step": step, **_earlier_scores(path, step), **known}
    with atomic_file.replacing(path) as unfinished:
        unfinished.write_text(json.dumps(record, indent=2) + "\n")
    paths = [path]
    for evaluator, outcome in outcomes:
        paths += evaluation_files.write(outcome, directory / "evaluation" / evaluator.prefix)
    return paths


def _earlier_scores(path: Path, step: int) -> dict[str, float | None]:
    """What other evaluations found about the same checkpoint."""
    try:
        earlier = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return earlier if isinstance(earlier, dict) and earlier.get("step") == step else {}
