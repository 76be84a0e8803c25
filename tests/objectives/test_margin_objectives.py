"""L-Softmax and large margins as objectives: annealing, layers, and cross-entropy beside them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax.models import EncoderOutput
from cone_jax.objectives import Activation, ClassCentres, StepInputs
from cone_jax.objectives.l_softmax import LSoftmax
from cone_jax.objectives.large_margin import LargeMargin
from tests.objectives.test_margin_losses import angular_loss, finite_differences, softmax

pytestmark = pytest.mark.optimised

B, D, C = 4, 3, 4
LABELS = np.array([0, 2, 2, 3])


def step_inputs(logits, step=0, **fields):
    nothing = jnp.zeros((B, 2))
    return StepInputs(
        query=EncoderOutput(nothing, nothing, jnp.asarray(logits, jnp.float32)),
        labels=jnp.asarray(LABELS),
        epoch=jnp.asarray(0),
        step=jnp.asarray(step),
        **fields,
    )


@pytest.mark.parametrize(
    ("objective", "step", "share"),
    [
        (LSoftmax(), 0, 1000.0),
        (LSoftmax(), 30_000, 1000.0 * 1.6**-45),
        (LSoftmax(margin=2, lambda_base=10.0, lambda_power=2.0), 50_000, 10.0 / 4),
        (LSoftmax(lambda_minimum=5.0), 30_000, 5.0),
    ],
)
def test_l_softmax_anneals_and_averages(objective, step, share):
    """lambda = max(minimum, base (1 + gamma step)^-power); the mean over the batch."""
    rng = np.random.default_rng(1)
    x, centres = rng.normal(size=(B, D)), rng.normal(size=(D, C))

    @jax.jit
    def loss(x, centres):
        parts = ClassCentres(x, centres)
        return objective(step_inputs(x @ centres, step, class_centres=parts))

    arrays = [jnp.asarray(array, jnp.float32) for array in (x, centres)]
    value, metrics = loss(*arrays)
    assert float(metrics["margin_lambda"]) == pytest.approx(share, rel=1e-4)
    expected = angular_loss(x, centres, LABELS, objective.margin, share) / B
    assert float(value) == pytest.approx(expected, rel=1e-4)

    gradients = jax.grad(lambda *a: loss(*a)[0], argnums=(0, 1))(*arrays)
    reference = functools.partial(
        angular_loss, labels=LABELS, margin=objective.margin, plain_share=share
    )
    differences = (
        finite_differences(lambda a: reference(a, centres) / B, x),
        finite_differences(lambda a: reference(x, a) / B, centres),
    )
    for gradient, difference in zip(gradients, differences, strict=True):
        np.testing.assert_allclose(gradient, difference, rtol=5e-3, atol=2e-3)


IMAGES = np.random.default_rng(2).normal(size=(B, 2, 2))
FIRST, SECOND = (np.random.default_rng(3).normal(size=shape) for shape in ((4, D), (D, C)))


def lead_over_rival(activation, network, label, rival):
    probs = softmax(network(activation))
    return probs[label] - probs[rival]


def mean_distance(activations, network, at):
    """Of each row to its nearest boundary, capped; slopes are those at `at`, constants."""
    total = 0.0
    for row, start, label in zip(activations, at, LABELS, strict=True):
        rival = max((i for i in range(C) if i != label), key=lambda i: network(start)[i])
        lead = functools.partial(lead_over_rival, network=network, label=label, rival=rival)
        slope = np.linalg.norm(finite_differences(lead, start))
        total += lead(row) / (slope + 1e-8)
    return total / B


def from_features(row):
    return row @ SECOND


def from_images(row):
    return np.tanh(row.reshape(-1) @ FIRST) @ SECOND


@pytest.mark.parametrize("layers", [("features",), ("images",), ("images", "features")])
@pytest.mark.parametrize("ce_weight", [0.0, 0.5])
def test_large_margin_is_the_mean_over_layers_with_cross_entropy_beside_it(layers, ce_weight):
    objective = LargeMargin(layers=layers, ce_weight=ce_weight)
    features = np.tanh(IMAGES.reshape(B, -1) @ FIRST)
    first, second = (jnp.asarray(array, jnp.float32) for array in (FIRST, SECOND))
    networks = {"features": from_features, "images": from_images}
    values = {"features": features, "images": IMAGES}

    @jax.jit
    def loss(images, features, logits):
        activations = {
            "features": Activation(features, lambda a: a @ second),
            "images": Activation(images, lambda a: jnp.tanh(a.reshape(B, -1) @ first) @ second),
        }
        chosen = {name: activations[name] for name in layers}
        return objective(step_inputs(logits, layers=chosen))[0]

    def reference(images, features, logits):
        moved = {"images": images, "features": features}
        distances = [mean_distance(moved[name], networks[name], values[name]) for name in layers]
        rows = [-np.log(softmax(row)[label]) for row, label in zip(logits, LABELS, strict=True)]
        return -np.mean(distances) + ce_weight * np.mean(rows)

    inputs = {"images": IMAGES, "features": features, "logits": features @ SECOND}
    arrays = [jnp.asarray(array, jnp.float32) for array in inputs.values()]
    value, gradients = jax.value_and_grad(loss, argnums=(0, 1, 2))(*arrays)
    assert float(value) == pytest.approx(reference(**inputs), rel=1e-3)
    for name, gradient in zip(inputs, gradients, strict=True):
        expected = finite_differences(
            lambda moved, name=name: reference(**{**inputs, name: moved}), inputs[name]
        )
        np.testing.assert_allclose(gradient, expected, rtol=5e-3, atol=1e-3, err_msg=name)


def test_distances_are_wanted_between_the_two_bounds():
    """Beyond gamma, and below gamma (1 - alpha), a distance has no gradient."""
    features = jnp.asarray([[3.0, 0.0], [0.0, 3.0], [0.1, 0.0], [0.0, 0.1]])
    labels = jnp.asarray([0, 0, 0, 0])
    objective = LargeMargin(gamma=1.0, alpha=2.0)

    def loss(features):
        layers = {"features": Activation(features, lambda a: a)}
        inputs = step_inputs(features, layers=layers)._replace(labels=labels)
        return objective(inputs)[0]

    moves = np.abs(jax.grad(loss)(features)).sum(axis=1) > 0
    # Far on the right side, far on the wrong side, near on either.
    np.testing.assert_array_equal(moves, [False, False, True, True])
