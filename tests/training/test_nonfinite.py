"""Runs that meet a loss that is not finite: stopped with all one needs to know, or going on."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from cone_jax import training
from cone_jax.data import contact_sheet
from cone_jax.errors import TrainingFailed
from cone_jax.training import loop
from cone_jax.training.run import Run
from cone_jax.workdir import load_config
from cone_jax.workdir.checkpoints import Checkpoints
from cone_jax.workdir.metrics import BAD_BATCHES_FILE, METRICS_FILE, read_records

QUIET = Console(quiet=True)


class PullThePlugError(Exception):
    """Stands for whatever ends a process between two steps."""


@pytest.fixture
def config(separable_config):
    separable_config.steps = 12
    separable_config.log_every = 4
    separable_config.checkpoint.every_epochs = 3 / 8
    separable_config.evaluation.every_epochs = 6 / 8
    return separable_config


@pytest.fixture
def poison(monkeypatch):
    """Call it with the numbers of the steps whose batch shall hold a NaN."""
    real_step, seen = loop.train_step, {}

    def start(*bad, die_after=None):
        def step(state, batch):
            number = int(state.step) + 1
            if die_after is not None and number > die_after:
                raise PullThePlugError
            seen[number] = np.asarray(batch["id"]).tolist()
            images = batch["image"].astype(jnp.float32)
            if number in bad:
                images = images.at[0, 0, 0].set(jnp.nan)
            return real_step(state, batch | {"image": images})

        monkeypatch.setattr(loop, "train_step", step)
        return seen

    return start


def saved_steps(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


def test_stop_names_step_records_and_last_good_checkpoint(config, tmp_path, poison):
    seen = poison(8)
    with pytest.raises(TrainingFailed) as failure:
        training.train(config, tmp_path, QUIET)
    message = str(failure.value)
    assert "gradient norm nan at step 8" in message
    assert f"records {', '.join(map(str, seen[8][:5]))}, ..." in message
    assert "the last good checkpoint is 6" in message
    assert "\n" not in message
    assert max(saved_steps(tmp_path)) == 6
    assert max(seen) == 9  # one step was under way

    [bad] = read_records(tmp_path / BAD_BATCHES_FILE)
    assert (bad["step"], bad["action"], bad["records"]) == (8, "stop", seen[8])
    assert Run.open(config).host_batch(8)["id"].tolist() == bad["records"]
    # Strict JSON, which knows no NaN.
    json.loads((tmp_path / METRICS_FILE).read_text().splitlines()[-1], parse_constant=pytest.fail)
    assert [record["step"] for record in read_records(tmp_path / METRICS_FILE)] == [4, 6]


@pytest.mark.parametrize("bad", [6, 9, 12])
def test_no_checkpoint_is_made_of_a_bad_step(config, tmp_path, poison, bad):
    """Whether it falls on an evaluation, on a checkpoint, or on the last step."""
    poison(bad)
    with pytest.raises(TrainingFailed, match=f"at step {bad},"):
        training.train(config, tmp_path, QUIET)
    assert max(saved_steps(tmp_path)) == bad - 3
    assert all(record["step"] < bad for record in read_records(tmp_path / METRICS_FILE))


def test_a_state_that_overflowed_under_a_finite_loss_is_not_saved(config, tmp_path):
    config.optimizer.learning_rate, config.optimizer.weight_decay = 1e38, 1e3
    config.steps = 1
    with pytest.raises(TrainingFailed, match=r"after step 1 is not finite \(params.*no checkpoint"):
        training.train(config, tmp_path, QUIET)
    assert saved_steps(tmp_path) == []


def test_a_stopped_run_goes_on_with_the_other_policy(config, tmp_path, poison):
    poison(8)
    with pytest.raises(TrainingFailed):
        training.train(config, tmp_path, QUIET)
    config.nonfinite.policy = "skip"
    training.train(config, tmp_path, QUIET)
    assert max(saved_steps(tmp_path)) == 12
    assert [bad["action"] for bad in read_records(tmp_path / BAD_BATCHES_FILE)] == ["skip"]


def test_skipping_is_recorded_and_interrupted_equals_uninterrupted(config, tmp_path, poison):
    config.nonfinite.policy = "skip"
    config.nonfinite.skip_limit = 5
    bad = (2, 5, 6, 7, 8)  # 5 to 8 are a whole record
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    seen = poison(*bad)
    training.train(config, whole, QUIET)
    for after in (5, 8, 10):
        poison(*bad, die_after=after)
        with pytest.raises(PullThePlugError):
            training.train(config, parts, QUIET)
    poison(*bad)
    training.train(config, parts, QUIET)

    for name in (METRICS_FILE, BAD_BATCHES_FILE):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    recorded = read_records(whole / BAD_BATCHES_FILE)
    assert [(line["step"], line["records"]) for line in recorded] == [(s, seen[s]) for s in bad]
    metrics = {record["step"]: record for record in read_records(whole / METRICS_FILE)}
    assert [metrics[step]["train/skipped"] for step in (4, 8, 12)] == [0.25, 1.0, 0.0]
    assert np.isfinite(metrics[4]["train/loss"])
    assert "train/loss" not in metrics[8]
    states = []
    for workdir in (whole, parts):
        with Checkpoints(workdir, read_only=True) as checkpoints:
            restored = checkpoints.restore(12, Run.open(config).abstract_state())
            assert restored.progress["skipped"] == len(bad)
            states.append(jax.tree.leaves(restored.state))
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)


def test_too_many_skipped_updates_end_the_run_also_over_restarts(config, tmp_path, poison):
    config.nonfinite.policy = "skip"
    config.nonfinite.skip_limit = 2
    poison(2, 5, 8, die_after=6)
    with pytest.raises(PullThePlugError):
        training.train(config, tmp_path, QUIET)
    poison(2, 5, 8)
    with pytest.raises(TrainingFailed, match=r"step 8.* 3 updates .*skip_limit \(2\).* is 6"):
        training.train(config, tmp_path, QUIET)


def test_the_batch_of_any_step_can_be_made_again(config):
    config.data.train_transforms = ("random_crop(4, padding=2)",)
    run = Run.open(config)
    for step, batch in enumerate(run.train_stream(0, print), start=1):
        again = run.host_batch(step)
        for name in batch:
            np.testing.assert_array_equal(batch[name], again[name])


def test_a_step_can_be_replayed_from_the_checkpoint_before_it(config, tmp_path):
    """Of a spike in `metrics.jsonl`, or of a batch in `bad_batches.jsonl`: the same numbers."""
    config.steps, config.log_every = 9, 1
    config.data.train_transforms = ("random_crop(4, padding=2)",)
    training.train(config, tmp_path, QUIET)
    recorded = {line["step"]: line["train/loss"] for line in read_records(tmp_path / METRICS_FILE)}

    run = Run.open(load_config(tmp_path))
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        state = checkpoints.restore(6, run.abstract_state()).state
    for step, batch in enumerate(run.train_stream(6, print), start=7):
        assert batch["id"].tolist() == run.host_batch(step)["id"].tolist()
        state, metrics = training.train_step(state, batch)
        assert float(metrics["loss"]) == pytest.approx(recorded[step], rel=1e-6)
    assert step == 9


def test_preview_draws_the_batch_of_a_step(config, tmp_path, monkeypatch):
    from cone_jax.errors import UserError
    from cone_jax.modes import MODES
    from cone_jax.modes.command_line import FLAGS, Arguments

    config.steps = 1
    training.train(config, tmp_path, QUIET)
    drawn = []
    monkeypatch.setattr(
        contact_sheet, "write", lambda path, *sheet: drawn.append((path, *sheet)) or path
    )

    def draw(step):
        flags = {name: default for name, (default, _) in FLAGS.items()} | {"step": step}
        MODES["preview"].run(Arguments("preview", "", config, tmp_path, flags), QUIET)

    draw("1")
    [(path, images, captions)] = drawn
    batch = Run.open(config).host_batch(1)
    assert path == tmp_path / "batch_1.png"
    np.testing.assert_array_equal(images, batch["image"])
    assert captions[0].split()[0] == str(batch["id"][0])
    for step in ("0", "2", "best"):
        with pytest.raises(UserError, match=r"--step .* 1 to 1"):
            draw(step)
