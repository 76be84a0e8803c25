"""Which classes are mistaken for which: the confusion matrix, its worst cells, its picture."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from cone_jax.analysis import figures

_MOST_CLASSES = 20  # of more classes the hardest are shown


class ClassScore(NamedTuple):
    """The accuracy of one class, and its most frequent mistake."""

    label: int
    accuracy: float
    examples: int
    taken_for: int | None  # the class it is most often mistaken for


class Mistake(NamedTuple):
    """Examples of one class that were given another."""

    label: int
    prediction: int
    times: int


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
    """Counts [C, C]: the row is the true class, the column the predicted one.

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    cells = np.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes)


def worst_classes(matrix: np.ndarray, most: int = 10) -> list[ClassScore]:
    """The classes with the lowest accuracy, worst first; classes without examples are left out."""
    totals = matrix.sum(axis=1)
    scores = []
    for label in np.flatnonzero(totals):
        errors = matrix[label].copy()
        correct, errors[label] = errors[label], 0
        taken_for = int(errors.argmax()) if errors.any() else None
        scores.append(
            ClassScore(int(label), float(correct / totals[label]), int(totals[label]), taken_for)
        )
    return sorted(scores, key=lambda score: (score.accuracy, score.label))[:most]


def frequent_mistakes(matrix: np.ndarray, most: int = 10) -> list[Mistake]:
    """The largest counts off the diagonal, largest first."""
    errors = matrix.copy()
    np.fill_diagonal(errors, 0)
    rows, columns = np.nonzero(errors)
    found = [
        Mistake(int(row), int(column), int(errors[row, column]))
        for row, column in zip(rows, columns, strict=True)
    ]
    return sorted(found, key=lambda mistake: (-mistake.times, mistake))[:most]


def confusion_figure(matrix: np.ndarray, names: Sequence[str]) -> tuple[Figure, str]:
    """The shares of each class's examples in per cent, and which classes are shown."""
    shown = sorted(score.label for score in worst_classes(matrix, _MOST_CLASSES))
    labels = [names[label] for label in shown]
    shares = 100.0 * matrix[np.ix_(shown, shown)] / matrix.sum(axis=1)[shown, None]
    shares[shares == 0] = np.nan  # an empty cell says it better
    panel = figures.Matrix("", shares, labels, labels, "class", "predicted")
    figure = figures.matrices([panel], number="{:.0f}", colour_label="% of the class")
    which = "all classes" if len(shown) == len(names) else f"the {len(shown)} hardest classes"
    return figure, which
