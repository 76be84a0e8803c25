"""The comparison of corruptions with the reference: what is kept, and what the table says."""

import numpy as np
import pytest

from benchmarks import robustness_against_reference as comparison
from cone_jax.evaluation.corruptions import CORRUPTIONS


def test_other_pictures_do_not_stand_beside_what_was_made_before(tmp_path):
    path = tmp_path / comparison.PICTURES
    pixels = np.zeros((2, 4, 4, 3), np.uint8)
    comparison.keep(path, pixels)
    comparison.keep(path, pixels)
    with pytest.raises(SystemExit, match=r"other pictures; name another folder"):
        comparison.keep(path, pixels + np.uint8(1))
    np.testing.assert_array_equal(np.load(path), pixels)


def test_rows_beside_the_fifteen_are_in_no_mean():
    def row(reference: float, ours: float) -> dict[str, np.ndarray]:
        of = {"reference": reference, "ours": ours}
        measured = {f"{form} accuracy": np.full(5, value) for form, value in of.items()}
        rest = {f"{form} {what}": np.ones(5) for form in of for what in ("kept", "change")}
        return measured | rest

    found = {name: row(0.5, 0.25) for name in CORRUPTIONS}
    found |= {name: row(0.0, 1.0) for name in comparison.BESIDE}
    said = comparison.report(found)
    assert "reference: 50.0% over the fourteen without frost" in said
    assert "ours: 25.0% over the fourteen without frost" in said
    assert "| frost_generated | 0.0 | 100.0 | 1.00 1.00 1.00 1.00 1.00 |" in said
    assert "differs by more than 10 points: fog 5, 50.0% and 25.0%" in said
