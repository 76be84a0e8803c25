"""Damaged pictures, configs and checkpoints: the short version of benchmarks/fuzz.py."""

import pytest

from benchmarks import fuzz


@pytest.mark.parametrize(("part", "count"), [("pictures", 500), ("configs", 100)])
def test_damaged_input_is_refused_or_accepted_and_nothing_else(part, count):
    outcomes = list(fuzz.PARTS[part](count, seed=1))
    assert set(outcomes) == {"accepted", "refused"}


def test_a_run_goes_on_from_an_intact_checkpoint_whatever_is_damaged():
    assert set(fuzz.fuzz_checkpoints(12, seed=1)) == {"accepted"}
