"""The files of an evaluation besides its scores: tables, figures, contact sheets."""

import functools
from pathlib import Path

import numpy as np

from cone_jax import storage
from cone_jax.analysis import confusion, figure_style
from cone_jax.analysis.confusion import confusion_figure
from cone_jax.analysis.detection_files import write_detections
from cone_jax.analysis.robustness_files import write_robustness
from cone_jax.analysis.tables import write_csv
from cone_jax.data import contact_sheet, datasets
from cone_jax.evaluation.accuracy import interval_text, wilson_interval
from cone_jax.evaluation.classification import ClassificationOutcome
from cone_jax.evaluation.detection import DetectionOutcome
from cone_jax.evaluation.registry import Outcome
from cone_jax.evaluation.robustness import RobustnessOutcome

MISTAKES_FILE = "mistakes.png"
_SHOWN_MISTAKES = 36
_SHOWN_CLASSES = 10


@functools.singledispatch
def write(outcome: Outcome, directory: Path) -> list[Path]:
    """Writes these files below `directory`; returns their paths."""
    return []


@write.register
def _(outcome: ClassificationOutcome, directory: Path) -> list[Path]:
    names, examples = outcome.class_names, outcome.examples
    directory.mkdir(parents=True, exist_ok=True)
    matrix = confusion.confusion_matrix(examples.labels, examples.predictions, len(names))
    figure, _ = confusion_figure(matrix, names)
    paths = [
        write_csv(
            directory / "confusion.csv",
            ("class", *names),
            ((name, *row.tolist()) for name, row in zip(names, matrix, strict=True)),
        ),
        *figure_style.save(figure, directory / "confusion"),
        _write_per_class(outcome, matrix, directory / "per_class.csv"),
        *_write_predictions(outcome, directory / "predictions.csv"),
    ]
    mistakes = _most_confident_mistakes(outcome)
    sheet = directory / MISTAKES_FILE
    if len(mistakes):
        paths.append(_write_mistakes(outcome, mistakes, sheet))
    else:  # one of an earlier evaluation would be taken for this one's
        sheet.unlink(missing_ok=True)
    return paths


write.register(RobustnessOutcome, write_robustness)
write.register(DetectionOutcome, write_detections)


@functools.singledispatch
def remarks(outcome: Outcome) -> dict[str, str]:
    """Further lines for the terminal; none for most outcomes."""
    return {}


@remarks.register
def _(outcome: ClassificationOutcome) -> dict[str, str]:
    """The number of examples, and the hardest classes."""
    names, examples = outcome.class_names, outcome.examples
    matrix = confusion.confusion_matrix(examples.labels, examples.predictions, len(names))
    worst = confusion.worst_classes(matrix, _SHOWN_CLASSES)
    hardest = {
        f"class {names[score.label]}": (
            f"{score.accuracy:.2%} ({interval_text(score.accuracy, score.examples)})"
        )
        for score in worst
    }
    result, counted = outcome.result, {"examples": f"{outcome.result.examples:,}"}
    for name in ("top1", "top5"):
        sure = interval_text(getattr(result, name), result.examples)
        counted[f"{name}, 95% interval"] = sure
    return counted | hardest


def _write_per_class(outcome: ClassificationOutcome, matrix: np.ndarray, path: Path) -> Path:
    names, accuracies = outcome.class_names, outcome.result.per_class
    examples = matrix.sum(axis=1).tolist()
    taken_for = {s.label: s.taken_for for s in confusion.worst_classes(matrix, len(names))}
    rows = []
    for label, (name, accuracy) in enumerate(zip(names, accuracies, strict=True)):
        other = taken_for.get(label)
        shown: tuple[str, ...] = ("", "", "")
        if not np.isnan(accuracy):
            ends = wilson_interval(accuracy, examples[label])
            shown = tuple(f"{value:.6f}" for value in (accuracy, *ends))
        taken = "" if other is None else names[other]
        rows.append((name, shown[0], examples[label], taken, *shown[1:]))
    header = ("class", "accuracy", "examples", "most_often_taken_for", "low_95", "high_95")
    return write_csv(path, header, rows)


def _write_predictions(outcome: ClassificationOutcome, path: Path) -> list[Path]:
    """A row per picture: file, label, most probable classes, nearest training pictures."""
    names, examples = outcome.class_names, outcome.examples
    if examples.ranked is None or examples.probabilities is None:
        return []
    ranks = range(1, examples.ranked.shape[1] + 1)
    header = ["path", "label", *(f"class_{rank}" for rank in ranks)]
    header += [f"probability_{rank}" for rank in ranks]
    near = outcome.nearest
    if near is not None:
        header += [f"nearest_{place + 1}" for place in range(near.shape[1])]
    rows = []
    for index, record in enumerate(examples.records.tolist()):
        row = [outcome.source.describe(record), names[examples.labels[index]]]
        row += [names[label] for label in examples.ranked[index].tolist()]
        row += [f"{value:.6f}" for value in examples.probabilities[index].tolist()]
        if near is not None and outcome.train is not None:
            row += [outcome.train.describe(other) for other in near[index].tolist()]
        rows.append(row)
    return [write_csv(path, header, rows)]


def _most_confident_mistakes(outcome: ClassificationOutcome) -> np.ndarray:
    """Positions of the wrong answers, most confident first; ties go to the earlier record."""
    examples = outcome.examples
    wrong = np.flatnonzero(examples.predictions != examples.labels)
    order = np.argsort(-examples.confidences[wrong], kind="stable")
    return wrong[order][:_SHOWN_MISTAKES]


def _write_mistakes(outcome: ClassificationOutcome, mistakes: np.ndarray, path: Path) -> Path:
    names, examples = outcome.class_names, outcome.examples
    records = examples.records[mistakes].tolist()
    images = datasets.test_pictures(outcome.config, outcome.source, records)
    captions = [
        f"{examples.confidences[i]:.0%} {names[examples.predictions[i]]},\n"
        f"is {names[examples.labels[i]]}"
        for i in mistakes
    ]
    sheet = contact_sheet.draw(np.stack(images), captions)
    with storage.replacing(path) as unfinished:
        sheet.save(unfinished, "PNG")
    return path
