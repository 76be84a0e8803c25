"""Weights & Biases: only when asked, the same numbers, one id for one run."""

import sys
import types
from pathlib import Path

import pytest

from cone_jax import config as config_lib
from cone_jax import storage
from cone_jax.errors import UserError
from cone_jax.workdir import metrics
from cone_jax.workdir.metrics import MetricWriter, WandbMirror
from tests import object_stores


class Recorder:
    """What the package gives back from ``init``."""

    def __init__(self):
        self.logged, self.finished = [], False

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def starts(monkeypatch):
    """A stand-in for the package; the list of runs it was asked to start."""
    found = []

    def init(**options):
        found.append((options, Recorder()))
        return found[-1][1]

    module = types.ModuleType("wandb")
    module.init = init
    module.__spec__ = types.SimpleNamespace(name="wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    return found


@pytest.fixture
def config():
    config = config_lib.default()
    config.wandb_project = "birds"
    return config


def test_numbers_go_both_ways(starts, config, tmp_path):
    metrics.check_wandb(config)
    with MetricWriter(tmp_path, 0, WandbMirror(config, tmp_path)) as writer:
        writer.write(5, {"train/loss": 1.5})
        writer.write_timing(5, {"time/seconds": 2.0})
    options, run = starts[0]
    assert run.logged == [(5, {"train/loss": 1.5}), (5, {"time/seconds": 2.0})]
    assert run.finished
    assert options["project"] == "birds"
    assert options["config"]["bank"]["size"] == config.bank.size
    assert '"train/loss": 1.5' in (tmp_path / "metrics.jsonl").read_text()


def test_a_run_that_goes_on_keeps_its_id(starts, config, tmp_path):
    for directory in ("a", "a", "b"):
        (tmp_path / directory).mkdir(exist_ok=True)
        WandbMirror(config, tmp_path / directory)
    ids = [options["id"] for options, _ in starts]
    assert ids[0] == ids[1] != ids[2]
    assert all(options["resume"] == "allow" for options, _ in starts)


def test_of_a_run_in_a_bucket_its_own_files_are_nowhere_but_in_a_folder_for_a_while(
    starts, config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with object_stores.gcs() as store:
        mirror = WandbMirror(config, storage.path(f"{store.url}/run"))
        options, run = starts[0]
        assert options["name"] == "run"
        assert options["id"] == storage.path(f"{store.url}/run/wandb_id.txt").read_text()
        assert Path(options["dir"]).is_dir()
        mirror.close()
    assert run.finished
    assert not Path(options["dir"]).exists()
    assert not list(tmp_path.iterdir())


def test_without_the_package_it_is_refused(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"wandb_project \('birds'\) needs the package wandb"):
        metrics.check_wandb(config)
    config.wandb_project = ""
    metrics.check_wandb(config)
