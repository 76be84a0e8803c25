"""The first section of a report: questions about a classifier, answered in sentences."""

import csv
from collections.abc import Iterator

import numpy as np

from cone_jax.analysis import page
from cone_jax.analysis.check_files import CSV_FILE
from cone_jax.analysis.confusion import confusion_matrix, frequent_mistakes
from cone_jax.analysis.page import Section
from cone_jax.analysis.report_inputs import Evidence
from cone_jax.data.datasets import FEW_IMAGES, known_labels
from cone_jax.evaluation.accuracy import interval_text

_MISTAKES = 3


def answers(evidence: Evidence) -> Section | None:
    """How good, on what, how sure, which mistakes, is the data all right."""
    rows = [*_of_the_network(evidence), *_of_the_data(evidence), *_of_the_method(evidence)]
    return Section("answers", "In short", page.table((), rows)) if rows else None


def _of_the_network(evidence: Evidence) -> Iterator[tuple[str, str]]:
    snapshot = evidence.snapshot
    if snapshot is None or not len(snapshot.labels):
        return
    names, examples = snapshot.class_names, len(snapshot.labels)
    accuracy = float(np.mean(snapshot.labels == snapshot.predictions))
    yield (
        "How good?",
        f"{accuracy:.1%} of the test pictures are recognised; guessing would give "
        f"{1 / len(names):.1%}.",
    )
    trained = "" if evidence.train is None else f", trained on {len(evidence.train):,} others"
    yield (
        "On what?",
        f"{examples:,} test pictures of {len(names)} classes{trained}.",
    )
    sure = f"With 95% confidence the accuracy is {interval_text(accuracy, examples)}"
    calibration = evidence.run.last("test/ece")
    if calibration is not None:
        sure += f"; its probabilities are off by {calibration:.1%} on average (ECE)"
    yield "How sure?", f"{sure}. Another seed would give another network."
    matrix = confusion_matrix(snapshot.labels, snapshot.predictions, len(names))
    mistakes = [
        f"{names[each.label]} mistaken for {names[each.prediction]} "
        f"({'once' if each.times == 1 else f'{each.times} times'})"
        for each in frequent_mistakes(matrix)[:_MISTAKES]
    ]
    yield "Which mistakes?", f"{'; '.join(mistakes)}." if mistakes else "None."


def _of_the_data(evidence: Evidence) -> Iterator[tuple[str, str]]:
    if evidence.train is None:
        return
    said = []
    labels = known_labels(evidence.train)
    if labels is not None:
        counts = np.bincount(labels[labels >= 0], minlength=len(evidence.train.class_names))
        said.append(f"{counts.min():,} to {counts.max():,} training pictures per class.")
        few = int((counts < FEW_IMAGES).sum())
        if few:
            said.append(f"{few} classes have fewer than {FEW_IMAGES}.")
    checked = evidence.run.path / CSV_FILE
    if checked.exists():
        with checked.open(newline="", encoding="utf-8") as file:
            problems = [row["problem"] for row in csv.DictReader(file)]
        found = ", ".join(f"{problems.count(kind)} {kind}" for kind in dict.fromkeys(problems))
        said.append(f"The check found: {found}." if found else "The check found nothing.")
    else:
        said.append("--mode=check looks for bad files, duplicates and leaks.")
    yield "Is my data all right?", " ".join(said)


def _of_the_method(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Terms that were switched off for most of the run."""
    active = evidence.run.series("train/active").values
    if active.size and active.mean() < 0.5:
        name = evidence.run.config.objective.name
        yield (
            "Was the method on?",
            f"Hardly: the terms of {name} beside cross-entropy counted in {active.mean():.0%} of "
            "the steps. Train longer, or lower bank.size and start_epochs.",
        )
