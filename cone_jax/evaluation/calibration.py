"""Whether a network is right as often as it says it is."""

import numpy as np

BINS = 15


def expected_calibration_error(
    confidences: np.ndarray, correct: np.ndarray, bins: int = BINS
) -> float:
    """The mean distance between confidence and accuracy, over bins of equal width.

    An example with confidence p is in the bin (b / bins, (b + 1) / bins] that p falls into; each
    bin counts by its number of examples (Guo et al., 2017).

    >>> confidences = np.array([0.9, 0.9, 0.9, 0.9])
    >>> round(expected_calibration_error(confidences, np.array([1, 1, 1, 0])), 4)
    0.15
    """
    confidence = confidences.astype(np.float64)
    # Against the edges as float32 has them, in which confidences come.
    edges = np.linspace(0.0, 1.0, bins + 1)[1:-1].astype(confidences.dtype)
    place = np.searchsorted(edges, confidences, side="left")
    gaps = np.bincount(place, confidence - correct.astype(np.float64), minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))
