"""Fine-tuning: a rate of its own for the backbone, the head first, and an early end."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

from cone_jax import models, training
from cone_jax.config import load_recipe
from cone_jax.errors import Interrupted, UserError
from cone_jax.evaluation import accuracy
from cone_jax.settings import Optimizer
from cone_jax.training import loop, optimizers
from cone_jax.training.run import Run
from cone_jax.training.train_step import train_step
from cone_jax.workdir.metrics import read_records
from tests import tiny_run

QUIET = Console(quiet=True)


@pytest.mark.parametrize("name", sorted(optimizers.OPTIMIZERS))
def test_the_backbone_follows_at_its_own_rate_once_the_head_has_begun(name):
    """Its steps are those of the same optimiser at a tenth of the rate, as long as that is all."""
    params = {"backbone": {"kernel": jnp.ones(3)}, "classifier": {"kernel": jnp.ones(3)}}
    grads = jax.tree.map(lambda x: x * jnp.array([0.1, -0.2, 0.3]), params)
    settings = {"name": name, "learning_rate": 0.1, "weight_decay": 0.01}
    plain = optimizers.create(Optimizer(**settings), optax.constant_schedule(0.1))
    own = optimizers.create(
        Optimizer(**settings, backbone_rate=0.1, head_epochs=0.5),
        optax.constant_schedule(0.1),
        steps_per_epoch=4,
    )
    states = plain.init(params), own.init(params)
    for step in range(4):
        expected, first = plain.update(grads, states[0], params)
        found, second = own.update(grads, states[1], params)
        states = first, second
        np.testing.assert_array_equal(
            found["classifier"]["kernel"], expected["classifier"]["kernel"]
        )
        factor = 0.0 if step < 2 else 0.1
        np.testing.assert_allclose(
            found["backbone"]["kernel"], factor * expected["backbone"]["kernel"], rtol=1e-6
        )


@pytest.mark.parametrize("name", sorted(optimizers.OPTIMIZERS))
def test_the_rate_falls_from_layer_to_layer(name):
    """Of n layers, layer i has rate x backbone_rate x decay^(n - 1 - i); the head its own."""
    parts = ("conv1", "bn1", "layer1_0", "layer1_1", "layer2_0", "layer10_0")
    exponents = dict(zip(parts, (4, 4, 3, 2, 1, 0), strict=True))
    one = {"kernel": jnp.array([1.0, -2.0, 3.0])}
    params = {"backbone": dict.fromkeys(parts, one), "classifier": one}
    grads = jax.tree.map(lambda x: 0.1 * x**2, params)
    settings = {"name": name, "learning_rate": 0.1, "weight_decay": 0.01}
    plain = optimizers.create(Optimizer(**settings), optax.constant_schedule(0.1))
    own = optimizers.create(
        Optimizer(**settings, backbone_rate=0.5, layer_decay=0.7), optax.constant_schedule(0.1)
    )
    expected, _ = plain.update(grads, plain.init(params), params)
    found, _ = own.update(grads, own.init(params), params)
    np.testing.assert_array_equal(found["classifier"]["kernel"], expected["classifier"]["kernel"])
    for part, exponent in exponents.items():
        np.testing.assert_allclose(
            found["backbone"][part]["kernel"],
            0.5 * 0.7**exponent * expected["backbone"][part]["kernel"],
            rtol=1e-6,
        )


LAYERS = {"resnet18": 9, "mobilenet_v2": 19, "deit_tiny": 14, "convnext_tiny": 20}


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_of_real_networks(name):
    """A stem, the blocks in order, and what follows them where there is something."""
    encoder = models.create(name, 3)
    backbone = models.abstract_variables(encoder, 224)["params"]["backbone"]
    place = optimizers.layers(backbone)
    assert place.keys() == backbone.keys()
    assert sorted(set(place.values())) == list(range(LAYERS[name]))
    if name == "mobilenet_v2":
        assert [place[part] for part in ("stem_bn", "block2", "block17", "last_conv")] == [
            0, 2, 17, 18,
        ]  # fmt: skip
    if name == "convnext_tiny":
        assert place["downsample3_norm"] == place["stage3_0"] == place["stage2_2"] + 1


def test_a_backbone_without_numbers_has_no_layers():
    params = {"backbone": {"first": jnp.ones(3), "second": jnp.ones(3)}}
    optimizer = optimizers.create(Optimizer(layer_decay=0.7), optax.constant_schedule(0.1))
    with pytest.raises(UserError, match=r"optimizer\.layer_decay needs .* first, second"):
        optimizer.init(params)


def test_without_it_the_state_of_an_optimiser_is_what_it_was():
    params = {"backbone": {"kernel": jnp.ones(3)}}
    states = [
        optimizers.create(Optimizer(), optax.constant_schedule(0.1)).init(params),
        optimizers._sgd(Optimizer(), optax.constant_schedule(0.1)).init(params),
    ]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])


@pytest.fixture
def config():
    config = tiny_run.config()
    config.steps, config.log_every = 12, 3
    config.evaluation.every_epochs = config.checkpoint.every_epochs = 1 / 3
    config.evaluation.patience = 2
    return config


@pytest.fixture
def scores(monkeypatch):
    """The accuracies that evaluations find, one after the other."""
    real = accuracy.summarise

    def give(*values):
        found = iter(values)

        def fixed(examples, num_classes):
            return dataclasses.replace(real(examples, num_classes), top1=next(found))

        monkeypatch.setattr(accuracy, "summarise", fixed)

    return give


def evaluated(directory):
    records = read_records(directory / "metrics.jsonl")
    return [record["step"] for record in records if "test/top1" in record]


def test_training_ends_when_nothing_gets_better_and_stays_ended(config, scores, tmp_path):
    every = loop._interval(config.evaluation.every_epochs, Run.open(config))
    config.steps = 8 * every
    scores(0.3, 0.5, 0.5, 0.4, 0.9, 0.9, 0.9, 0.9)
    training.train(config, tmp_path / "run", QUIET)
    assert evaluated(tmp_path / "run") == [every, 2 * every, 3 * every, 4 * every]
    training.train(config, tmp_path / "run", QUIET)  # says that it is finished
    assert len(evaluated(tmp_path / "run")) == 4


def test_an_interrupted_run_ends_where_it_would_have_ended(config, scores, tmp_path, monkeypatch):
    every = loop._interval(config.evaluation.every_epochs, Run.open(config))
    config.steps = 8 * every
    stop_at = 3 * every
    monkeypatch.setattr(loop.Interruption, "requested", lambda self, step: step == stop_at)
    scores(0.3, 0.5, 0.5)
    with pytest.raises(Interrupted):
        training.train(config, tmp_path / "run", QUIET)
    monkeypatch.setattr(loop.Interruption, "requested", lambda self, step: False)
    scores(0.4, 0.9, 0.9, 0.9)
    training.train(config, tmp_path / "run", QUIET)
    assert evaluated(tmp_path / "run")[-1] == 4 * every


def test_patience_needs_one_stage_and_a_metric(config):
    config.checkpoint.best_metric = ""
    with pytest.raises(UserError, match=r"evaluation.patience \(2\) must be 0"):
        Run.open(config)


def test_the_recipe_tests_on_what_it_neither_trained_on_nor_stopped_by(tmp_path):
    config = load_recipe("configs/finetune.py", "early")
    assert config.data.train_split == "train[kept]"
    assert config.data.test_split == "test"
    assert config.checkpoint.best_metric == "validation/top1"
    assert json.dumps(config.evaluation.evaluators[1]).count("train[held_out]") == 1


@pytest.mark.parametrize("options", ["", "small", "cross_entropy", "resnet18,paper"])
def test_the_recipe_begins_as_a_linear_probe(options):
    """Two epochs of it, on features that are those of the weights, in training as in tests."""
    config = load_recipe("configs/finetune.py", options)
    assert config.model.options.bn_frozen
    assert config.model.classifier_input == "features" or not config.model.projection
    rate = config.optimizer.learning_rate
    assert (config.optimizer.name, config.optimizer.reference_batch) == ("adamw", 0)
    assert (config.optimizer.head_epochs, rate * config.optimizer.backbone_rate) == (2.0, 1e-4)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("adamw", 0.001)])
def test_a_rate_for_training_from_scratch_is_warned_of(config, monkeypatch, optimizer, rate):
    said: list[str] = []
    monkeypatch.setattr(loop.pretrained, "check", lambda run, report: None)
    config.init_from, config.optimizer.name = "weights.safetensors", optimizer
    config.optimizer.learning_rate = rate
    loop._look_before_training(Run.open(config), said.append)
    assert f"optimizer.learning_rate ({rate}) is meant for training from scratch" in said[-1]
    config.optimizer.learning_rate = rate / 10
    said.clear()
    loop._look_before_training(Run.open(config), said.append)
    assert not said
    config.optimizer.learning_rate = rate
    config.optimizer.backbone_rate = 0.1
    said.clear()
    loop._look_before_training(Run.open(config), said.append)
    assert not said


def test_frozen_statistics_stay_those_of_the_weights(config):
    """In both networks, while the backbone's scales and the head's own statistics move."""
    config.model.options.bn_frozen = True
    run = Run.open(config)
    state = run.init_state()
    # Statistics such as trained weights have; those of a new network are all 0 and 1.
    statistics = {
        **state.batch_stats,
        "backbone": jax.tree.map(lambda x: x + 0.25, state.batch_stats["backbone"]),
    }
    state = state.with_weights({"params": state.params, "batch_stats": statistics})
    first = jax.device_get(state)
    stream = run.train_stream(0, print)
    for _ in range(3):
        state, _ = train_step(state, next(stream))
    for before, after in (
        (first.batch_stats, state.batch_stats),
        (first.ema_batch_stats, state.ema_batch_stats),
    ):
        jax.tree.map(np.testing.assert_array_equal, after["backbone"], before["backbone"])
        assert not np.array_equal(
            after["projection"]["bn1"]["mean"], before["projection"]["bn1"]["mean"]
        )
    moved, began = (tree["backbone"]["bn1"]["scale"] for tree in (state.params, first.params))
    assert not np.array_equal(moved, began)


def test_there_must_be_statistics_to_freeze(config, tmp_path):
    config.model.options.bn_frozen = True
    with pytest.raises(UserError, match=r"bn_frozen \(True\) needs weights .*--config.init_from"):
        training.train(config, tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()
