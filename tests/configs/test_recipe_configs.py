"""Learning rates of the recipes, their options, and a folder from its path alone."""

import jax
import pytest
from PIL import Image

from cone_jax.data import datasets
from cone_jax.distributed import make_mesh
from cone_jax.errors import UserError
from cone_jax.recipes import cifar, folder, imagenet, imagenet_baselines, imagenet_light
from cone_jax.training import train_state


@pytest.mark.parametrize(
    ("recipe", "options", "steps_per_epoch", "rates"),
    [
        # Epoch: rate at its start. Warm-up of 100 epochs, peak 0.4, cosine to a thousandth.
        (cifar, "100", 48, {0: 0.0, 50: 0.2, 100: 0.4, 550: 0.2002, 999: 4.012e-4}),
        (cifar, "strong", 390, {5: 0.025, 10: 0.05, 320: 0.05, 321: 5e-3, 360: 5e-3, 361: 5e-4}),
        (imagenet, "resnet18", 1251, {0: 0.0, 5: 0.4, 50: 0.2167, 99: 5.093e-4}),
        (cifar, "10,supcon", 48, {0: 0.01, 10: 0.5, 505: 0.25025}),
        # 30,000 steps, a tenth of the rate after 5,000 and 7,500.
        (cifar, "10,l_softmax", 390, {0: 0.1, 12.81: 0.1, 12.83: 0.01, 19.22: 0.01, 19.24: 1e-3}),
        (imagenet_baselines, "supcon", 208, {6: 4.8, 12: 9.6, 181: 4.8}),
        (imagenet_baselines, "paco", 5004, {10: 0.04, 205: 0.02, 399: 6.49e-7}),
        (imagenet_baselines, "rsb_a1", 625, {5: 5e-3, 302.5: 2.5005e-3, 600: 1e-6}),
        (imagenet_light, "regnetx_400mf", 1251, {0: 0.08, 5: 0.8}),
        (imagenet_light, "mobilenet_v2", 5004, {0: 0.05, 75: 0.025}),
        (imagenet_light, "shufflenet_v2", 1251, {0: 0.5, 120: 0.25, 180: 0.125, 240: 0.0}),
        (imagenet_light, "deit_tiny", 1251, {0: 1e-6, 20: 1e-3, 160: 5.05e-4, 300: 1e-5}),
    ],
)
def test_published_learning_rates(recipe, options, steps_per_epoch, rates):
    built = train_state.build_learner(
        recipe.get_config(options),
        num_classes=10,
        steps_per_epoch=steps_per_epoch,
        mesh=make_mesh(jax.devices()[:1]),
    )
    for epoch, rate in rates.items():
        step = round(epoch * steps_per_epoch)
        assert float(built.learning_rate(step)) == pytest.approx(rate, rel=2e-3), epoch


@pytest.mark.parametrize(
    ("recipe", "options", "images", "steps"),
    [
        (cifar, "10", 50_000, 48),
        (cifar, "strong", 50_000, 390),
        (imagenet, "resnet50", 1_281_167, 1251),
    ],
)
def test_published_steps_an_epoch(recipe, options, images, steps):
    order = datasets.train_order(recipe.get_config(options), images)
    assert order.steps_per_epoch == steps


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
