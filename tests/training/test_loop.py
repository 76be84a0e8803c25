"""Whole runs on digits: interrupted equals uninterrupted, finished runs stay as they are."""

import numpy as np
import pytest
from rich.console import Console

from cone_jax import training
from cone_jax.errors import TrainingFailed, UserError
from cone_jax.evaluation.classification import Classification
from cone_jax.evaluation.registry import Outcome
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import Checkpoints
from cone_jax.workdir.metrics import read_records
from tests.training.interrupted import assert_same, train_and_stop

QUIET = Console(quiet=True)


def restore(config, workdir, step):
    with Checkpoints(workdir) as checkpoints:
        return checkpoints.restore(step, Run.open(config).abstract_state())


@pytest.fixture
def short_config(tiny_config):
    tiny_config.evaluation.every_epochs = 4 / 44
    tiny_config.checkpoint.every_epochs = 2 / 44
    return tiny_config


def test_interrupted_equals_uninterrupted_bit_for_bit(short_config, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    final = training.train(short_config, whole, QUIET)
    # Checkpoints fall on steps 2, 4, 6, 8 and records on 3, 6, 8, so both kinds of boundary and
    # a half-full metrics window are crossed.
    for after in (3, 1, 3):
        train_and_stop(short_config, parts, after, monkeypatch)
    assert training.train(short_config, parts, QUIET) == final

    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    steps = [record["step"] for record in read_records(whole / "metrics.jsonl")]
    assert steps == [3, 4, 6, 8]
    one, other = restore(short_config, whole, 8), restore(short_config, parts, 8)
    assert_same(one.state, other.state)
    assert one.data == other.data
    assert one.progress["window"] == other.progress["window"]


def test_next_batch_after_a_resume_is_the_one_that_was_due(quick_config):
    run = Run.open(quick_config)
    stream = run.train_stream(0, print)
    due = [next(stream) for _ in range(3)][2]
    resumed = next(run.train_stream(2, print))
    for name in due:
        np.testing.assert_array_equal(due[name], resumed[name])


def test_finished_run_is_left_alone(quick_config, tmp_path):
    quick_config.steps = 2
    final = training.train(quick_config, tmp_path, QUIET)
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert training.train(quick_config, tmp_path, QUIET) == final
    assert final["step"] == 2
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == contents


def test_latest_and_best_checkpoints_are_kept(quick_config, tmp_path, monkeypatch):
    scores = iter([0.9, 0.1])
    monkeypatch.setattr(
        Classification,
        "evaluate",
        lambda self, run, variables, report: Outcome({"top1": next(scores), "loss": 1.0}),
    )
    quick_config.evaluation.every_epochs = 4 / 44
    quick_config.checkpoint.every_epochs = 2 / 44
    quick_config.checkpoint.keep = 1
    training.train(quick_config, tmp_path, QUIET)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["4", "8"]
    with Checkpoints(tmp_path, best_metric="test/top1") as checkpoints:
        assert checkpoints.best_step() == 4


def test_a_workdir_belongs_to_one_config(quick_config, tmp_path):
    quick_config.steps = 1
    training.train(quick_config, tmp_path, QUIET)
    quick_config.optimizer.weight_decay = 0.5
    with pytest.raises(UserError, match=r"optimizer.weight_decay = 0.0005.*says 0.5"):
        training.train(quick_config, tmp_path, QUIET)


def test_a_diverged_loss_stops_the_run(quick_config, tmp_path):
    quick_config.optimizer.learning_rate = 1e30
    quick_config.schedule.warmup_epochs = 0.0
    with pytest.raises(TrainingFailed, match=r"lower optimizer\.learning_rate"):
        training.train(quick_config, tmp_path, QUIET)


def test_an_evaluation_batch_is_filled_up_for_the_devices(separable_config):
    scores = []
    for size, rows in ((32, 32), (20, 24)):  # of 32 test images, on eight devices
        separable_config.evaluation.batch_size = size
        run = Run.open(separable_config)
        batches = list(run.eval_stream(run.dataset.test, print))
        assert {len(batch["label"]) for batch in batches} == {rows}
        seen = np.concatenate([batch["id"][batch["mask"]] for batch in batches])
        assert seen.tolist() == list(range(32))
        network = run.init_state().variables
        scores.append(run.evaluators[0].evaluate(run, network, print).scores)
    assert scores[0] == pytest.approx(scores[1])


def test_batch_must_divide_over_the_devices(quick_config, tmp_path):
    quick_config.batch_size = 36
    with pytest.raises(UserError, match=r"batch_size \(36\) must be a multiple of the 8 devices"):
        training.train(quick_config, tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()
