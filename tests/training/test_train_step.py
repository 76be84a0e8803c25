"""One step of training: its numbers, its order, its independence of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import distributed, losses, momentum, training
from cone_jax.data.on_device import normalise_images

pytestmark = pytest.mark.optimised

BATCH = 32


def make_batch(seed=0, size=8):
    rng = np.random.default_rng(seed)
    return {
        "image": rng.integers(0, 256, (BATCH, size, size, 3)).astype(np.uint8),
        "label": rng.integers(0, 10, BATCH).astype(np.int32),
        "id": rng.permutation(1000)[:BATCH].astype(np.int32),
    }


def start(config, devices=None):
    mesh = distributed.make_mesh(jax.devices()[:devices] if devices else None)
    state = training.init_state(
        config, jax.random.key(0), num_classes=10, steps_per_epoch=4, mesh=mesh
    )
    return state, mesh


def take_steps(config, count, devices=None):
    state, mesh = start(config, devices)
    history = []
    for seed in range(count):
        state, metrics = training.train_step(state, distributed.to_devices(mesh, make_batch(seed)))
        history.append(jax.device_get(metrics))
    return jax.device_get(state), history


def test_golden_step(tiny_config):
    """Recorded on jax 0.10.2; a change here is a change of the method or of the arithmetic."""
    tiny_config.objective.cone.wait_for_bank = False
    state, history = take_steps(tiny_config, 4)
    golden = {
        "loss": [2.349925, 3.136606, 3.332706, 3.098917],
        "loss_ce": [2.349925, 2.363439, 2.334178, 2.423616],
        "loss_sup_in": [0.0, 1.100024, 1.423892, 0.961644],
        "loss_dc": [0.0, 0.007875, 0.004508, 0.005374],
    }
    for name, expected in golden.items():
        actual = [float(metrics[name]) for metrics in history]
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5, err_msg=name)
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(state.params)))
    assert norm == pytest.approx(15.007463, rel=1e-5)


@pytest.mark.parametrize("objective", ["cone", "cross_entropy"])
def test_one_device_and_eight_give_the_same(tiny_config, objective):
    tiny_config.objective.name = objective
    tiny_config.objective.cone.wait_for_bank = False
    one, history_one = take_steps(tiny_config, 4, devices=1)
    eight, history_eight = take_steps(tiny_config, 4, devices=8)
    for a, b in zip(history_one, history_eight, strict=True):
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-3, atol=1e-5, err_msg=name)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5)


def test_step_compiles_once_and_keeps_the_state_replicated(quick_config):
    traces_before = training.train_step._cache_size()
    quick_config.seed = 12345  # a config of its own, so that nothing is compiled yet
    state, mesh = start(quick_config)
    for seed in range(4):
        state, _ = training.train_step(state, distributed.to_devices(mesh, make_batch(seed)))
    assert training.train_step._cache_size() == traces_before + 1
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state))


def test_state_is_donated(quick_config):
    state, mesh = start(quick_config)
    training.train_step(state, distributed.to_devices(mesh, make_batch()))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_order_of_a_step_average_key_bank(quick_config):
    """The key sees the average made before this step; the bank gets exactly those keys."""
    quick_config.ema.momentum = 0.5
    quick_config.optimizer.learning_rate = 0.5
    quick_config.schedule.warmup_epochs = 0.0
    state, mesh = start(quick_config, devices=1)
    state, _ = training.train_step(state, distributed.to_devices(mesh, make_batch(0)))
    before = jax.device_get(state)
    batch = make_batch(1)
    encoder, learner = state.learner.encoder, state.learner
    after, _ = training.train_step(state, distributed.to_devices(mesh, batch))

    m = float(learner.key_momentum(1))
    expected_ema = jax.tree.map(lambda e, p: m * e + (1 - m) * p, before.ema_params, before.params)
    for a, b in zip(jax.tree.leaves(expected_ema), jax.tree.leaves(after.ema_params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    key, updated = encoder.apply(
        {"params": expected_ema, "batch_stats": before.ema_batch_stats},
        normalise_images(jnp.asarray(batch["image"]), learner.mean, learner.std),
        train=True,
        mutable=["batch_stats"],
    )
    rows = slice(BATCH, 2 * BATCH)
    np.testing.assert_allclose(
        after.bank.features[rows], losses.normalise(key.embedding), atol=1e-4
    )
    np.testing.assert_allclose(after.bank.probs[rows], jax.nn.softmax(key.logits), atol=1e-4)
    np.testing.assert_array_equal(after.bank.labels[rows], batch["label"])
    np.testing.assert_array_equal(after.bank.ids[rows], batch["id"])
    for a, b in zip(
        jax.tree.leaves(updated["batch_stats"]),
        jax.tree.leaves(after.ema_batch_stats),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_average_after_the_update_as_in_the_papers_algorithm(quick_config):
    quick_config.ema.momentum = 0.5
    quick_config.ema.order = "after_update"
    quick_config.schedule.warmup_epochs = 0.0
    state, mesh = start(quick_config, devices=1)
    before = jax.device_get(state)
    after, _ = training.train_step(state, distributed.to_devices(mesh, make_batch(0)))
    expected = momentum.update(before.ema_params, jax.device_get(after.params), 0.5)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(after.ema_params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_key_statistics_go_their_own_way(quick_config):
    quick_config.schedule.warmup_epochs = 0.0
    state, _ = take_steps(quick_config, 3)
    pairs = zip(
        jax.tree.leaves(state.batch_stats), jax.tree.leaves(state.ema_batch_stats), strict=True
    )
    assert any(not np.allclose(a, b) for a, b in pairs)


def test_two_views_go_to_query_and_key(quick_config):
    state, mesh = start(quick_config, devices=1)
    batch = make_batch(0)
    one_view = batch["image"]
    batch["image"] = np.stack([one_view, np.zeros_like(one_view)], axis=1)
    after, _ = training.train_step(state, distributed.to_devices(mesh, batch))
    # All keys come from the black view, so they are all alike.
    keys = np.asarray(after.bank.features[:BATCH])
    np.testing.assert_allclose(keys, np.broadcast_to(keys[:1], keys.shape), atol=1e-4)


def test_same_seed_same_bits_and_another_seed_others(quick_config):
    first, _ = take_steps(quick_config, 3)
    second, _ = take_steps(quick_config, 3)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    mesh = distributed.make_mesh()
    other = training.init_state(
        quick_config, jax.random.key(1), num_classes=10, steps_per_epoch=4, mesh=mesh
    )
    same = training.init_state(
        quick_config, jax.random.key(0), num_classes=10, steps_per_epoch=4, mesh=mesh
    )
    kernels = [s.params["classifier"]["kernel"] for s in (other, same)]
    assert not np.allclose(*kernels)


def test_plain_cross_entropy_carries_no_key_and_no_bank(quick_config):
    quick_config.objective.name = "cross_entropy"
    quick_config.model.projection = False
    state, history = take_steps(quick_config, 1)
    assert state.ema_params is None
    assert state.bank is None
    assert "ema_momentum" not in history[0]
