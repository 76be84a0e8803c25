"""Accuracy against scikit-learn, calibration against loops, whatever the batches and devices."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as reference

from cone_jax import distributed, models
from cone_jax.data import transforms
from cone_jax.data.pipeline import EvalBatches
from cone_jax.data.sources.array import ArraySource
from cone_jax.evaluation import accuracy
from cone_jax.evaluation.accuracy import expected_calibration_error
from cone_jax.evaluation.inference import PlacedNetwork
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
    mesh = distributed.make_mesh(jax.devices()[:devices])
    variables = jax.device_put(variables, distributed.replicated(mesh))
    batches = EvalBatches(source, transforms.parse(()), batch_size)
    examples = accuracy.examine(
        PlacedNetwork(encoder, MEAN, STD, mesh),
        variables,
        (batches[i] for i in range(len(batches))),
        classes=classes,
    )
    assert examples.records.tolist() == list(range(len(source)))
    return accuracy.summarise(examples, len(source.class_names))


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
        accuracy.examine(PlacedNetwork(None, MEAN, STD, distributed.make_mesh()), {}, [])


def test_accuracies_of_classes_without_examples():
    ranked = np.array([[0, 1, 2, 3, 4], [1, 0, 2, 3, 4], [5, 0, 2, 3, 4], [6, 1, 2, 3, 5]])
    found = accuracy.ranked_accuracies(ranked, np.array([0, 0, 5, 4]))
    assert found == pytest.approx({"top1": 0.5, "top5": 0.75, "mean_per_class": 0.5})


def test_right_as_often_as_sure_is_no_error():
    confidences = np.repeat([0.55, 0.75], 20).astype(np.float32)
    correct = np.concatenate([np.arange(20) < 11, np.arange(20) < 15])
    assert expected_calibration_error(confidences, correct) == pytest.approx(0.0, abs=1e-7)


def test_always_sure_and_half_right_is_a_half():
    assert expected_calibration_error(np.ones(8, np.float32), np.arange(8) % 2) == 0.5


def test_two_bins_do_not_make_good_for_each_other():
    # 0.9 sure and never right, 0.1 sure and always right: 0.9 each, though the means agree.
    confidences = np.array([0.9, 0.1], np.float32)
    assert expected_calibration_error(confidences, np.array([0, 1])) == pytest.approx(0.9)


def test_an_edge_belongs_to_the_bin_below():
    # 3/15 and 2.9/15 share a bin, so over- and underconfidence cancel there; 3.1/15 does not.
    edge = np.float32(3 / 15)
    below = np.array([edge, 2.9 / 15], np.float32)
    together = expected_calibration_error(below, np.array([0, 1]))
    assert together == pytest.approx(abs(float(edge) + 2.9 / 15 - 1) / 2, rel=1e-5)
    apart = expected_calibration_error(np.array([edge, 3.1 / 15], np.float32), np.array([0, 1]))
    assert apart == pytest.approx((float(edge) + 1 - 3.1 / 15) / 2, rel=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(1 / 1024, 1.0, width=32), st.booleans()), min_size=1))
def test_equals_the_sum_over_bins(rows):
    confidences = np.array([row[0] for row in rows], np.float32)
    correct = np.array([row[1] for row in rows])
    total = 0.0
    edges = np.linspace(0, 1, 16).astype(np.float32)
    for low, high in itertools.pairwise(edges):
        inside = (confidences > low) & (confidences <= high)
        if inside.any():
            gap = correct[inside].mean() - confidences[inside].astype(np.float64).mean()
            total += inside.mean() * abs(gap)
    assert expected_calibration_error(confidences, correct) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize(("right", "examples"), [(0, 5), (5, 5), (17, 50), (171, 250), (1, 1000)])
def test_intervals_are_scipys(right, examples):
    theirs = stats.binomtest(right, examples).proportion_ci(0.95, method="wilson")
    ours = accuracy.wilson_interval(right / examples, examples)
    np.testing.assert_allclose(ours, (theirs.low, theirs.high), atol=1e-12)
