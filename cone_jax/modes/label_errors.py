"""``--mode=label_errors``: which labels of a run's data are probably wrong."""

from rich.console import Console

from cone_jax import training
from cone_jax.analysis import label_error_files, label_errors
from cone_jax.analysis.label_errors import Evidence
from cone_jax.console import Report, plain_lines
from cone_jax.errors import UserError
from cone_jax.modes.command_line import Arguments
from cone_jax.training.run_directory import RunDirectory

DIRECTORY = "label_errors"


def find_label_errors(arguments: Arguments, console: Console) -> None:
    """Ranks every label of the run's two splits; writes a table and a page."""
    say, directory = plain_lines(console), RunDirectory.open(arguments.workdir)
    directory.require_classes("label_errors")
    folds = _folds(arguments.flags["folds"])
    if directory.config.data.folds:
        raise UserError(
            f"--workdir ({directory.path}) is the run of one fold; give a run on all its data"
        )
    step = directory.resolve(arguments.flags["step"])
    directory.run.require_classifier(step)
    own = _evidence(directory, step, say)
    train = _of_folds(directory, folds, console) if folds else _evidence(directory, step, say, True)
    dataset, data = directory.dataset, directory.config.data
    copies = label_error_files.contradicting_duplicates(dataset, data.image_size, data.threads)
    findings = []
    for split, evidence in (("train", train), ("test", own)):
        suspicion = label_errors.suspect(evidence, train)
        findings += label_error_files.list_findings(
            split, dataset, evidence, suspicion, data.path, copies[split]
        )
    note = (
        f"Training pictures were judged by {folds} networks that had not seen them, test pictures "
        "by the run's."
        if folds
        else "Training pictures were judged by the network that learned their labels, which hides "
        "errors: --folds=4 judges them out of sample."
    )
    for finding in sorted(findings, key=lambda each: -each.score)[:10]:
        text = f"{finding.label}, rather {finding.proposed} (score {finding.score:.2f})"
        say(f"{finding.path}: {text}")
    for path in label_error_files.write(findings, dataset, data, directory.path, note):
        say(f"written: {path}")


def _folds(text: str) -> int:
    if not text.isdecimal() or int(text) == 1:
        raise UserError(f"--folds ({text!r}) must be 0, or a whole number of at least 2")
    return int(text)


def _of_folds(directory: RunDirectory, count: int, console: Console) -> Evidence:
    """The evidence of networks trained like the run, but without the pictures they judge."""
    say = plain_lines(console)
    length = "as long" if count == 2 else f"{count - 1} times as long"
    say(
        f"training {count} networks, each without 1/{count} of the pictures: about {length} as the "
        "run; if interrupted, the same command continues"
    )
    parts = []
    for fold, config in enumerate(label_errors.fold_configs(directory.config, count)):
        place = directory.path / DIRECTORY / f"fold-{fold}-of-{count}"
        say(f"fold {fold + 1} of {count}: {place}")
        training.train(config, place, console)
        one = RunDirectory.open(place)
        parts.append(_evidence(one, one.resolve(), say))
    source, seed = directory.dataset.train, directory.config.data.holdout_seed
    return label_errors.combine(parts, source, seed)


def _evidence(directory: RunDirectory, step: int, say: Report, own: bool = False) -> Evidence:
    """About the test split or, with `own`, the training split of the run."""
    run = directory.run.stage_at(step)
    return label_errors.examine(run, directory.variables(run, step), say, own=own)
