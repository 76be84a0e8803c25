"""Features of a split: each example once and in order, on any number of devices."""

import jax
import numpy as np
import pytest

from cone_jax import distributed, models
from cone_jax.data import transforms
from cone_jax.data.pipeline import EvalBatches
from cone_jax.data.sources.array import ArraySource
from cone_jax.evaluation.inference import PlacedNetwork
from cone_jax.evaluation.probes import extract
from tests.models import random_variables

MEAN = STD = (0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def network():
    head = models.Projection(dim=6, hidden=8)
    encoder = models.create("resnet8", 3, stem="cifar", projection=head, width=4)
    return encoder, random_variables.draw(encoder, 8)


@pytest.mark.parametrize(("batch_size", "devices"), [(16, 1), (8, 8)])
def test_every_example_once_and_in_order(network, batch_size, devices):
    encoder, variables = network
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (21, 8, 8, 3)).astype(np.uint8)
    labels = rng.integers(0, 3, 21)
    mesh = distributed.make_mesh(jax.devices()[:devices])
    batches = EvalBatches(ArraySource(images, labels, "abc"), transforms.parse(()), batch_size)
    found = extract(
        PlacedNetwork(encoder, MEAN, STD, mesh),
        jax.device_put(variables, distributed.replicated(mesh)),
        (batches[i] for i in range(len(batches))),
    )
    pixels = (images.astype(np.float32) / 255 - 0.5) / 0.5
    expected = encoder.apply(variables, pixels, train=False)
    np.testing.assert_allclose(found.features, expected.features, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.embedding, expected.embedding, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal(found.ids, np.arange(21))
