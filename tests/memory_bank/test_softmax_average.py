"""Averages put together from blocks, against the softmax written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import losses, memory_bank
from cone_jax.memory_bank import bank, lookup

pytestmark = pytest.mark.optimised


@settings(deadline=None, max_examples=25)
@given(
    scale=st.sampled_from([1.0, 1e3, 1e6]),
    hidden=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_blocks_in_any_order_give_the_dense_average(scale, hidden, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, 12)) * scale
    values = rng.dirichlet(np.ones(4), size=12)
    where = rng.random((3, 12)) >= hidden
    blocks = [slice(0, 5), slice(5, 6), slice(6, 12)]
    parts = [
        bank.block_average(
            jnp.asarray(logits[:, block], jnp.float32),
            jnp.asarray(values[block], jnp.float32),
            where=jnp.asarray(where[:, block]),
        )
        for block in rng.permutation(np.array(blocks, dtype=object))
    ]
    merged = bank.merge_averages(parts[0], bank.merge_averages(parts[1], parts[2]))
    shown = logits.astype(np.float32).astype(np.float64)
    for i in range(3):
        seen = where[i] if where[i].any() else np.ones(12, bool)
        row = np.where(seen, shown[i] if where[i].any() else 0.0, -np.inf)
        weights = np.exp(row - row.max())
        expected = weights @ values / weights.sum()
        np.testing.assert_allclose(bank.finish_average(merged)[i], expected, atol=1e-5)


def test_rows_that_do_not_exist_have_no_part_in_the_mean():
    part = bank.block_average(
        jnp.zeros((1, 3)),
        jnp.array([[0.0], [2.0], [9.0]]),
        where=jnp.zeros((1, 3), bool),
        exists=jnp.array([True, True, False]),
    )
    nothing = bank.block_average(
        jnp.zeros((1, 1)),
        jnp.full((1, 1), 9.0),
        where=jnp.zeros((1, 1), bool),
        exists=jnp.zeros(1, bool),
    )
    np.testing.assert_allclose(bank.finish_average(bank.merge_averages(nothing, part)), 1.0)


def test_a_bank_of_several_blocks_gives_what_the_whole_gives(monkeypatch):
    monkeypatch.setattr(lookup, "MOST_WEIGHTS", 8 * 2)  # two keys
    rng = np.random.default_rng(0)
    for size, count in [(8, 8), (24, 24), (27, 20), (30, 0), (5, 5)]:
        bank = memory_bank.init(size, 3, 4)
        if count:
            features = losses.normalise(jnp.asarray(rng.normal(size=(count, 3))))
            probs = jnp.asarray(rng.dirichlet(np.ones(4), size=count), jnp.float32)
            labels = ids = jnp.arange(count)
            bank = memory_bank.enqueue(bank, features, labels, probs, ids)
        keys = losses.normalise(jnp.asarray(rng.normal(size=(2, 3))))
        exclude = jnp.array([1, 2])
        where = jnp.broadcast_to(memory_bank.valid_rows(bank, exclude), (2, size))
        dense = losses.soft_labels(
            memory_bank.similarity(bank, keys), bank.probs, temperature=0.07, where=where
        )
        streamed = jax.jit(memory_bank.soft_labels, static_argnames="temperature")(
            bank, keys, temperature=0.07, exclude_ids=exclude
        )
        np.testing.assert_allclose(streamed, dense, atol=2e-6)


def test_predictions_can_be_recomputed_from_the_embeddings():
    """With the classifier that wrote them, they are those that would have been stored."""
    rng = np.random.default_rng(0)
    kernel = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    embedding = jnp.asarray(rng.normal(size=(6, 3)), jnp.float32) * 5

    def classify(embedding):
        return jax.nn.softmax(embedding @ kernel)

    unit, norms = losses.normalise(embedding), jnp.linalg.norm(embedding, axis=-1)
    labels = jnp.zeros(6, jnp.int32)
    stored = memory_bank.enqueue(memory_bank.init(9, 3, 4), unit, labels, classify(embedding))
    lean = memory_bank.init(9, 3, 0, keep_norms=True)
    lean = memory_bank.enqueue(lean, unit, labels, None, norms=norms)
    assert lean.probs is None
    keys = losses.normalise(embedding[:2] + 1.0)
    expected = memory_bank.soft_labels(stored, keys, temperature=0.07)
    actual = memory_bank.soft_labels(lean, keys, temperature=0.07, classify=classify)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
