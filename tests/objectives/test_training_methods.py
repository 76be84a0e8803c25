"""Every method through the real trainer, on eight devices with one image each."""

import jax
import numpy as np
import pytest

from cone_jax import config as config_lib
from cone_jax import objectives, sharding, training
from cone_jax.data.normalisation import normalise_images
from cone_jax.training.run import Run

# Every objective, and the variants that change what the trainer has to do.
OPTIONS = [
    *objectives.names(),
    "cone,no_dc,contrastive_view",
    "cone,two_views",
    "nnclr,with_ce",
]
DEGENERATE = {
    "one class": np.zeros(8),
    "classes of one member": np.arange(8),
    "one sample apart": np.array([7, 0, 0, 0, 0, 0, 0, 0]),
}


@pytest.fixture
def method_config(separable_config, request):
    config = config_lib.apply_options(separable_config, request.param).unlock()
    # L-Softmax anneals over thousands of steps; large margins have no natural scale.
    config.objective.l_softmax.lambda_minimum = 5.0
    config.objective.large_margin.gamma = 10.0
    return config


def accuracy(run, state, images, labels):
    """Of the classifier; without one, of the nearest class mean in the features."""
    pixels = normalise_images(images, run.learner.mean, run.learner.std)
    output = run.learner.encoder.apply(jax.device_get(state.evaluated), pixels, train=False)
    if run.learner.objective.needs.classifier:
        return np.mean(np.argmax(output.logits, axis=-1) == labels)
    features = np.asarray(output.features)
    means = np.stack([features[labels == c].mean(axis=0) for c in range(8)])
    distances = np.linalg.norm(features[:, None] - means, axis=-1)
    return np.mean(np.argmin(distances, axis=-1) == labels)


@pytest.mark.parametrize("method_config", OPTIONS, indirect=True, ids=OPTIONS)
def test_trains_above_chance_and_survives_degenerate_labels(method_config):
    run = Run.open(method_config)
    state = run.init_state()
    losses = []
    for batch in run.train_stream(0, print):
        state, metrics = training.train_step(state, batch)
        losses.append(float(metrics["loss"]))
    records = [run.dataset.test[index] for index in range(len(run.dataset.test))]
    images, labels = (np.stack(column) for column in zip(*records, strict=True))
    assert accuracy(run, state, images, labels) > 0.6  # chance is an eighth
    # Five steps fill the bank, which makes a contrast harder.
    assert np.mean(losses[-8:]) < np.mean(losses[6:14])

    for name, labels in DEGENERATE.items():
        state = run.init_state()
        changed = {**batch, **sharding.to_devices(run.mesh, {"label": labels.astype(np.int32)})}
        for _ in range(2):  # the second step sees a bank of such labels
            state, metrics = training.train_step(state, changed)
        leaves = jax.tree.leaves((state.params, state.batch_stats, metrics))
        assert all(np.isfinite(leaf).all() for leaf in leaves), name


def test_every_field_of_an_objective_is_in_its_config_section():
    config = config_lib.default()
    for name in objectives.names():
        assert dict(config.objective[name]) == objectives.default_settings(name)
        objectives.create(name, config.objective[name])
