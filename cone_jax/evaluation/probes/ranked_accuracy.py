"""What the probes count."""

import numpy as np

RANKS = 5


def accuracies(ranked: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Fractions from the most probable classes [n, up to 5] of each example, best first.

    The mean per class is over the classes that have examples.

    >>> accuracies(np.array([[0, 1], [1, 0], [1, 0]]), np.array([0, 0, 1]))
    {'top1': 0.6666666666666666, 'top5': 1.0, 'mean_per_class': 0.75}
    """
    hits = ranked == labels[:, None]
    per_class = [hits[labels == label, 0].mean() for label in np.unique(labels)]
    return {
        "top1": float(hits[:, 0].mean()),
        "top5": float(hits.any(axis=1).mean()),
        "mean_per_class": float(np.mean(per_class)),
    }
