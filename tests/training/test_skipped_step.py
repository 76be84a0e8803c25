"""A step that is not finite changes nothing but the count of steps, in every kind of state."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import config as config_lib
from cone_jax import training
from cone_jax.training.run import Run


def open_run(config, options, policy):
    config.nonfinite.policy = policy
    return Run.open(config_lib.apply_options(config, options))


def batches(run, count):
    """Batches in float32, which can hold what uint8 cannot."""
    stream = run.train_stream(0, print)
    for _ in range(count):
        batch = next(stream)
        yield batch | {"image": batch["image"].astype(jnp.float32)}


def poisoned(batch):
    return batch | {"image": batch["image"].at[0, 0, 0].set(jnp.nan)}


def changed_leaves(before, after):
    pairs = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    return [jax.tree_util.keystr(path) for (path, a), b in pairs if not np.array_equal(a, b)]


# cone: a key and a bank written after the loss; cmsf: before it; nnclr: a bank without a key;
# cross_entropy: neither.
@pytest.mark.parametrize("options", ["cone", "cmsf", "nnclr", "cross_entropy"])
def test_nothing_but_the_step_changes(separable_config, options):
    separable_config.average.decay, separable_config.average.every = 0.9, 1
    separable_config.optimizer.name = "adamw"
    run = open_run(separable_config, options, "skip")
    state = run.init_state()
    # The bank of 40 rows wraps around at the sixth batch of eight, which is the bad one.
    for step, batch in enumerate(batches(run, 7), start=1):
        bad = step == 6
        before = jax.device_get(state)
        state, metrics = training.train_step(state, poisoned(batch) if bad else batch)
        changed = changed_leaves(before, jax.device_get(state))
        assert metrics["skipped"] == bad
        assert np.isfinite(metrics["gradient_norm"]) == (not bad)
        if bad:
            assert changed == [".step"]
    assert state.step == 7
    for part in ("params", "batch_stats", "opt_state", "averaged"):
        assert any(name.startswith(f".{part}") for name in changed), part
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(state)))


def test_an_update_that_overflows_is_skipped_though_loss_and_gradient_are_finite(separable_config):
    separable_config.optimizer.learning_rate = 1e38
    separable_config.optimizer.weight_decay = 1e3
    run = open_run(separable_config, "cross_entropy", "skip")
    state = run.init_state()
    before = jax.device_get(state)
    state, metrics = training.train_step(state, next(batches(run, 1)))
    assert np.isfinite(metrics["loss"])
    assert np.isfinite(metrics["gradient_norm"])
    assert metrics["skipped"] == 1
    assert changed_leaves(before, jax.device_get(state)) == [".step"]


def test_the_reported_learning_rate_is_the_one_used(separable_config):
    """The schedule counts updates made, so it waits while one is skipped."""
    separable_config.schedule.warmup_epochs = 1.0  # eight steps
    run = open_run(separable_config, "cross_entropy", "skip")
    state, rates = run.init_state(), []
    for step, batch in enumerate(batches(run, 4), start=1):
        state, metrics = training.train_step(state, poisoned(batch) if step == 2 else batch)
        rates.append(float(metrics["learning_rate"]))
    peak = separable_config.optimizer.learning_rate
    np.testing.assert_allclose(rates, [0.0, peak / 8, peak / 8, peak / 4], rtol=1e-6)


def test_without_a_bad_batch_skip_equals_stop(separable_config):
    states = {}
    for policy in ("stop", "skip"):
        run = open_run(separable_config.copy_and_resolve_references(), "cone", policy)
        state = run.init_state()
        for batch in batches(run, 6):
            state, _ = training.train_step(state, batch)
        states[policy] = jax.device_get(state)
    pairs = zip(jax.tree.leaves(states["stop"]), jax.tree.leaves(states["skip"]), strict=True)
    for stop, skip in pairs:
        np.testing.assert_allclose(stop, skip, rtol=1e-5, atol=1e-6)


def test_skipping_adds_no_copy_of_the_bank(separable_config):
    separable_config.bank.size = 4099  # a shape that nothing else has
    copies = {}
    for policy in ("stop", "skip"):
        run = open_run(separable_config.copy_and_resolve_references(), "cone", policy)
        batch = next(batches(run, 1))
        compiled = training.train_step.lower(run.init_state(), batch).compile().as_text()
        copies[policy] = len(re.findall(r"= f32\[4099,\d+\]\S* copy\(", compiled))
    assert copies["skip"] <= copies["stop"], copies
