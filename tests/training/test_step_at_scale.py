"""What makes a step large or lean must not change what it computes."""

import re

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.experimental.layout import Layout

from cone_jax import config as config_lib
from cone_jax import distributed, training
from cone_jax.errors import UserError
from cone_jax.models import registry
from cone_jax.training import train_state
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import Checkpoints
from tests.training.interrupted import assert_same, train_and_stop


def take_steps(config, count=7):
    run = Run.open(config.copy_and_resolve_references())
    state, history = run.init_state(), []
    for _, batch in zip(range(count), run.train_stream(0, print), strict=False):
        state, metrics = training.train_step(state, batch)
        history.append(jax.device_get(metrics))
    return state, history


def assert_same_course(actual, expected, names=("loss", "gradient_norm", "top1")):
    for step, (a, b) in enumerate(zip(actual[1], expected[1], strict=True)):
        for name in names:
            np.testing.assert_allclose(a[name], b[name], rtol=2e-4, atol=1e-5, err_msg=f"{step}")
    for a, b in zip(
        jax.tree.leaves(jax.device_get(actual[0].params)),
        jax.tree.leaves(jax.device_get(expected[0].params)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=2e-4)


# A bank that wraps around, of a size that eight does not divide.
@pytest.mark.parametrize(
    ("options", "policy"), [("cone", "skip"), ("cmsf", "stop"), ("paco", "stop")]
)
def test_a_bank_split_over_devices_trains_alike(separable_config, options, policy):
    separable_config.bank.size = 43
    separable_config.bank.exclude_self = True
    separable_config.nonfinite.policy = policy
    config = config_lib.apply_options(separable_config, options).unlock()
    expected = take_steps(config)
    config.bank.sharding = "sharded"
    actual = take_steps(config)
    assert_same_course(actual, expected, names=("loss", "gradient_norm"))
    bank = actual[0].bank
    assert {shard.data.shape[0] for shard in bank.features.addressable_shards} == {6}
    np.testing.assert_allclose(bank.features[:43], expected[0].bank.features, atol=2e-4)
    np.testing.assert_array_equal(bank.ids[:43], expected[0].bank.ids)


def test_predictions_recomputed_are_close_to_those_stored(separable_config):
    """Not equal: today's classifier is not the one that wrote them. A slow one hardly differs."""
    separable_config.optimizer.learning_rate = 1e-4
    _, stored = take_steps(separable_config)
    separable_config.bank.probs = "recomputed"
    state, recomputed = take_steps(separable_config)
    assert state.bank.probs is None
    for a, b in zip(stored, recomputed, strict=True):
        np.testing.assert_allclose(a["loss_dc"], b["loss_dc"], rtol=1e-2, atol=1e-5)
    assert recomputed[-1]["loss_dc"] > 0


def test_an_approximate_selection_reports_what_it_finds(separable_config):
    separable_config.bank.recall_target = 0.9
    _, history = take_steps(separable_config)
    assert history[-1]["neighbour_recall"] == 1.0  # on a CPU it is exact


class Flat(nn.Module):
    """A backbone without BatchNorm, whose statistics would be those of a part."""

    @nn.compact
    def __call__(self, x, *, train):
        return nn.tanh(nn.Dense(16)(x.reshape(x.shape[0], -1)))


def test_parts_of_a_batch_add_up_to_the_whole(separable_config, monkeypatch):
    monkeypatch.setitem(registry.BACKBONES, "flat", lambda name, *, make, stem: Flat())
    separable_config.model.name = "flat"
    separable_config.batch_size = 32
    separable_config.bank.size = 80
    separable_config.model.head_batch_norm = False
    expected = take_steps(separable_config)
    separable_config.accumulate = 4
    actual = take_steps(separable_config)
    assert_same_course(actual, expected)
    np.testing.assert_array_equal(actual[0].bank.ids, expected[0].bank.ids)
    np.testing.assert_allclose(actual[0].bank.features, expected[0].bank.features, atol=2e-4)


def test_parts_keep_batch_norm_and_two_views_going(separable_config):
    separable_config.batch_size = 32
    separable_config.bank.size = 80
    separable_config.accumulate = 2
    config = config_lib.apply_options(separable_config, "two_views")
    state, history = take_steps(config)
    assert all(np.isfinite(metrics["loss"]) for metrics in history)
    assert int(state.bank.filled) == 80
    moved = jax.tree.map(lambda x: np.abs(np.asarray(x)).sum(), state.ema_batch_stats)
    assert sum(jax.tree.leaves(moved)) > 0


@pytest.mark.parametrize("options", ["simclr", "supcon", "paco", "joint_supcon", "nnclr", "cmsf"])
def test_methods_that_compare_rows_refuse_parts(separable_config, options):
    separable_config.accumulate = 2
    with pytest.raises(UserError, match=r"accumulate \(2\) must be 1 for"):
        Run.open(config_lib.apply_options(separable_config, options))


def test_parts_must_fit_the_devices(separable_config):
    separable_config.accumulate = 3
    with pytest.raises(UserError, match=r"8 devices times accumulate \(3\), e.g. 24"):
        Run.open(separable_config)


@pytest.mark.parametrize(
    ("placement", "policy"), [("replicated", "stop"), ("replicated", "skip"), ("sharded", "skip")]
)
def test_the_state_is_updated_in_place(separable_config, placement, policy):
    """Every buffer of the state is donated, and nothing as large as the bank comes beside it."""
    separable_config.bank.size = 8 * 4099
    separable_config.bank.sharding = placement
    separable_config.nonfinite.policy = policy
    run = Run.open(separable_config)
    state = run.init_state()
    compiled = training.train_step.lower(state, next(run.train_stream(0, print))).compile()
    header = compiled.as_text().split("\n", 1)[0]
    aliased = {int(number) for number in re.findall(r"\{\d*\}: \((\d+),", header)}
    assert aliased == set(range(len(jax.tree.leaves(state))))
    bank = state.bank.features.nbytes + state.bank.probs.nbytes
    rows = 4099 if placement == "sharded" else 8 * 4099
    assert not re.findall(rf"= f32\[{rows},\d+\]\S* copy\(", compiled.as_text())
    if placement == "replicated":
        assert compiled.memory_analysis().temp_size_in_bytes < bank


def test_one_compilation_serves_all_steps(separable_config):
    separable_config.bank.sharding = "sharded"
    before = training.train_step._cache_size()
    take_steps(separable_config, 3)
    assert training.train_step._cache_size() == before + 1


def test_a_split_bank_is_restored_on_another_number_of_devices(separable_config, tmp_path):
    separable_config.bank.size = 43
    separable_config.bank.sharding = "sharded"
    separable_config.steps = 6
    run = Run.open(separable_config)
    expected = jax.device_get(take_steps(separable_config, 6)[0])
    training.train(separable_config, tmp_path)
    mesh = distributed.make_mesh(jax.devices()[:3])
    abstract = run.on_mesh(mesh).abstract_state()
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore(6, abstract).state
    assert restored.bank.features.shape[0] == 45
    for name in ("features", "labels", "probs", "ids"):
        column = jax.device_get(getattr(restored.bank, name))
        np.testing.assert_array_equal(column[:43], getattr(expected.bank, name)[:43])


def test_a_bank_with_a_layout_of_its_own_trains_and_resumes_alike(
    separable_config, monkeypatch, tmp_path
):
    """As on a TPU, here by columns: the same numbers, one compilation, checkpoints as ever."""
    separable_config.steps = 6
    separable_config.checkpoint.every_epochs = 0.25  # of eight steps
    plain = take_steps(separable_config, 6)
    monkeypatch.setitem(train_state.BANK_LAYOUTS, "cpu", Layout((1, 0)))
    before = training.train_step._cache_size()
    laid_out = take_steps(separable_config, 6)
    assert training.train_step._cache_size() == before + 1
    layout = laid_out[0].bank.probs.format.layout
    assert layout.major_to_minor == (1, 0)
    assert_same_course(laid_out, plain)
    train_and_stop(separable_config, tmp_path, 5, monkeypatch)
    training.train(separable_config, tmp_path)
    assert training.train_step._cache_size() == before + 1  # nor for what a checkpoint gives
    with Checkpoints(tmp_path) as checkpoints:
        resumed = checkpoints.restore(6, Run.open(separable_config).abstract_state()).state
    assert_same(resumed, laid_out[0])


@pytest.mark.parametrize("options", ["cone", "cross_entropy"])
def test_a_network_split_over_devices_trains_alike(separable_config, options, monkeypatch):
    monkeypatch.setattr(distributed, "LEAST_SPLIT", 16)
    separable_config.average.decay = 0.9
    separable_config.average.every = 1
    config = config_lib.apply_options(separable_config, options).unlock()
    expected = take_steps(config)
    config.model.sharding = "sharded"
    actual = take_steps(config)
    assert_same_course(actual, expected)
    state = actual[0]
    kernel = state.params["backbone"]["linear1"]["kernel"]
    assert kernel.shape == (48, 16)
    for tree in (state.params, state.opt_state, state.averaged["params"]):
        shapes = {
            (leaf.shape, leaf.addressable_shards[0].data.shape) for leaf in jax.tree.leaves(tree)
        }
        assert ((48, 16), (6, 16)) in shapes
    for network in ("query", "evaluated"):
        one, other = state.network(network), expected[0].network(network)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4)
    run = Run.open(config)
    found = run.evaluators[0].evaluate(run, state.evaluated, print).scores
    expected_scores = run.evaluators[0].evaluate(run, expected[0].evaluated, print).scores
    assert found == pytest.approx(expected_scores, abs=1e-4)


def test_a_split_network_goes_on_whole(separable_config, monkeypatch, tmp_path):
    monkeypatch.setattr(distributed, "LEAST_SPLIT", 16)
    separable_config.steps = 6
    separable_config.checkpoint.every_epochs = 0.25  # of eight steps
    expected = take_steps(separable_config, 6)
    separable_config.model.sharding = "sharded"
    train_and_stop(separable_config, tmp_path, 5, monkeypatch)
    separable_config.model.sharding = "replicated"
    training.train(separable_config, tmp_path)
    run = Run.open(separable_config)
    with Checkpoints(tmp_path) as checkpoints:
        state = checkpoints.restore(6, run.abstract_state()).state
    for a, b in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(expected[0].params), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=2e-4)
