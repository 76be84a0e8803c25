"""Every recipe against the published hyper-parameters, and through one abstract step."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from cone_jax import config as config_lib
from cone_jax import distributed, models, objectives, training
from cone_jax.config import get_field, stage_configs
from cone_jax.data import datasets, transforms
from cone_jax.models import deit, mobilenet, regnet, resnet, shufflenet
from cone_jax.recipes import (
    cifar,
    cifar_small,
    digits,
    finetune,
    folder,
    imagenet,
    imagenet_baselines,
    imagenet_light,
    transfer,
)
from cone_jax.training import optimizers, train_state
from tests.configs.published_recipes import FIELDS, RECIPES
from tests.models import timm_oracle

ROOT = Path(__file__).parents[2]

PAPERS = {
    "cifar": cifar,
    "imagenet": imagenet,
    "imagenet_baselines": imagenet_baselines,
    "imagenet_light": imagenet_light,
}
# Recipes of our own, or of another protocol: (options, classes, training images).
OTHERS = {
    "cifar_small": (cifar_small, "", 100, 3_000),
    "digits": (digits, "", 10, 1_437),
    "finetune": (finetune, "early", 5, 3_000),
    "folder": (folder, "", 5, 3_000),
    "transfer": (transfer, "dtd", 47, 3_760),
}
IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "imagenet2012": 1_281_167}
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet2012": 1000}


def check(config, expected, where):
    for name, value in expected.items():
        if name == "lr":
            peak = optimizers.peak_learning_rate(config.optimizer, config.batch_size)
            assert peak == pytest.approx(value), f"{where} learning rate"
            continue
        found = get_field(config, FIELDS.get(name, name))
        if name in ("aug", "key_aug", "test"):
            found, value = transforms.parse(found), transforms.parse(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        assert found == (pytest.approx(value) if number else value), f"{where} {name}"


def abstract_steps(config, num_classes, num_images):
    """Traces one step of each stage, which leaves every shape of the state as it was."""
    mesh = distributed.make_mesh(jax.devices()[:1])
    for stage in stage_configs(config):
        steps_per_epoch = datasets.train_order(stage, num_images).steps_per_epoch
        prior = (1 / num_classes,) * num_classes
        learner = train_state.build_learner(
            stage,
            num_classes=num_classes,
            steps_per_epoch=steps_per_epoch,
            mesh=mesh,
            class_prior=prior,
        )
        state = training.abstract_state(learner)
        size, views = stage.data.image_size, stage.data.views
        pixels = (size, size, 3) if views == 1 else (2, size, size, 3)
        batch = {
            "image": jax.ShapeDtypeStruct((stage.batch_size, *pixels), jnp.uint8),
            "label": jax.ShapeDtypeStruct((stage.batch_size,), jnp.int32),
            "id": jax.ShapeDtypeStruct((stage.batch_size,), jnp.int32),
        }
        after, metrics = jax.eval_shape(training.train_step, state, batch)
        assert jax.tree.map(lambda x: x.shape, after) == jax.tree.map(lambda x: x.shape, state)
        assert metrics["loss"].shape == ()


def recipe(key):
    name, options = key
    return PAPERS[name].get_config(options)


@pytest.fixture
def shallow(monkeypatch):
    """A block or two a stage: what varies between recipes is not the depth, and tracing costs."""
    for name, variant in resnet.VARIANTS.items():
        shallow = dataclasses.replace(variant, depths=(1,) * len(variant.depths))
        monkeypatch.setitem(resnet.VARIANTS, name, shallow)
    for name, variant in deit.VARIANTS.items():
        monkeypatch.setitem(deit.VARIANTS, name, dataclasses.replace(variant, depth=2))
    monkeypatch.setattr(regnet, "DEPTHS", (1, 1, 1, 1))
    monkeypatch.setattr(shufflenet, "STAGES", tuple((c, 1) for c, _ in shufflenet.STAGES))
    once = tuple((t, c, 1, s) for t, c, _, s in mobilenet.STAGES)
    monkeypatch.setattr(mobilenet, "STAGES", once)


@pytest.mark.parametrize("key", RECIPES, ids=":".join)
def test_recipe_has_the_published_numbers_and_takes_a_step(key, shallow):
    expected, expected_stage = RECIPES[key]
    config = recipe(key)
    config_lib.validate(config)
    check(config, expected, "run:")
    later = stage_configs(config)[1:]
    assert bool(later) == (expected_stage is not None)
    for stage in later:
        check(stage, expected_stage, "linear stage:")
    size = config.data.image_size
    for specs in (config.data.train_transforms, config.data.key_transforms):
        assert not specs or transforms.parse(specs).output_size() == (size, size)
    with pytest.raises(AttributeError):
        config.data.pth = "x"
    program = program_of(config)
    if program not in TRACED:
        abstract_steps(config, CLASSES[config.data.name], IMAGES[config.data.name])
        TRACED.add(program)


TRACED: set[str] = set()


def program_of(config):
    """What the traced step depends on: recipes that differ elsewhere only share one trace."""
    sections = [stage.to_dict() for stage in stage_configs(config)]
    for section in sections:
        for name in ("epochs", "steps", "schedule", "ema", "log_every", "evaluation", "checkpoint"):
            del section[name]
        section["data"] = {name: section["data"][name] for name in ("image_size", "views", "name")}
        section["model"]["name"] = repr(resnet.VARIANTS.get(config.model.name, config.model.name))
    return repr(sections)


def test_the_table_leaves_no_recipe_no_objective_and_no_network_out():
    files = {path.stem for path in Path(imagenet.__file__).parent.glob("*.py")}
    # coco.py has a table of its own: tests/configs/test_coco_recipe.py.
    assert files == PAPERS.keys() | OTHERS.keys() | {"coco"}
    configs = [recipe(key) for key in RECIPES]
    # The linear objective is a stage of others.
    assert {config.objective.name for config in configs} == set(objectives.exchangeable()) - {
        "linear"
    }
    small = {"resnet8", "resnet14", "resnet20"}
    not_in_paper = {name for name in timm_oracle.TIMM if name != "deit_tiny"}
    assert {config.model.name for config in configs} == set(models.names()) - small - not_in_paper
    for file, options in RECIPES:
        documented = PAPERS[file].__doc__
        for option in options.split(","):
            assert option in documented, f"{file} says nothing of {option}"


@pytest.mark.parametrize("name", OTHERS)
def test_recipes_of_our_own_take_a_step(name, shallow):
    module, options, num_classes, num_images = OTHERS[name]
    config = module.get_config(options)
    config_lib.validate(config)
    abstract_steps(config, num_classes, num_images)


@pytest.mark.parametrize("module", [*PAPERS.values(), *(other[0] for other in OTHERS.values())])
def test_a_recipe_says_how_to_run_it_and_whose_its_numbers_are(module):
    text = " ".join(module.__doc__.split())
    name = module.__name__.removeprefix("cone_jax.recipes.")
    assert f"--config=configs/{name}.py" in text
    if module in PAPERS.values():
        assert "paper (arXiv 2308.10761)" in text
        assert "not measured here" in text
        assert "esign choice" in text


def test_a_whole_network_takes_an_abstract_step():
    abstract_steps(imagenet.get_config("resnet50,100ep"), 1000, IMAGES["imagenet2012"])


def test_every_open_point_of_the_method_is_a_field():
    text = (ROOT / "docs" / "recipes.md").read_text()
    section = text.split("## What neither the paper nor its code settles")[1].split("\n## ")[0]
    points = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(points) == 16
    for _, _, fields in points:
        for field in re.findall(r"`([a-z_.]+)`", fields):
            get_field(config_lib.default(), field)  # or AttributeError


@pytest.mark.parametrize("module", [digits, folder])
@pytest.mark.parametrize("name", objectives.exchangeable())
def test_every_method_fits_every_recipe(module, name):
    config_lib.validate(module.get_config(name))


def test_linear_stages_follow_their_schedules():
    mesh = distributed.make_mesh(jax.devices()[:1])
    stage = stage_configs(cifar.get_config("100,supcon"))[1]
    learner = train_state.build_learner(stage, num_classes=100, steps_per_epoch=97, mesh=mesh)
    rates = [float(learner.learning_rate(epoch * 97)) for epoch in (0, 59, 60, 75, 90)]
    assert rates == pytest.approx([5.0, 5.0, 1.0, 0.2, 0.04])
    stage = stage_configs(imagenet_baselines.get_config("supcon"))[1]
    learner = train_state.build_learner(stage, num_classes=1000, steps_per_epoch=208, mesh=mesh)
    rates = [float(learner.learning_rate(step)) for step in (0, 103, 104, 208)]
    assert rates == pytest.approx([1.2, 1.2, 1.2 * 0.97, 1.2 * 0.97**2])


def test_the_averaged_model_of_the_timm_recipe_is_torchvisions():
    mesh = distributed.make_mesh(jax.devices()[:1])
    config = imagenet.get_config("resnet50,timm")
    averaging = train_state.build_learner(
        config, num_classes=10, steps_per_epoch=1251, mesh=mesh
    ).averaging
    assert averaging.decay == pytest.approx(0.998128, abs=1e-6)
    assert (averaging.every, averaging.copy_steps) == (32, 5 * 1251)
