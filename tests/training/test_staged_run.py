"""A run on data from a bucket equals the run on the same data from a disk, bit for bit."""

import os
import signal

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from cone_jax import training
from cone_jax.data import packing
from cone_jax.errors import Interrupted
from cone_jax.training import loop
from cone_jax.training.run import Run
from cone_jax.workdir import load_config
from cone_jax.workdir.checkpoints import Checkpoints
from cone_jax.workdir.metrics import METRICS_FILE
from tests import object_stores, tiny_run

STEPS = 8


@pytest.fixture
def packed(tmp_path):
    """120 pictures of noise in three classes, packed into twelve files."""
    noise = np.random.default_rng(0)
    for index in range(120):
        file = tmp_path / "photos" / "abc"[index % 3] / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (10, 12, 3), np.uint8)).save(file)
    out = tmp_path / "packed"
    packing.pack_folder(str(tmp_path / "photos"), str(out), shard_size=10, report=lambda line: None)
    return out


def config_of(path: str, stage: str) -> ConfigDict:
    config = tiny_run.config()
    config.steps, config.log_every = STEPS, 1
    config.data.source, config.data.path, config.data.stage = "packed", path, stage
    config.data.train_transforms = ("random_resized_crop(8)", "flip")
    config.data.test_transforms = ("resize(8)", "centre_crop(8)")
    config.checkpoint.every_epochs = 1.0
    return config


def final_state(workdir):
    run = Run.open(load_config(workdir))
    with Checkpoints(workdir, read_only=True) as checkpoints:
        return jax.tree.leaves(checkpoints.restore(STEPS, run.abstract_state()).state)


def test_a_run_on_staged_data_interrupted_on_the_way_equals_one_on_a_disk(
    packed, tmp_path, monkeypatch
):
    training.train(config_of(str(packed), ""), tmp_path / "here")
    with object_stores.gcs() as store:
        url = store.put(packed, "packed")
        real, taken = loop.train_step, []

        def step(state, batch):
            taken.append(None)
            if len(taken) == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(state, batch)

        monkeypatch.setattr(loop, "train_step", step)
        with pytest.raises(Interrupted):
            training.train(config_of(url, str(tmp_path / "one")), tmp_path / "there")
        # On another machine, with nothing staged.
        training.train(config_of(url, str(tmp_path / "other")), tmp_path / "there")
        assert len(taken) == STEPS
        there = final_state(tmp_path / "there")
    for leaf, expected in zip(there, final_state(tmp_path / "here"), strict=True):
        np.testing.assert_array_equal(leaf, expected)
    metrics = (tmp_path / "there" / METRICS_FILE).read_bytes()
    assert metrics == (tmp_path / "here" / METRICS_FILE).read_bytes()
