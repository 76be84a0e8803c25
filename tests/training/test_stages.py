"""Methods in two stages: what the second one takes over, freezes and drops; and resuming."""

import numpy as np
import pytest
from rich.console import Console

from cone_jax import config as config_lib
from cone_jax import training
from cone_jax.errors import UserError
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import Checkpoints
from cone_jax.workdir.metrics import read_records
from tests.training.interrupted import assert_same, train_and_stop

QUIET = Console(quiet=True)
FIRST, SECOND = 6, 5  # steps of each stage


@pytest.fixture
def two_stages(separable_config):
    """SupCon, a bank-free method, then the linear stage; a checkpoint every two steps."""
    config = config_lib.apply_options(separable_config, "supcon").unlock()
    config.steps, config.linear_stage.steps = FIRST, SECOND
    config.linear_stage.batch_size = 16  # 4 steps an epoch, where the first stage has 8
    config.log_every = 4
    config.checkpoint.every_epochs = 0.25
    config.checkpoint.keep = 20
    return config


def restore(config, workdir, step):
    run = Run.open(config)
    with Checkpoints(workdir, read_only=True) as checkpoints:
        return checkpoints.restore(step, run.stage_at(step).abstract_state()).state


def test_interrupted_equals_uninterrupted_across_the_boundary(two_stages, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    final = training.train(two_stages, whole, QUIET)
    # Dies in the first stage, between the stages, and in the second.
    for after in (3, FIRST - 2, 3):
        train_and_stop(two_stages, parts, after, monkeypatch)
    assert training.train(two_stages, parts, QUIET) == final
    assert final["step"] == FIRST + SECOND
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    records = read_records(whole / "metrics.jsonl")
    # One at the end of each stage too, so that no average spans both.
    assert [record["step"] for record in records] == [4, 6, 8, 11]
    assert ["train/loss_ce" in record for record in records] == [False, False, True, True]
    assert ["test/top1" in record for record in records] == [False, False, False, True]
    # Its schedule starts anew: at the peak, without warm-up.
    assert records[2]["train/learning_rate"] == pytest.approx(0.1)
    last = FIRST + SECOND
    assert_same(restore(two_stages, whole, last), restore(two_stages, parts, last))

    before, after = restore(two_stages, whole, FIRST), restore(two_stages, whole, last)
    assert_same(before.params["backbone"], after.params["backbone"])
    assert_same(before.batch_stats["backbone"], after.batch_stats["backbone"])
    assert set(after.params) == {"backbone", "classifier"}
    start = Run.open(two_stages).stages[1].init_state().params["classifier"]
    assert not np.allclose(start["kernel"], after.params["classifier"]["kernel"])


def test_a_step_of_the_first_stage_cannot_be_evaluated(two_stages):
    run = Run.open(two_stages)
    with pytest.raises(UserError, match=r"--step \(4\) is in the first stage of supcon.*after 6"):
        run.require_classifier(4)


def test_a_batch_that_does_not_fit_the_devices_is_named_by_its_stage(two_stages):
    two_stages.linear_stage.batch_size = 12
    with pytest.raises(UserError, match=r"linear_stage.batch_size \(12\) must be a multiple"):
        Run.open(two_stages)
