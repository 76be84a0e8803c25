"""A run's network from its directory alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import models, trained_run, workdir
from cone_jax.errors import UserError
from cone_jax.workdir.checkpoints import Checkpoints
from tests.models import random_variables


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
        run = trained_run.open_run(tmp_path, step)
        jax.tree.map(np.testing.assert_array_equal, run.variables, expected)
    assert run.encoder.spec.num_classes == 3
    assert run.metadata.class_names == ("0", "1", "2")
    assert run.metadata.origin == {"run": tmp_path.name, "step": 3}


def test_class_names_are_kept_when_the_data_are_gone(plain, tmp_path):
    config, encoder = plain
    save(tmp_path, config, {3: random_variables.draw(encoder, 8)})
    workdir.keep_class_names(tmp_path, ("owl", "tit", "Käuzchen"))
    assert trained_run.open_run(tmp_path).metadata.class_names == ("owl", "tit", "Käuzchen")


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
        trained_run.open_run(tmp_path)


def test_the_averaged_network_comes_first(plain, tmp_path):
    config, encoder = plain
    trained, averaged = (random_variables.draw(encoder, 8, seed) for seed in (0, 1))
    save(tmp_path, config, {3: {**trained, "averaged": averaged}})
    run = trained_run.open_run(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, run.variables, averaged)


def test_a_network_without_its_final_classifier_is_refused(tiny_config, tmp_path):
    tiny_config.objective.name = "supcon"
    head = models.Projection(dim=8, hidden=16)
    encoder = models.create("resnet8", 10, stem="cifar", width=4, projection=head)
    save(tmp_path, tiny_config, {3: random_variables.draw(encoder, 8)})
    with pytest.raises(UserError, match=r"--step \(3\) .* choose a later one"):
        trained_run.open_run(tmp_path)


def test_resolution_is_that_of_the_test_pictures(tiny_config):
    tiny_config.data.test_transforms = ("resize(12)", "centre_crop(10)")
    assert trained_run.describe(tiny_config, ("a",)).image_size == 10
