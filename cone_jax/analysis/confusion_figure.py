"""The picture of a confusion matrix."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from cone_jax.analysis import figures
from cone_jax.analysis.confusion import worst_classes

_MOST_CLASSES = 20  # of more classes the hardest are shown


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
