"""Features in two dimensions by t-SNE, the same for the same features.

The paper gives no settings for its figures. Design choices: unit-norm pooled features, reduced to
50 principal components, perplexity 30, 1000 iterations, seed 0.
"""

import numpy as np

DIMENSIONS = 50
PERPLEXITY = 30.0
ITERATIONS = 1000
FEWEST = 12  # points of which a map says anything


def embedding_map(features: np.ndarray) -> np.ndarray | None:
    """The map of `features` [n, d], as [n, 2]; None where there are too few or they are equal."""
    count = len(features)
    if count < FEWEST:
        return None
    norms = np.linalg.norm(features, axis=-1, keepdims=True)
    unit = (features / np.maximum(norms, 1e-12)).astype(np.float64)
    if np.ptp(unit, axis=0).max() < 1e-7:
        return None
    # scikit-learn takes a second to import, and a report may do without it.
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # One thread: sums come in one order, so that equal features give equal maps.
    with threadpool_limits(1):
        components = min(DIMENSIONS, count - 1, unit.shape[1])
        reduced = PCA(components, svd_solver="full").fit_transform(unit)
        return TSNE(
            perplexity=min(PERPLEXITY, (count - 1) / 3),
            max_iter=ITERATIONS,
            init="pca",
            random_state=0,
            n_jobs=1,
        ).fit_transform(reduced.astype(np.float32))


def spread_classes(num_classes: int, most: int = 10) -> list[int]:
    """Up to `most` classes, evenly spaced over all of them.

    >>> spread_classes(4), spread_classes(1000, most=4)
    ([0, 1, 2, 3], [0, 333, 666, 999])
    """
    return sorted({round(i) for i in np.linspace(0, num_classes - 1, min(most, num_classes))})
