"""A linear classifier from a few examples of each class, over several draws of them."""

from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh

from cone_jax.evaluation.accuracy import ranked_accuracies
from cone_jax.evaluation.probes import linear
from cone_jax.evaluation.probes.extraction import Labelled

SHOTS = (1, 5, 10)
DRAWS = 5


def few_shot_scores(
    train: Labelled,
    test: Labelled,
    *,
    num_classes: int,
    mesh: Mesh,
    shots: Sequence[int] = SHOTS,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, float]:
    """Means such as ``few_shot5/top1``, and ``few_shot5/top1_std`` over the draws.

    Features are standardised with the statistics of the examples drawn. With so few of them
    nothing is left to choose l2 on: it is one over their number (scikit-learn's C = 1). Numbers
    of examples that some class does not have are left out.
    """
    rows, labels = train
    counts = np.bincount(labels, minlength=num_classes)
    available = counts[counts > 0].min()
    scores: dict[str, float] = {}
    for shot in shots:
        if shot > available:
            continue
        found = []
        for draw in range(draws):
            chosen = draw_examples(labels, shot, seed=seed, draw=draw)
            seen, others = linear.standardise(rows[chosen], test[0])
            model = linear.fit(
                seen,
                labels[chosen],
                num_classes=num_classes,
                l2=1.0 / len(chosen),
                mesh=mesh,
            )
            found.append(ranked_accuracies(model.ranked(others), test[1])["top1"])
        scores[f"few_shot{shot}/top1"] = float(np.mean(found))
        scores[f"few_shot{shot}/top1_std"] = float(np.std(found, ddof=1)) if draws > 1 else 0.0
    return scores


def draw_examples(labels: np.ndarray, shot: int, *, seed: int, draw: int) -> np.ndarray:
    """Positions of `shot` examples of each class; those of a smaller number are among them."""
    rng = np.random.default_rng((seed, draw))
    order = rng.permutation(len(labels))
    return np.sort(
        np.concatenate([order[labels[order] == label][:shot] for label in np.unique(labels)])
    )
