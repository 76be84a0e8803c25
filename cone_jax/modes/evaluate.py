"""``--mode=evaluate``: measures a checkpoint of a run with evaluators."""

import json
import math
from pathlib import Path

from rich.console import Console

from cone_jax import distributed, spec_strings, storage
from cone_jax.analysis import evaluation_files, robustness_files
from cone_jax.analysis.evaluation_files import MISTAKES_FILE
from cone_jax.console import Metric, plain_lines, print_evaluation
from cone_jax.data import contact_sheet
from cone_jax.errors import UserError
from cone_jax.evaluation import registry
from cone_jax.evaluation.classification import Classification, ClassificationOutcome
from cone_jax.evaluation.registry import Evaluator, Outcome
from cone_jax.evaluation.robustness import Robustness
from cone_jax.modes.command_line import Arguments
from cone_jax.training.named_network import NamedRun
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir import CONFIG_FILE

SCORES_FILE = "evaluation.json"
# Training pictures that test pictures are compared with; more would take longer than the scores.
_COMPARED = 20_000
# What an evaluation opens: a run, or a network that none of ours trained.
Evaluated = RunDirectory | NamedRun


def evaluate(arguments: Arguments, console: Console) -> None:
    """Runs the evaluators of the run's config, or those of --evaluators, on one checkpoint."""
    try:
        asked_for = spec_strings.separate(arguments.flags["evaluators"])
    except ValueError as error:
        raise UserError(f"--evaluators: {error}") from error
    directory = open_evaluated(arguments, console)
    evaluators = registry.parse(asked_for or directory.config.evaluation.evaluators)
    evaluate_checkpoint(directory, arguments.flags["step"], console, evaluators)


def open_evaluated(arguments: Arguments, console: Console) -> Evaluated:
    """The run in --workdir, or the network of --model on the data of the recipe."""
    model = arguments.flags["model"]
    if not model:
        return RunDirectory.open(arguments.workdir)
    require_no_run(arguments)
    say = plain_lines(console)
    return NamedRun.open(model, arguments.config, arguments.recipe, arguments.workdir, say)


def require_no_run(arguments: Arguments) -> None:
    """`UserError` where the results of --model would replace those of a run."""
    if (arguments.workdir / CONFIG_FILE).exists():
        raise UserError(
            f"--workdir ({arguments.workdir}) is a run, and what --model "
            f"({arguments.flags['model']}) gives would replace its results; leave out one of them"
        )


def evaluate_checkpoint(
    directory: Evaluated,
    step: str,
    console: Console,
    evaluators: tuple[Evaluator, ...],
) -> dict[str, float]:
    """Runs `evaluators` on the checkpoint `step`; prints, writes and returns the scores.

    All scores go to ``evaluation.json``, the tables and figures of each evaluator to
    ``evaluation/<its name>/``.
    """
    number = directory.resolve(step)
    for evaluator in evaluators:
        if isinstance(evaluator, Robustness):
            folder = directory.path / "evaluation" / evaluator.prefix
            robustness_files.check_directory(folder, evaluator.data)
    outcomes = _outcomes(directory, number, evaluators, console)
    scores: dict[str, float] = {}
    declared: dict[str, Metric] = {}
    remarks: dict[str, str] = {}  # of the first that has any
    for evaluator, outcome in outcomes:
        scores |= evaluator.named(outcome)
        declared |= evaluator.declared()
        remarks = remarks or evaluation_files.remarks(outcome)
    title = f"{directory.title(number)}{_epoch_text(directory, number)}"
    print_evaluation(console, title, scores, declared, remarks)
    if distributed.is_primary():
        weights = directory.title(number) if isinstance(directory, NamedRun) else None
        for path in _write(directory.path, number, weights, scores, outcomes):
            plain_lines(console)(f"written: {path}")
            if path.name == MISTAKES_FILE:
                names = directory.run.dataset.class_names
                contact_sheet.say_missing_characters(names, plain_lines(console))
    return scores


def _epoch_text(directory: Evaluated, step: int) -> str:
    """The epoch in its stage, in brackets; empty for a network that was not trained by a run."""
    if not isinstance(directory, RunDirectory):
        return ""
    stage = directory.run.stage_at(step)
    return f" (epoch {(step - stage.first_step) / stage.steps_per_epoch:.4g})"


def _outcomes(
    directory: Evaluated,
    step: int,
    evaluators: tuple[Evaluator, ...],
    console: Console,
) -> list[tuple[Evaluator, Outcome]]:
    stage = directory.run.stage_at(step)
    served = [evaluator for evaluator in evaluators if stage.can_serve(evaluator)]
    if len(served) < len(evaluators):
        left_out = next(item for item in evaluators if item not in served)
        if left_out.labels != stage.learner.objective.needs.labels:
            raise UserError(
                f"--evaluators ({left_out.prefix}) cannot evaluate {stage.config.objective.name}; "
                "leave the flag out for those that can"
            )
        if left_out.needs_classifier:
            stage.require_classifier(step)
        raise UserError(
            f"--evaluators: the checkpoint at step {step} has no {left_out.network} network"
        )
    outcomes: list[tuple[Evaluator, Outcome]] = []
    for evaluator in evaluators:
        variables = directory.variables(stage, step, evaluator.network)
        outcome = evaluator.evaluate(stage, variables, plain_lines(console))
        if (
            isinstance(evaluator, Classification)
            and isinstance(outcome, ClassificationOutcome)
            and len(stage.dataset.train) <= _COMPARED
            and stage.share.count == 1
        ):
            outcome = evaluator.with_nearest(outcome, stage, variables, plain_lines(console))
        outcomes.append((evaluator, outcome))
    return outcomes


def _write(
    directory: Path,
    step: int,
    weights: str | None,
    scores: dict[str, float],
    outcomes: list[tuple[Evaluator, Outcome]],
) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)  # of a network without a run
    path = directory / SCORES_FILE
    # JSON has no NaN.
    known = {name: None if math.isnan(score) else score for name, score in scores.items()}
    about = {"step": step, **({"weights": weights} if weights else {})}
    record = {**about, **kept_scores(directory, step, weights), **known}
    with storage.replacing(path) as unfinished:
        unfinished.write_text(json.dumps(record, indent=2) + "\n")
    paths = [path]
    for evaluator, outcome in outcomes:
        paths += evaluation_files.write(outcome, directory / "evaluation" / evaluator.prefix)
    return paths


def kept_scores(directory: Path, step: int, weights: str | None = None) -> dict[str, float | None]:
    """The scores of checkpoint `step` from earlier evaluations; None stands for NaN.

    Without a run, the name of the `weights` says which network they belong to.
    """
    try:
        earlier = json.loads((directory / SCORES_FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(earlier, dict):
        return {}
    whose = earlier.pop("step", None), earlier.pop("weights", None)
    return earlier if whose == (step, weights) else {}
