"""Accuracy against scikit-learn and NumPy, whatever the batch size and the device count."""

import jax
import numpy as np
import pytest
from sklearn import metrics as reference

from cone_jax import models, sharding
from cone_jax.data import transforms
from cone_jax.data.pipeline import EvalBatches
from cone_jax.data.sources.array import ArraySource
from cone_jax.evaluation import classification
from tests.models import random_variables

MEAN = STD = (0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def network():
    encoder = models.create("resnet8", 7, stem="cifar", projection=None, width=4)
    return encoder, random_variables.draw(encoder, 8)


def make_source(count=45, classes=7, missing=5):
    """Random images; class `missing` has no example."""
    rng = np.random.default_rng(0)
    labels = rng.choice([c for c in range(classes) if c != missing], count)
    images = rng.integers(0, 256, (count, 8, 8, 3)).astype(np.uint8)
    return ArraySource(images, labels, [f"c{i}" for i in range(classes)])


def evaluate(network, source, batch_size, devices, classes=None):
    encoder, variables = network
    mesh = sharding.make_mesh(jax.devices()[:devices])
    variables = jax.device_put(variables, sharding.replicated(mesh))
    batches = EvalBatches(source, transforms.parse(()), batch_size)
    examples = classification.examine(
        encoder,
        variables,
        (batches[i] for i in range(len(batches))),
        mean=MEAN,
        std=STD,
        mesh=mesh,
        classes=classes,
    )
    assert examples.records.tolist() == list(range(len(source)))
    return classification.summarise(examples, len(source.class_names))


@pytest.mark.parametrize(("batch_size", "devices"), [(45, 1), (16, 1), (16, 8), (64, 8)])
def test_numbers_equal_scikit_learns(network, batch_size, devices):
    source = make_source()
    result = evaluate(network, source, batch_size, devices)
    encoder, variables = network
    images = np.stack([source[i].image for i in range(len(source))]).astype(np.float32)
    labels = np.array([source[i].label for i in range(len(source))])
    logits = random_variables.logits(encoder, variables, (images / 255 - 0.5) / 0.5)
    logits = logits.astype(np.float64)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    every = np.arange(7)
    assert result.examples == 45
    assert result.top1 == pytest.approx(reference.accuracy_score(labels, logits.argmax(axis=1)))
    assert result.top5 == pytest.approx(
        reference.top_k_accuracy_score(labels, logits, k=5, labels=every)
    )
    assert result.loss == pytest.approx(reference.log_loss(labels, probs, labels=every), rel=1e-4)
    assert result.mean_per_class == pytest.approx(
        reference.balanced_accuracy_score(labels, logits.argmax(axis=1))
    )
    assert np.isnan(result.per_class[5])
    for c in set(labels):
        expected = np.mean(logits.argmax(axis=1)[labels == c] == c)
        assert result.per_class[c] == pytest.approx(expected)


def test_top5_with_fewer_than_five_classes_is_one():
    encoder = models.create("resnet8", 3, stem="cifar", projection=None, width=4)
    source = make_source(classes=3, missing=-1)
    assert evaluate((encoder, random_variables.draw(encoder, 8)), source, 16, 1).top5 == 1.0


def test_nothing_to_evaluate_is_said():
    with pytest.raises(ValueError, match="no batches"):
        classification.examine(None, {}, [], mean=MEAN, std=STD, mesh=sharding.make_mesh())
