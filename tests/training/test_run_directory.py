"""What a run's directory tells: its records, and its network, from there alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import models, workdir
from cone_jax.errors import UserError
from cone_jax.training import run_directory
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir.checkpoints import Checkpoints
from tests.models import random_variables
from tests.tiny_run import write_run


def test_series(tmp_path):
    run = write_run(
        tmp_path / "birds",
        [{"step": 5, "train/loss": 2.0}, {"step": 10, "train/loss": 1.0, "test/top1": 0.5}],
        [{"step": 10, "time/seconds": 7.0}],
    )
    assert run.name == "birds"
    assert run.last_step == 10
    assert run.metric_names() == ["train/loss", "test/top1", "time/seconds"]
    assert run.series("train/loss").steps.tolist() == [5, 10]
    assert run.series("train/loss").values.tolist() == [2.0, 1.0]
    assert run.last("test/top1") == 0.5
    assert run.last("time/seconds") == 7.0
    assert run.last("nothing") is None
    assert run.series("nothing").steps.size == 0


def test_a_run_without_records(tmp_path):
    run = write_run(tmp_path, [])
    assert run.last_step == 0
    assert run.metric_names() == []


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(UserError, match=r"config\.json"):
        RunDirectory.open(tmp_path)


@pytest.fixture
def plain(tiny_config):
    """A config of a plain classifier whose training data have gone, and its encoder."""
    tiny_config.data.source = "image_folder"
    tiny_config.data.path = "gone"
    tiny_config.model.projection = False
    tiny_config.model.name = "resnet8"
    return tiny_config, models.create("resnet8", 3, stem="cifar", width=4, projection=None)


def save(directory, config, states):
    workdir.claim(directory, config)
    with Checkpoints(directory, keep=9) as checkpoints:
        for step, state in states.items():
            checkpoints.save(step, jax.tree.map(jnp.asarray, state), {}, {})


def test_the_checkpoint_asked_for_and_numbers_for_lost_class_names(plain, tmp_path):
    config, encoder = plain
    early, late = (random_variables.draw(encoder, 8, seed) for seed in (0, 1))
    save(tmp_path, config, {3: early, 5: late})
    for step, expected in (("latest", late), (3, early)):
        run = RunDirectory.open(tmp_path).deployed(step)
        jax.tree.map(np.testing.assert_array_equal, run.variables, expected)
    assert run.encoder.spec.num_classes == 3
    assert run.metadata.class_names == ("0", "1", "2")
    assert run.metadata.origin == {"run": tmp_path.name, "step": 3}


def test_class_names_are_kept_when_the_data_are_gone(plain, tmp_path):
    config, encoder = plain
    save(tmp_path, config, {3: random_variables.draw(encoder, 8)})
    workdir.keep_class_names(tmp_path, ("owl", "tit", "Käuzchen"))
    assert RunDirectory.open(tmp_path).deployed().metadata.class_names == ("owl", "tit", "Käuzchen")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('["owl"]', "has 1 names, but the network 3"),
        ("[1, 2, 3]", "list of names"),
        ("[", "cannot"),
    ],
)
def test_class_names_that_cannot_be_right_are_refused(plain, tmp_path, content, message):
    config, encoder = plain
    save(tmp_path, config, {3: random_variables.draw(encoder, 8)})
    (tmp_path / "classes.json").write_text(content)
    with pytest.raises(UserError, match=rf"classes\.json .*{message}"):
        RunDirectory.open(tmp_path).deployed()


def test_the_averaged_network_comes_first(plain, tmp_path):
    config, encoder = plain
    trained, averaged = (random_variables.draw(encoder, 8, seed) for seed in (0, 1))
    save(tmp_path, config, {3: {**trained, "averaged": averaged}})
    run = RunDirectory.open(tmp_path).deployed()
    jax.tree.map(np.testing.assert_array_equal, run.variables, averaged)


def test_a_network_without_its_final_classifier_is_refused(tiny_config, tmp_path):
    tiny_config.objective.name = "supcon"
    head = models.Projection(dim=8, hidden=16)
    encoder = models.create("resnet8", 10, stem="cifar", width=4, projection=head)
    save(tmp_path, tiny_config, {3: random_variables.draw(encoder, 8)})
    with pytest.raises(UserError, match=r"--step \(3\) .* choose a later one"):
        RunDirectory.open(tmp_path).deployed()


def test_resolution_is_that_of_the_test_pictures(tiny_config):
    tiny_config.data.test_transforms = ("resize(12)", "centre_crop(10)")
    assert run_directory.describe(tiny_config, ("a",)).image_size == 10
