"""Calibration error in closed form, and against a loop over bins."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax.evaluation.calibration import expected_calibration_error


def test_right_as_often_as_sure_is_no_error():
    confidences = np.repeat([0.55, 0.75], 20).astype(np.float32)
    correct = np.concatenate([np.arange(20) < 11, np.arange(20) < 15])
    assert expected_calibration_error(confidences, correct) == pytest.approx(0.0, abs=1e-7)


def test_always_sure_and_half_right_is_a_half():
    assert expected_calibration_error(np.ones(8, np.float32), np.arange(8) % 2) == 0.5


def test_two_bins_do_not_make_good_for_each_other():
    # 0.9 sure and never right, 0.1 sure and always right: 0.9 each, though the means agree.
    confidences = np.array([0.9, 0.1], np.float32)
    assert expected_calibration_error(confidences, np.array([0, 1])) == pytest.approx(0.9)


def test_an_edge_belongs_to_the_bin_below():
    # 3/15 and 2.9/15 share a bin, so over- and underconfidence cancel there; 3.1/15 does not.
    edge = np.float32(3 / 15)
    below = np.array([edge, 2.9 / 15], np.float32)
    together = expected_calibration_error(below, np.array([0, 1]))
    assert together == pytest.approx(abs(float(edge) + 2.9 / 15 - 1) / 2, rel=1e-5)
    apart = expected_calibration_error(np.array([edge, 3.1 / 15], np.float32), np.array([0, 1]))
    assert apart == pytest.approx((float(edge) + 1 - 3.1 / 15) / 2, rel=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(1 / 1024, 1.0, width=32), st.booleans()), min_size=1))
def test_equals_the_sum_over_bins(rows):
    confidences = np.array([row[0] for row in rows], np.float32)
    correct = np.array([row[1] for row in rows])
    total = 0.0
    edges = np.linspace(0, 1, 16).astype(np.float32)
    for low, high in itertools.pairwise(edges):
        inside = (confidences > low) & (confidences <= high)
        if inside.any():
            gap = correct[inside].mean() - confidences[inside].astype(np.float64).mean()
            total += inside.mean() * abs(gap)
    assert expected_calibration_error(confidences, correct) == pytest.approx(total, abs=1e-9)
