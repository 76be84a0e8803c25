"""Every method through the real trainer, on eight devices with one image each."""

import dataclasses

import jax
import numpy as np
import pytest

from cone_jax import config as config_lib
from cone_jax import distributed, objectives, training
from cone_jax.data.on_device import normalise_images
from cone_jax.training.run import Run

# Every objective, and every variant that the paper compares: options, and fields on top.
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in objectives.exchangeable()},
    "cross_entropy with smoothing": (
        "cross_entropy",
        {"objective.cross_entropy.label_smoothing": 0.1},
    ),
    "cross_entropy with head": ("cross_entropy,projection", {}),
    "large_margin in images": (
        "large_margin",
        {"objective.large_margin.layers": ("images", "features")},
    ),
    "supcon L_in": ("supcon", {"objective.supcon.contrast": "sup_in"}),
    "paco with prior": ("paco", {"objective.paco.prior": "data"}),
    "cmsf with CE": ("cmsf,with_ce", {}),
    "nnclr with CE": ("nnclr,with_ce", {}),
    "cone without L_dc": ("cone,no_dc", {}),
    "cone without L_in": ("cone,no_contrast", {}),
    "cone with L_out": ("cone,no_dc,sup_out", {}),
    "cone with contrastive view": ("cone,no_dc,contrastive_view", {}),
    "cone with contrastive view in the bank": (
        "cone,no_dc,contrastive_view",
        {"objective.cone.contrastive_view": "bank"},
    ),
    "cone with two views": ("cone,two_views", {}),
    "cone with mixed images": ("cone", {"mixing.mixup_alpha": 0.2, "mixing.cutmix_alpha": 0.2}),
}
DEGENERATE = {
    "one class": np.zeros(8),
    "classes of one member": np.arange(8),
    "one sample apart": np.array([7, 0, 0, 0, 0, 0, 0, 0]),
}


@pytest.fixture
def method_config(separable_config, request):
    options, fields = METHODS[request.param]
    config = config_lib.apply_options(separable_config, options).unlock()
    # L-Softmax anneals over thousands of steps; large margins have no natural scale.
    config.objective.l_softmax.lambda_minimum = 5.0
    config.objective.large_margin.gamma = 10.0
    config.update_from_flattened_dict(fields)
    return config


def accuracy(run, state):
    """Of the classifier, on the test images."""
    records = [run.dataset.test[index] for index in range(len(run.dataset.test))]
    images, labels = (np.stack(column) for column in zip(*records, strict=True))
    pixels = normalise_images(images, run.learner.mean, run.learner.std)
    output = run.learner.encoder.apply(jax.device_get(state.evaluated), pixels, train=False)
    return np.mean(np.argmax(output.logits, axis=-1) == labels)


@pytest.mark.parametrize("method_config", METHODS, indirect=True, ids=METHODS)
def test_trains_above_chance_and_survives_degenerate_labels(method_config):
    run = Run.open(method_config)
    state = run.init_state()
    batches = list(run.train_stream(0, print))
    # The second epoch once more at the end: how hard a contrast is depends on the batch, and on
    # the bank, which the first epoch fills.
    batches += batches[8:16]
    losses = []
    for batch in batches:
        state, metrics = training.train_step(state, batch)
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-8:]) < np.mean(losses[8:16])
    last = run.stages[-1]
    if last is not run:  # the loss has trained no classifier: the linear stage does
        state = last.start_from(state)
        for rows in last.train_stream(last.first_step, print):
            state, _ = training.train_step(state, rows)
    assert accuracy(last, state) > 0.6  # chance is an eighth

    for name, labels in DEGENERATE.items():
        state = run.init_state()
        changed = {**batch, **distributed.to_devices(run.mesh, {"label": labels.astype(np.int32)})}
        for _ in range(2):  # the second step sees a bank of such labels
            state, metrics = training.train_step(state, changed)
        leaves = jax.tree.leaves((state.params, state.batch_stats, metrics))
        assert all(np.isfinite(leaf).all() for leaf in leaves), name


def test_every_field_of_an_objective_is_in_its_config_section():
    config = config_lib.default()
    for name in objectives.names():
        created = objectives.create(name, config.objective[name])
        assert dict(config.objective[name]) == dataclasses.asdict(created)
