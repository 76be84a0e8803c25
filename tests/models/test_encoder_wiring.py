"""What is connected to what in the encoder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import models
from cone_jax.errors import UserError
from cone_jax.models import Classifier, Projection
from tests.models import random_variables

IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8, 8, 3)), jnp.float32)


def build(**options):
    options = {"projection": Projection(dim=6, hidden=12)} | options
    encoder = models.create("resnet8", 5, stem="cifar", width=4, **options)
    return encoder, random_variables.draw(encoder, 8)


def evaluate(encoder, variables, images=IMAGES):
    run = jax.jit(functools.partial(encoder.apply, train=False))
    return run(variables, images)


def test_classifier_sees_the_unnormalised_embedding_by_default():
    encoder, variables = build()
    out = evaluate(encoder, variables)
    centres = variables["params"]["classifier"]
    np.testing.assert_allclose(
        out.logits, out.embedding @ centres["kernel"] + centres["bias"], atol=1e-5
    )
    assert not np.allclose(jnp.linalg.norm(out.embedding, axis=1), 1)


def test_cosine_classifier_sees_unit_embeddings_and_may_have_no_bias():
    encoder, variables = build(classifier=Classifier(kind="cosine", bias=False))
    out = evaluate(encoder, variables)
    unit = out.embedding / jnp.linalg.norm(out.embedding, axis=1, keepdims=True)
    centres = variables["params"]["classifier"]
    assert set(centres) == {"kernel"}
    np.testing.assert_allclose(out.logits, unit @ centres["kernel"], atol=1e-5)


def test_classifier_on_features_leaves_the_embedding_to_the_contrast():
    encoder, variables = build(classifier=Classifier(input="features"))
    out = evaluate(encoder, variables)
    centres = variables["params"]["classifier"]
    np.testing.assert_allclose(
        out.logits, out.features @ centres["kernel"] + centres["bias"], atol=1e-5
    )
    assert out.embedding.shape == (4, 6)


def test_without_projection_the_embedding_is_the_features():
    encoder, variables = build(projection=None)
    out = evaluate(encoder, variables)
    np.testing.assert_array_equal(out.embedding, out.features)
    assert "projection" not in variables["params"]


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_head_has_as_many_hidden_layers_as_asked(layers):
    _, variables = build(projection=Projection(dim=6, hidden=12, layers=layers, batch_norm=True))
    head = variables["params"]["projection"]
    assert sum(name.startswith("linear") for name in head) == layers + 1
    assert sum(name.startswith("bn") for name in head) == layers


def test_head_width_follows_the_released_rule():
    encoder = models.create("resnet50", 10)
    shapes = models.abstract_variables(encoder, 32)
    assert shapes["params"]["projection"]["linear1"]["kernel"].shape == (2048, 4096)


def test_bfloat16_computes_in_half_and_returns_float32():
    encoder, variables = build(dtype=jnp.bfloat16)
    reference, _ = build()
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
    out = evaluate(encoder, variables)
    exact = evaluate(reference, variables)
    assert {leaf.dtype for leaf in out if leaf is not None} == {jnp.dtype("float32")}
    difference = np.abs(out.logits - exact.logits).max()
    assert 0 < difference < 0.1


def test_train_mode_uses_the_batch_and_moves_the_statistics():
    encoder, variables = build()
    train = functools.partial(encoder.apply, train=True, mutable=["batch_stats"])
    _, updated = jax.jit(train)(variables, IMAGES)
    old, new = (
        variables["batch_stats"]["backbone"]["bn1"],
        updated["batch_stats"]["backbone"]["bn1"],
    )
    assert not np.allclose(old["mean"], new["mean"])
    one = evaluate(encoder, variables, IMAGES[:1]).logits
    every = evaluate(encoder, variables).logits
    np.testing.assert_allclose(one, every[:1], atol=1e-5)


def test_unknown_names_and_options_are_the_users_to_mend():
    with pytest.raises(UserError, match=r"model.name \('resnet49'\).*did you mean"):
        models.create("resnet49", 10)
    with pytest.raises(UserError, match=r"model.stem"):
        models.create("resnet18", 10, stem="imagnet")
    with pytest.raises(UserError, match=r"do not fit resnet18"):
        models.create("resnet18", 10, wdth=3)
