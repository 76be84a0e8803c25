"""The recipes against the numbers that the paper and its code state."""

import jax
import pytest
from PIL import Image

from cone_jax import config as config_lib
from cone_jax import models
from cone_jax.data import datasets, transforms
from cone_jax.errors import UserError
from cone_jax.sharding import make_mesh
from cone_jax.training import learner
from configs import cifar, folder, imagenet

RECIPES = [
    (cifar, ""),
    (cifar, "10"),
    (cifar, "100,strong"),
    (cifar, "10,cross_entropy,paper"),
    *((imagenet, f"{name},100ep") for name in imagenet.RESNETS),
    (imagenet, "cross_entropy"),
    (folder, ""),
    (folder, "small,resnet50"),
]


@pytest.mark.parametrize(("recipe", "options"), RECIPES)
def test_every_recipe_is_complete(recipe, options):
    config = recipe.get_config(options)
    config_lib.validate(config)
    assert config.model.name in models.names()
    size = config.data.image_size
    assert transforms.parse(config.data.train_transforms).output_size() == (size, size)
    if config.data.test_transforms:
        assert transforms.parse(config.data.test_transforms).output_size() == (size, size)
    with pytest.raises(AttributeError):
        config.data.pth = "x"


@pytest.mark.parametrize(
    ("recipe", "options", "images", "steps", "bank", "neighbours", "weight_decay"),
    [
        (cifar, "10", 50_000, 48, 4096, 32, 1e-4),
        (cifar, "strong", 50_000, 390, 4096, 32, 5e-4),
        (imagenet, "resnet50", 1_281_167, 1251, 65_536, 512, 1e-4),
    ],
)
def test_published_sizes(recipe, options, images, steps, bank, neighbours, weight_decay):
    config = recipe.get_config(options)
    assert datasets.train_order(config, images).steps_per_epoch == steps
    assert config.bank.size == bank
    assert config.objective.cone.neighbours == neighbours
    assert config.optimizer.weight_decay == weight_decay


@pytest.mark.parametrize(
    ("recipe", "options", "steps_per_epoch", "rates"),
    [
        # Epoch: rate at its start. Warm-up of 100 epochs, peak 0.4, cosine to a thousandth.
        (cifar, "100", 48, {0: 0.0, 50: 0.2, 100: 0.4, 550: 0.2002, 999: 4.012e-4}),
        (cifar, "strong", 390, {5: 0.025, 10: 0.05, 320: 0.05, 321: 5e-3, 360: 5e-3, 361: 5e-4}),
        (imagenet, "resnet18", 1251, {0: 0.0, 5: 0.4, 50: 0.2167, 99: 5.093e-4}),
    ],
)
def test_published_learning_rates(recipe, options, steps_per_epoch, rates):
    built = learner.build(
        recipe.get_config(options),
        num_classes=10,
        steps_per_epoch=steps_per_epoch,
        mesh=make_mesh(jax.devices()[:1]),
    )
    for epoch, rate in rates.items():
        assert float(built.learning_rate(epoch * steps_per_epoch)) == pytest.approx(rate, rel=2e-3)


def test_the_order_of_options_does_not_matter():
    first, second = (cifar.get_config(options) for options in ("strong,100", "100,strong"))
    assert first.to_dict() == second.to_dict()
    assert first.data.mean == (0.4914, 0.4822, 0.4465)
    assert cifar.get_config("100").data.mean == (0.5071, 0.4867, 0.4408)


def test_an_unknown_option_is_named():
    with pytest.raises(UserError, match="did you mean 'resnet50'"):
        imagenet.get_config("resnet51")


def test_a_folder_trains_from_its_path_alone(tmp_path):
    for name in ("owl", "tit"):
        (tmp_path / name).mkdir()
        for i in range(20):
            Image.new("RGB", (50, 40)).save(tmp_path / name / f"{i}.jpg")
    config = folder.get_config("small")
    config.data.path = str(tmp_path)
    dataset = datasets.open_dataset(config.data)
    assert (len(dataset.train), len(dataset.test)) == (36, 4)
    batch = datasets.train_batches(config, dataset.train, num_steps=1)[0]
    assert batch["image"].shape == (64, 96, 96, 3)
    assert set(batch["label"].tolist()) == {0, 1}
