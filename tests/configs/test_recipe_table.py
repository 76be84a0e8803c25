"""Every recipe against the published hyper-parameters, and through one abstract step.

The numbers are typed in from the papers and codes, not imported from anywhere.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from cone_jax import config as config_lib
from cone_jax import models, objectives, sharding, training
from cone_jax.config_checks import get_field
from cone_jax.data import datasets, transforms
from cone_jax.models import deit, mobilenet, regnet, resnet, shufflenet
from cone_jax.training import learner as learners
from cone_jax.training import stages
from configs import cifar, digits, folder, imagenet, imagenet_baselines, imagenet_light

IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "imagenet2012": 1_281_167}
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet2012": 1000}

# Short names of what is checked, as the tables of the papers head their columns.
FIELDS = {
    "E": "epochs",
    "B": "batch_size",
    "wd": "optimizer.weight_decay",
    "opt": "optimizer.name",
    "scope": "optimizer.decay_scope",
    "warm": "schedule.warmup_epochs",
    "decay": "schedule.decay",
    "K": "bank.size",
    "N": "objective.cone.neighbours",
    "m0": "ema.momentum",
    "m": "ema.schedule",
    "arch": "model.name",
    "stem": "model.stem",
    "res": "data.image_size",
    "views": "data.views",
    "D": "model.embedding_dim",
    "h": "model.head_hidden",
    "mixup": "mixing.mixup_alpha",
    "cutmix": "mixing.cutmix_alpha",
    "ls": "objective.cone.label_smoothing",
    "objective": "objective.name",
}
D1 = {"E": 1000, "B": 1024, "lr": 0.4, "wd": 1e-4, "warm": 100, "decay": "cosine", "res": 32}
D1 |= {"K": 4096, "N": 32, "arch": "resnet50", "stem": "cifar", "m0": 0.996, "D": 256, "views": 1}
D2 = {"E": 400, "B": 128, "lr": 0.05, "wd": 5e-4, "decay": "steps", "arch": "resnet50"}
D3 = {"E": 100, "B": 1024, "lr": 0.4, "wd": 1e-4, "warm": 5, "decay": "cosine", "res": 224}
D3 |= {"K": 65_536, "N": 512, "m0": 0.996, "views": 1, "stem": "imagenet", "opt": "sgd"}
D4 = D3 | {"E": 350, "views": 2}
D5 = D4 | {"wd": 6e-5, "res": 176, "ls": 0.1, "average.decay": 0.99998, "average.every": 32}
SUPCON_IN = {"E": 350, "B": 6144, "lr": 9.6, "wd": 1e-3, "opt": "lars", "warm": 12, "D": 128}
RSB = {"B": 2048, "opt": "lamb", "warm": 5, "cutmix": 1.0, "scope": "exclude_1d"}
CIFAR_LINEAR = {"E": 100, "B": 512, "wd": 0.0, "decay": "steps"}
RMSPROP = {"E": 90, "opt": "rmsprop", "wd": 1e-6, "decay": "exponential"}
PACO_C = D2 | {"K": 1024, "D": 128, "m0": 0.999, "m": "constant", "views": 2}

# (file, options): (what must hold, what must hold of the linear stage or None)
TABLE = {
    (cifar, "10"): (D1, None),
    (cifar, "100"): (D1, None),
    (cifar, "100,cross_entropy"): (D1 | {"objective": "cross_entropy"}, None),
    (cifar, "100,large_margin"): (D1 | {"objective": "large_margin"}, None),
    (cifar, "100,strong"): (D2 | {"K": 4096, "N": 32}, None),
    (cifar, "100,strong,key_view"): (D2 | {"views": 2}, None),
    (cifar, "100,strong,cross_entropy"): (D2, None),
    (cifar, "10,ce_reference"): ({"E": 500, "B": 1024, "lr": 0.8}, None),
    (cifar, "10,l_softmax"): ({"steps": 30_000, "B": 128, "lr": 0.1, "wd": 5e-4}, None),
    (cifar, "100,paco"): (
        PACO_C | {"objective.paco.alpha": 0.01, "objective.paco.temperature": 0.07},
        None,
    ),
    (cifar, "100,joint_supcon"): (
        PACO_C
        | {"objective.joint_supcon.sup_weight": 0.5, "objective.joint_supcon.temperature": 0.07},
        None,
    ),
    (cifar, "100,simclr"): (
        {"E": 1000, "B": 1024, "lr": 0.5, "wd": 1e-4, "warm": 10, "D": 128, "h": 2048}
        | {"objective.simclr.temperature": 0.5, "views": 2},
        CIFAR_LINEAR | {"lr": 1.0},
    ),
    (cifar, "100,supcon"): (
        {"E": 1000, "B": 1024, "lr": 0.5, "wd": 1e-4, "warm": 10, "D": 128, "h": 2048}
        | {"objective.supcon.temperature": 0.1, "views": 2},
        CIFAR_LINEAR | {"lr": 5.0},
    ),
    **{(imagenet, f"{name},100ep"): (D3 | {"arch": name}, None) for name in imagenet.RESNETS},
    (imagenet, "resnet18,cross_entropy"): (D3 | {"objective": "cross_entropy"}, None),
    (imagenet, "cross_entropy,projection"): (D3 | {"model.projection": True}, None),
    (imagenet, "no_dc"): (D3 | {"objective.cone.dc_weight": 0.0}, None),
    (imagenet, "no_contrast"): (D3 | {"objective.cone.sup_weight": 0.0}, None),
    (imagenet, "no_dc,sup_out"): (D3 | {"objective.cone.contrast": "sup_out"}, None),
    **{
        (imagenet, f"no_dc,contrastive_view,{aug}"): (D3 | {"views": 2}, None)
        for aug in imagenet.AUGMENTATIONS
    },
    (imagenet, "cmsf,with_ce"): (D3 | {"objective.cmsf.ce_weight": 1.0}, None),
    (imagenet, "nnclr,with_ce"): (D3 | {"objective.nnclr.ce_weight": 1.0}, None),
    (imagenet, "resnet50,long"): (D4, None),
    (imagenet, "resnet101,long"): (D4, None),
    (imagenet, "resnet200,long"): (D4 | {"E": 400}, None),
    **{(imagenet, f"{name},timm"): (D5, None) for name in imagenet.RESNETS[:5]},
    (imagenet, "cross_entropy,mixup,300ep"): (D3 | {"E": 300, "mixup": 0.2}, None),
    (imagenet, "cross_entropy,cutmix,300ep"): (D3 | {"E": 300, "cutmix": 1.0}, None),
    (imagenet_baselines, "ce_reference"): ({"E": 200, "B": 6144, "lr": 2.4, "wd": 1e-4}, None),
    (imagenet_baselines, "sl_mlp"): (D3 | {"h": 2048, "D": 256, "model.projection": True}, None),
    (imagenet_baselines, "supcon"): (SUPCON_IN, RMSPROP | {"lr": 1.2}),
    (imagenet_baselines, "resnet101,supcon"): (SUPCON_IN | {"wd": 1e-4}, RMSPROP),
    (imagenet_baselines, "resnet200,supcon"): (
        SUPCON_IN | {"E": 700, "B": 4096, "lr": 3.2, "wd": 1e-4},
        RMSPROP | {"lr": 0.8},
    ),
    (imagenet_baselines, "supcon_bank"): (
        {"E": 350, "B": 1024, "lr": 0.12, "wd": 1e-4, "K": 8192, "m0": 0.999, "D": 128}
        | {"objective.supcon_bank.temperature": 0.07, "views": 2},
        RMSPROP,
    ),
    (imagenet_baselines, "paco"): (
        {"E": 400, "B": 256, "lr": 0.04, "wd": 1e-4, "warm": 10, "K": 8192, "m0": 0.999, "D": 128}
        | {"objective.paco.alpha": 0.05, "objective.paco.temperature": 0.2, "views": 2},
        None,
    ),
    (imagenet_baselines, "resnet200,paco"): ({"E": 400, "arch": "resnet200"}, None),
    (imagenet_baselines, "cmsf"): (
        {"E": 200, "B": 256, "lr": 0.05, "wd": 1e-4, "K": 128_000, "m0": 0.99, "D": 512}
        | {"h": 4096, "model.predictor_hidden": 4096, "objective.cmsf.neighbours": 10},
        RMSPROP,
    ),
    (imagenet_baselines, "nnclr"): (
        {"E": 1000, "K": 98_304, "D": 256, "h": 2048, "model.head_layers": 2, "opt": "lars"}
        | {"objective.nnclr.temperature": 0.1, "model.predictor_hidden": 4096},
        RMSPROP,
    ),
    (imagenet_baselines, "rsb_a1"): (
        RSB
        | {"E": 600, "lr": 5e-3, "wd": 0.01, "mixup": 0.2, "res": 224}
        | {"objective.binary_cross_entropy.label_smoothing": 0.1},
        None,
    ),
    (imagenet_baselines, "rsb_a2"): (
        RSB
        | {"E": 300, "lr": 5e-3, "wd": 0.02, "mixup": 0.1}
        | {"objective.binary_cross_entropy.label_smoothing": 0.0},
        None,
    ),
    (imagenet_baselines, "rsb_a3"): (RSB | {"E": 100, "lr": 8e-3, "res": 160}, None),
    (imagenet_light, "regnetx_400mf"): (
        {"E": 100, "B": 1024, "lr": 0.8, "wd": 5e-5, "warm": 5, "schedule.warmup_start": 0.1}
        | {"arch": "regnetx_400mf", "K": 65_536, "N": 512},
        None,
    ),
    (imagenet_light, "mobilenet_v2"): (
        {"E": 150, "B": 256, "lr": 0.05, "wd": 4e-5, "decay": "cosine", "arch": "mobilenet_v2"},
        None,
    ),
    (imagenet_light, "shufflenet_v2"): (
        {"E": 240, "B": 1024, "lr": 0.5, "wd": 4e-5, "decay": "linear", "scope": "exclude_1d"}
        | {"ls": 0.1, "arch": "shufflenet_v2"},
        None,
    ),
    (imagenet_light, "deit_tiny"): (
        {"E": 300, "B": 1024, "lr": 1e-3, "wd": 0.05, "opt": "adamw", "scope": "exclude_1d"}
        | {"mixup": 0.8, "cutmix": 1.0, "ls": 0.1, "warm": 20, "optimizer.clip_norm": 5.0},
        None,
    ),
    (imagenet_light, "deit_tiny,cross_entropy,no_mixing"): ({"E": 300, "mixup": 0.0}, None),
    (imagenet_light, "deit_tiny,deit_original"): (
        {"warm": 5, "average.decay": 0.99996, "model.options.stochastic_depth": 0.1},
        None,
    ),
}


def case_id(key):
    module, options = key
    return f"{module.__name__.removeprefix('configs.')}:{options}"


def check(config, expected, where):
    for name, value in expected.items():
        if name == "lr":
            peak = learners.optimizers.peak_learning_rate(config.optimizer, config.batch_size)
            assert peak == pytest.approx(value), f"{where} learning rate"
        else:
            found = get_field(config, FIELDS.get(name, name))
            assert found == pytest.approx(value), f"{where} {name}"


def abstract_steps(config, num_classes, num_images):
    """Traces one step of each stage; returns the abstract states."""
    mesh = sharding.make_mesh(jax.devices()[:1])
    for stage in stages.stage_configs(config):
        steps_per_epoch = datasets.train_order(stage, num_images).steps_per_epoch
        prior = (1 / num_classes,) * num_classes
        shapes = {"num_classes": num_classes, "steps_per_epoch": steps_per_epoch, "mesh": mesh}
        state = training.abstract_state(stage, **shapes, class_prior=prior)
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


@pytest.fixture
def shallow(monkeypatch):
    """A block or two a stage: what varies between recipes is not the depth, and tracing costs."""
    for name, variant in resnet.VARIANTS.items():
        shallow = dataclasses.replace(variant, depths=(1,) * len(variant.depths))
        monkeypatch.setitem(resnet.VARIANTS, name, shallow)
    monkeypatch.setattr(deit, "DEPTH", 2)
    monkeypatch.setattr(regnet, "DEPTHS", (1, 1, 1, 1))
    monkeypatch.setattr(shufflenet, "STAGES", tuple((c, 1) for c, _ in shufflenet.STAGES))
    once = tuple((t, c, 1, s) for t, c, _, s in mobilenet.STAGES)
    monkeypatch.setattr(mobilenet, "STAGES", once)


@pytest.mark.parametrize("key", TABLE, ids=case_id)
def test_recipe_has_the_published_numbers_and_takes_a_step(key, shallow):
    module, options = key
    expected, expected_stage = TABLE[key]
    config = module.get_config(options)
    config_lib.validate(config)
    check(config, expected, "run:")
    later = stages.stage_configs(config)[1:]
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
    sections = [stage.to_dict() for stage in stages.stage_configs(config)]
    for section in sections:
        for name in ("epochs", "steps", "schedule", "ema", "log_every", "evaluation", "checkpoint"):
            del section[name]
        section["data"] = {name: section["data"][name] for name in ("image_size", "views", "name")}
        section["model"]["name"] = repr(resnet.VARIANTS.get(config.model.name, config.model.name))
    return repr(sections)


def test_the_table_leaves_no_objective_and_no_light_network_out():
    used = {module.get_config(options).objective.name for module, options in TABLE}
    # Plain binary cross-entropy is rsb; the linear objective is a stage of others.
    assert used == set(objectives.names()) - {"linear"}
    nets = {module.get_config(options).model.name for module, options in TABLE}
    assert nets == set(models.names()) - {"resnet8", "resnet14", "resnet20"}


def test_a_whole_network_takes_an_abstract_step():
    abstract_steps(imagenet.get_config("resnet50,100ep"), 1000, IMAGES["imagenet2012"])


@pytest.mark.parametrize("module", [digits, folder])
@pytest.mark.parametrize("name", objectives.names())
def test_every_method_fits_every_recipe(module, name):
    config_lib.validate(module.get_config(name))


def test_linear_stages_follow_their_schedules():
    mesh = sharding.make_mesh(jax.devices()[:1])
    stage = stages.stage_configs(cifar.get_config("100,supcon"))[1]
    learner = learners.build(stage, num_classes=100, steps_per_epoch=97, mesh=mesh)
    rates = [float(learner.learning_rate(epoch * 97)) for epoch in (0, 59, 60, 75, 90)]
    assert rates == pytest.approx([5.0, 5.0, 1.0, 0.2, 0.04])
    stage = stages.stage_configs(imagenet_baselines.get_config("supcon"))[1]
    learner = learners.build(stage, num_classes=1000, steps_per_epoch=208, mesh=mesh)
    rates = [float(learner.learning_rate(step)) for step in (0, 103, 104, 208)]
    assert rates == pytest.approx([1.2, 1.2, 1.2 * 0.97, 1.2 * 0.97**2])
