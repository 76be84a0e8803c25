"""The fine-tuning recipe against SimCLR's published protocol."""

import jax
import numpy as np
import pytest

from cone_jax import config as config_lib
from cone_jax.data import transforms
from cone_jax.distributed import make_mesh
from cone_jax.recipes import transfer
from cone_jax.training import train_state

# TFDS name, parts of the grid, part of the last run, test part, metric: typed from the protocol.
SETS = {
    "cifar10": ("cifar10:3.0.2", "train[:45000]", "train[45000:]", "train", "test", "top1"),
    "cifar100": ("cifar100:3.0.2", "train[:45000]", "train[45000:]", "train", "test", "top1"),
    "food101": ("food101:2.1.0", "train[:90%]", "train[90%:]", "train", "validation", "top1"),
    "cars": ("cars196:2.1.0", "train[:90%]", "train[90%:]", "train", "test", "top1"),
    "dtd": ("dtd:3.0.1", "train", "validation", "train+validation", "test", "top1"),
    "pets": (
        "oxford_iiit_pet:4.0.0", "train[:90%]", "train[90%:]", "train", "test", "mean_per_class",
    ),
    "flowers": (
        "oxford_flowers102:2.1.1", "train", "validation", "train+validation", "test",
        "mean_per_class",
    ),
    "aircraft": ("", "train", "validation", "train+validation", "test", "mean_per_class"),
    "caltech101": (
        "caltech101:3.0.2", "train[:90%]", "train[90%:]", "train", "test", "mean_per_class",
    ),
}  # fmt: skip


def parts(config):
    grid, data = config.transfer, config.data
    splits = (grid.train_split, grid.validation_split, data.train_split, data.test_split)
    return (data.name, *splits, grid.metric)


@pytest.mark.parametrize("name", SETS)
def test_parts_and_metrics_of_the_nine_sets(name):
    config = transfer.get_config(name)
    config_lib.validate(config)
    assert parts(config) == SETS[name]
    assert config.data.source == ("fgvc_aircraft" if name == "aircraft" else "tfds")


def test_the_protocol():
    config = transfer.get_config("dtd")
    rates, decays = config.transfer.learning_rates, config.transfer.weight_decays
    np.testing.assert_allclose(rates, np.logspace(-4, -1, 7), rtol=1e-4)
    np.testing.assert_allclose(decays, [0.0, *np.logspace(-6, -3, 7)], rtol=1e-4)
    assert (config.steps, config.batch_size) == (20_000, 256)
    assert config.optimizer.nesterov
    assert config.optimizer.momentum == 0.9
    assert config.objective.name == "cross_entropy"
    assert not config.model.projection
    assert transforms.parse(config.data.test_transforms).output_size() == (224, 224)
    assert config.data.test_transforms[0].startswith("resize(256")
    built = train_state.build_learner(
        config, num_classes=47, steps_per_epoch=7, mesh=make_mesh(jax.devices()[:1])
    )
    peak = config.optimizer.learning_rate
    for step, share in ((0, 1.0), (10_000, 0.5), (20_000, 0.0)):
        assert float(built.learning_rate(step)) == pytest.approx(share * peak, abs=1e-6)


def test_a_folder_keeps_the_metric_and_the_column_of_its_set():
    own = transfer.get_config("")
    assert parts(own) == ("", "train[kept]", "train[held_out]", "train", "test", "top1")
    pets = transfer.get_config("folder,pets")
    assert (pets.data.source, pets.transfer.name) == ("image_folder", "Pets")
    assert parts(pets) == (*parts(own)[:-1], "mean_per_class")
    with_val = transfer.get_config("val_folder,dtd")
    assert parts(with_val) == ("", "train", "validation", "train+validation", "test", "top1")


def test_small_machines():
    config = transfer.get_config("pets,small,32px")
    assert len(config.transfer.learning_rates) * len(config.transfer.weight_decays) == 4
    assert config.data.image_size == 32
    assert transforms.parse(config.data.test_transforms).output_size() == (32, 32)
    config_lib.validate(config)
