"""What a training step does for methods other than plain CoNe."""

import jax
import numpy as np
import pytest

from cone_jax import config as config_lib
from cone_jax import training
from cone_jax.training.run import Run


def first_steps(config, options, count=1):
    """The run, its batches, and the state and metrics after each of the first steps."""
    run = Run.open(config_lib.apply_options(config, options))
    state = run.init_state()
    stream = run.train_stream(0, print)
    history = []
    for _ in range(count):
        batch = next(stream)
        state, metrics = training.train_step(state, batch)
        history.append((jax.device_get(batch), jax.device_get(state), jax.device_get(metrics)))
        state = jax.device_put(state, state.step.sharding)
    return run, history


def test_views_as_rows_are_neighbours_and_all_become_keys(separable_config):
    separable_config.data.train_transforms = ("random_crop(4, padding=2)",)
    _, [(batch, state, _)] = first_steps(separable_config, "cone,two_views")
    assert batch["image"].shape == (8, 2, 4, 4, 3)
    assert int(state.bank.filled) == 16
    np.testing.assert_array_equal(state.bank.ids[:16], np.repeat(batch["id"], 2))
    np.testing.assert_array_equal(state.bank.labels[:16], np.repeat(batch["label"], 2))
    keys = state.bank.features[:16].reshape(8, 2, -1)
    assert not np.allclose(keys[:, 0], keys[:, 1])


def test_without_a_momentum_network_the_bank_takes_the_first_views(separable_config):
    _, [(batch, state, _)] = first_steps(separable_config, "nnclr")
    assert state.ema_params is None
    assert state.bank.probs is None
    assert int(state.bank.filled) == 8
    np.testing.assert_array_equal(state.bank.ids[:8], batch["id"])


def test_cmsf_finds_its_own_target_in_the_bank(separable_config):
    """At the first step nothing else is there."""
    _, [(batch, _, metrics)] = first_steps(separable_config, "cmsf")
    counts = [(batch["label"] == label).sum() for label in batch["label"]]
    assert metrics["positives"] == pytest.approx(np.mean(counts))


def test_mixed_images_are_remembered_under_the_label_they_have_most_of(separable_config):
    separable_config.mixing.mixup_alpha = 1.0
    _, history = first_steps(separable_config, "cone,no_contrast", count=6)
    kept_own = []
    for step, (batch, state, metrics) in enumerate(history):
        rows = np.arange(8 * step, 8 * step + 8) % 40
        remembered = state.bank.labels[rows]
        own, partner = batch["label"], batch["label"][::-1]
        kept_own.append(bool((remembered == own).all()))
        assert kept_own[-1] or (remembered == partner).all()
        assert np.isfinite(metrics["loss"])
    assert set(kept_own) == {True, False}  # the weight varies from step to step


def test_a_frozen_network_changes_in_its_classifier_alone(separable_config):
    run, [(_, state, _)] = first_steps(separable_config, "linear")
    start = jax.device_get(run.init_state())
    for name in ("backbone", "classifier"):
        pairs = zip(
            jax.tree.leaves(start.params[name]), jax.tree.leaves(state.params[name]), strict=True
        )
        assert all(np.array_equal(a, b) == (name == "backbone") for a, b in pairs)
    for a, b in zip(
        jax.tree.leaves(start.batch_stats), jax.tree.leaves(state.batch_stats), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert set(state.opt_state[1][0].trace) == {"classifier"}


def test_large_margins_may_be_measured_in_the_images(separable_config):
    losses = []
    for layers in (("features",), ("images",)):
        config = separable_config.copy_and_resolve_references()
        config.objective.large_margin.layers = layers
        _, [(_, state, metrics)] = first_steps(config, "large_margin")
        losses.append(float(metrics["loss_margin"]))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert losses[0] != pytest.approx(losses[1], rel=1e-2)


def test_class_prior_is_counted_from_the_training_labels(separable_config, tmp_path):
    labels = np.array([0] * 40 + [1] * 24)
    images = np.zeros((64, 4, 4, 3), np.uint8)
    for split in ("train", "test"):
        np.savez(tmp_path / f"{split}.npz", images=images, labels=labels)
    separable_config.data.path = str(tmp_path)
    separable_config.objective.paco.prior = "data"
    run, [(_, _, metrics)] = first_steps(separable_config, "paco")
    assert run.learner.class_prior == (40 / 64, 24 / 64)
    assert np.isfinite(metrics["loss"])


def test_averaged_model_follows_parameters_and_statistics(separable_config):
    """Every second step; copied during warm-up, here the first three steps of eight an epoch."""
    separable_config.schedule.warmup_epochs = 3 / 8
    separable_config.average.decay = 0.75
    separable_config.average.every = 2
    separable_config.average.rescale = False
    run, history = first_steps(separable_config, "cross_entropy", count=8)
    expected = jax.device_get(run.init_state()).variables
    for step, (_, state, _) in enumerate(history, start=1):
        if step % 2 == 0:
            keep = 0.0 if step <= 3 else 0.75
            expected = jax.tree.map(
                lambda old, new, keep=keep: keep * old + (1 - keep) * new,
                expected,
                state.variables,
            )
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(state.averaged), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert state.evaluated is state.averaged
