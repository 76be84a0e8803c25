"""The grid, the choice, and the settings of every run."""

import json
from pathlib import Path

import pytest
from PIL import Image

from cone_jax.errors import UserError
from cone_jax.recipes import transfer
from cone_jax.sweeps import runner, transfer_protocol
from cone_jax.sweeps.transfer_protocol import Choice

RECIPE = "configs/transfer.py:folder,32px"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Two learning rates, two decays, 40 + 8 images."""
    monkeypatch.chdir(Path(__file__).parents[2])
    for part, count in (("train", 20), ("test", 4)):
        for name in ("owl", "tit"):
            folder = tmp_path / "birds" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8)).save(folder / f"{i}.png")
    config = transfer.get_config("folder,32px")
    config.data.path = str(tmp_path / "birds")
    config.init_from = "weights.safetensors"
    config.batch_size = 2
    config.transfer.learning_rates = (0.01, 0.1)
    config.transfer.weight_decays = (0.0, 1e-3)
    return config


def plan(config, directory):
    sweep = transfer_protocol.grid(config, RECIPE)
    return runner.plan(sweep, RECIPE, config, directory)


def finish(run, top1):
    run.directory.mkdir(parents=True)
    (run.directory / "result.json").write_text(json.dumps({"test/top1": top1}))


def test_every_rate_meets_every_decay_on_a_part_of_train(config, tmp_path):
    runs = plan(config, tmp_path / "grid")
    settings = [(r.config.optimizer.learning_rate, r.config.optimizer.weight_decay) for r in runs]
    assert settings == [(0.01, 0.0), (0.01, pytest.approx(0.1)), (0.1, 0.0), (0.1, 0.01)]
    for run in runs:
        assert run.config.data.train_split == "train[kept]"
        assert run.config.data.test_split == "train[held_out]"
        assert run.config.init_from == "weights.safetensors"
        # 36 images in batches of 2 are 18 steps: max(1 - 10/18, 0.9).
        assert run.config.model.options.bn_momentum == pytest.approx(0.9)
    assert [run.name for run in runs] == ["0.01_0", "0.01_0.001", "0.1_0", "0.1_0.001"]


def test_statistics_follow_the_steps_of_an_epoch(config, tmp_path):
    config.batch_size = 1  # the test's own: 36 steps, or 40 with the validation images
    config.transfer.train_split = "train+train+train+train"
    assert plan(config, tmp_path)[0].config.model.options.bn_momentum == pytest.approx(1 - 10 / 160)
    config.model.options.bn_momentum = 0.5
    assert plan(config, tmp_path)[0].config.model.options.bn_momentum == 0.5


def test_a_run_does_not_depend_on_the_rest_of_the_grid(config, tmp_path):
    before = plan(config, tmp_path)[0].config
    config.transfer.learning_rates = (0.01, 0.1, 1.0)
    assert plan(config, tmp_path)[0].config.to_dict() == before.to_dict()


def test_the_best_on_validation_is_trained_on_everything(config, tmp_path):
    runs = plan(config, tmp_path / "grid")
    for run, top1 in zip(runs, (0.5, 0.7, 0.6, 0.7), strict=True):
        finish(run, top1)
    choice = transfer_protocol.choose(config, runs)
    assert choice == Choice(0.01, 1e-3, 0.7)
    last = runner.plan(transfer_protocol.final(config, RECIPE, choice), RECIPE, config, tmp_path)
    assert [run.directory for run in last] == [tmp_path / "final_0.01_0.001"]
    final = last[0].config
    assert (final.data.train_split, final.data.test_split) == ("train", "test")
    assert final.optimizer.learning_rate == 0.01
    assert final.optimizer.weight_decay == pytest.approx(0.1)
    # 40 images in batches of 2.
    assert final.model.options.bn_momentum == pytest.approx(0.9)


def test_runs_that_diverged_are_left_out(config, tmp_path):
    runs = plan(config, tmp_path / "grid")
    finish(runs[0], 0.4)
    for run in runs[1:]:
        run.directory.mkdir(parents=True)
        (run.directory / "bad_batches.jsonl").touch()
    assert [transfer_protocol.diverged(run) for run in runs] == [False, True, True, True]
    assert transfer_protocol.choose(config, runs).learning_rate == 0.01
    (runs[0].directory / "result.json").unlink()
    with pytest.raises(UserError, match=r"learning_rates \(0\.01, 0\.1\).*diverged"):
        transfer_protocol.choose(config, runs)
    # Where bad updates are skipped, one of them is no end.
    config.nonfinite.policy = "skip"
    assert not any(transfer_protocol.diverged(run) for run in plan(config, tmp_path / "grid"))


@pytest.mark.parametrize("field", ["learning_rates", "weight_decays", "validation_split"])
def test_a_config_without_a_grid_is_refused(config, field):
    transfer_protocol.check(config)
    config.transfer[field] = type(config.transfer[field])()
    with pytest.raises(UserError, match=rf"transfer\.{field} is empty.*configs/transfer\.py"):
        transfer_protocol.check(config)


def test_something_must_be_fine_tuned(config):
    config.init_from = ""
    with pytest.raises(UserError, match="init_from is empty"):
        transfer_protocol.check(config)
