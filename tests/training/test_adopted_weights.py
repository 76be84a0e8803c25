"""The network behind `init_from`: known from a run or an export, checked in any case."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import models, workdir
from cone_jax.errors import UserError
from cone_jax.interop import files, metadata
from cone_jax.recipes import transfer
from cone_jax.training import pretrained
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir.checkpoints import Checkpoints
from tests.models import random_variables

ROOT = Path(__file__).parents[2]
RECIPE = "configs/transfer.py:folder,32px"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Fine-tuning on three classes of 8x8 images."""
    monkeypatch.chdir(ROOT)
    for split in ("train", "test"):
        images, labels = np.zeros((6, 8, 8, 3), np.uint8), np.arange(6) % 3
        np.savez(tmp_path / f"{split}.npz", images=images, labels=labels)
    config = transfer.get_config("folder,32px")
    config.data.source = "array"
    config.data.path = str(tmp_path)
    return config


@pytest.fixture
def run(tiny_config, tmp_path):
    """A finished run of CoNe with a network of width 4 and two checkpoints."""
    tiny_config.model.name = "resnet8"
    tiny_config.data.mean = (0.1, 0.2, 0.3)
    head = models.Projection(dim=8, hidden=16)
    encoder = models.create("resnet8", 10, stem="cifar", projection=head, width=4)
    directory = tmp_path / "pretrained"
    workdir.claim(directory, tiny_config)
    with Checkpoints(directory, keep=9) as checkpoints:
        for step in (3, 5):
            state = jax.tree.map(jnp.asarray, random_variables.draw(encoder, 8, step))
            checkpoints.save(step, state, {}, {})
    return directory


def test_a_run_says_what_it_is(config, run):
    config.init_from = str(run)
    adopted = pretrained.adopt(config, RECIPE, "latest")
    assert adopted.init_from == str(run / "checkpoints" / "5")
    assert (adopted.model.name, adopted.model.stem) == ("resnet8", "cifar")
    assert adopted.model.options.width == 4
    assert adopted.data.mean == (0.1, 0.2, 0.3)
    assert not adopted.model.projection
    assert config.model.name == "resnet50"  # the original is as it was
    account = pretrained.check_weights(adopted)
    assert "2 of the classifier initialised anew" in account
    again = pretrained.adopt(adopted, RECIPE, "latest")
    assert again.to_dict() == adopted.to_dict()


def test_the_step_is_the_users(config, run):
    config.init_from = str(run)
    assert pretrained.adopt(config, RECIPE, "3").init_from == str(run / "checkpoints" / "3")
    with pytest.raises(UserError, match=r"--step \(4\)"):
        pretrained.adopt(config, RECIPE, "4")


def test_an_export_says_what_it_is(config, run, tmp_path):
    trained = RunDirectory.open(run).deployed()
    (tmp_path / "out").mkdir()
    files.write_orbax(tmp_path / "out" / "weights", trained.variables)
    spec = trained.encoder.spec
    metadata.write(tmp_path / "out", "orbax", "weights", spec, trained.metadata)
    config.init_from = str(tmp_path / "out")
    adopted = pretrained.adopt(config, RECIPE, "latest")
    assert (adopted.model.name, adopted.model.options.width) == ("resnet8", 4)
    assert adopted.data.mean == (0.1, 0.2, 0.3)
    pretrained.check_weights(adopted)


def test_what_the_user_sets_stays_and_must_fit(config, run):
    config.init_from = str(run)
    config.model.options.width = 8
    adopted = pretrained.adopt(config, RECIPE, "latest")
    assert adopted.model.options.width == 8
    with pytest.raises(UserError, match=r"does not fit the backbone of resnet8: .*model\.name"):
        pretrained.check_weights(adopted)


def test_a_head_that_would_stay_random_is_refused(config, run):
    """Its embedding would look like one that was trained."""
    config.init_from = str(run)
    config.model.projection = True  # of 256 dimensions; the run's has 8
    adopted = pretrained.adopt(config, RECIPE, "latest")
    with pytest.raises(UserError, match=r"/projection/.*model\.projection to False"):
        pretrained.check_weights(adopted)


def test_of_bare_weights_nothing_is_known(config, tmp_path):
    config.init_from = str(tmp_path / "resnet50.safetensors")
    assert pretrained.adopt(config, RECIPE, "latest").to_dict() == config.to_dict()
