"""The bank against a deque, its look-ups against NumPy."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import losses, memory_bank

pytestmark = pytest.mark.optimised

DIM, CLASSES = 3, 4


enqueue = jax.jit(memory_bank.enqueue)
neighbours = jax.jit(memory_bank.neighbours, static_argnums=2)
soft_labels = jax.jit(memory_bank.soft_labels, static_argnames="temperature")


def random_rows(rng, count, first_id=0):
    features = rng.normal(size=(count, DIM)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return (
        features,
        rng.integers(0, CLASSES, count).astype(np.int32),
        rng.dirichlet(np.ones(CLASSES), size=count).astype(np.float32),
        np.arange(first_id, first_id + count, dtype=np.int32),
    )


def filled_bank(size, count, seed=0):
    rows = random_rows(np.random.default_rng(seed), count)
    bank = memory_bank.init(size, DIM, CLASSES)
    return enqueue(bank, *map(jnp.asarray, rows)), rows


@settings(deadline=None, max_examples=25)
@given(
    size=st.sampled_from([1, 5, 8]),
    batches=st.lists(st.sampled_from([1, 3, 5]), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_bank_holds_what_a_bounded_deque_holds(size, batches, seed):
    rng = np.random.default_rng(seed)
    bank = memory_bank.init(size, DIM, CLASSES)
    model = collections.deque(maxlen=size)
    written = 0
    for batch in batches:
        batch = min(batch, size)
        rows = random_rows(rng, batch, first_id=written)
        bank = enqueue(bank, *map(jnp.asarray, rows))
        model.extend(zip(*rows, strict=True))
        written += batch
    assert int(bank.filled) == len(model) == min(written, size)
    assert int(bank.cursor) == written % size
    oldest = written % size if written >= size else 0
    for age, (features, label, probs, record) in enumerate(model):
        row = (oldest + age) % size
        np.testing.assert_array_equal(bank.features[row], features)
        np.testing.assert_array_equal(bank.probs[row], probs)
        assert (int(bank.labels[row]), int(bank.ids[row])) == (label, record)


def test_more_keys_than_rows_are_refused():
    bank = memory_bank.init(2, DIM, CLASSES)
    with pytest.raises(ValueError, match="3 keys into a bank of 2"):
        memory_bank.enqueue(
            bank, jnp.zeros((3, DIM)), jnp.zeros(3, jnp.int32), jnp.zeros((3, CLASSES))
        )


@settings(deadline=None, max_examples=25)
@given(
    count=st.sampled_from([0, 1, 5, 8]),
    k=st.sampled_from([1, 3, 8]),
    exclude=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_neighbours_are_the_nearest_valid_rows(count, k, exclude, seed):
    size = 8
    bank, (features, labels, _, ids) = filled_bank(size, count, seed)
    queries, _, _, query_ids = random_rows(np.random.default_rng(seed + 1), 3)
    near = neighbours(bank, jnp.asarray(queries), k, jnp.asarray(query_ids) if exclude else None)
    for i, query in enumerate(queries):
        allowed = [j for j in range(count) if not (exclude and ids[j] == query_ids[i])]
        expected = sorted(allowed, key=lambda j: -float(features[j] @ query))[:k]
        found = int(near.valid[i].sum())
        assert found == len(expected)
        assert near.valid[i, :found].all()
        assert near.rows[i, :found].tolist() == expected
        assert near.labels[i, :found].tolist() == labels[expected].tolist()
        np.testing.assert_allclose(
            near.similarity[i, :found], features[expected] @ query, atol=1e-6
        )
        assert not near.similarity[i, found:].any()


def test_ties_are_all_returned_once():
    bank = memory_bank.init(6, DIM, CLASSES)
    row = jnp.tile(jnp.array([[1.0, 0.0, 0.0]]), (6, 1))
    bank = memory_bank.enqueue(bank, row, jnp.arange(6), jnp.full((6, CLASSES), 0.25))
    near = memory_bank.neighbours(bank, row[:1], 4)
    assert len(set(near.rows[0].tolist())) == 4
    np.testing.assert_allclose(near.similarity, 1)


def test_all_rows_is_the_whole_bank_in_order():
    bank, (features, labels, _, _) = filled_bank(6, 4)
    near = memory_bank.all_rows(bank, jnp.asarray(features[:2]), jnp.array([0, 9]))
    assert near.valid.tolist() == [
        [False, True, True, True, False, False],
        [True] * 4 + [False] * 2,
    ]
    np.testing.assert_allclose(near.similarity[1, :4], features @ features[1], atol=1e-6)
    assert near.labels[1].tolist() == [*labels.tolist(), -1, -1]


@settings(deadline=None, max_examples=20)
@given(count=st.sampled_from([0, 1, 6]), exclude=st.booleans(), seed=st.integers(0, 2**31))
def test_soft_labels_weigh_the_stored_predictions(count, exclude, seed):
    bank, (features, _, probs, ids) = filled_bank(6, count, seed)
    keys, _, _, key_ids = random_rows(np.random.default_rng(seed + 1), 2)
    actual = soft_labels(
        bank,
        jnp.asarray(keys),
        temperature=0.1,
        exclude_ids=jnp.asarray(key_ids) if exclude else None,
    )
    for i in range(2):
        weights = np.exp(features @ keys[i] / 0.1)
        if exclude:
            weights = weights * (ids != key_ids[i])
        if weights.sum() > 0:
            expected = weights @ probs / weights.sum()
        else:
            expected = np.asarray(bank.probs).mean(axis=0)
        np.testing.assert_allclose(actual[i], expected, atol=1e-5)


def test_rows_without_id_are_never_excluded():
    bank = memory_bank.init(2, DIM, CLASSES)
    bank = memory_bank.enqueue(
        bank, jnp.eye(DIM)[:2], jnp.array([1, 2]), jnp.full((2, CLASSES), 0.25)
    )
    near = memory_bank.neighbours(bank, jnp.eye(DIM)[:1], 2, jnp.array([memory_bank.NO_ID]))
    assert near.valid.all()


def test_gradients_reach_the_query_through_the_chosen_rows_only():
    bank, (features, *_) = filled_bank(6, 5)
    query = jnp.asarray(features[:1])
    near = memory_bank.neighbours(bank, query, 2)
    gradient = jax.grad(lambda q: memory_bank.neighbours(bank, q, 2).similarity.sum())(query)
    np.testing.assert_allclose(gradient[0], features[near.rows[0]].sum(axis=0), atol=1e-6)

    def through_bank(values):
        return memory_bank.neighbours(bank.replace(features=values), query, 2).similarity.sum()

    assert not jax.grad(through_bank)(bank.features).any()


def test_an_official_bank_makes_the_consistency_loss_not_finite():
    """Why docs/design.md advises against it: noise in the place of probabilities is negative."""
    bank = memory_bank.init_official(jax.random.key(0), memory_bank.init(64, DIM, CLASSES))
    keys = losses.normalise(jax.random.normal(jax.random.key(1), (32, DIM)))
    target = memory_bank.soft_labels(bank, keys, temperature=0.1)
    assert not jnp.isfinite(
        losses.distributional_consistency(target, jnp.zeros((32, CLASSES)))
    ).all()


def test_official_bank_counts_from_the_start_and_noise_is_replaced():
    bank = memory_bank.init_official(jax.random.key(0), memory_bank.init(4, DIM, CLASSES))
    assert int(bank.filled) == 4
    assert bank.labels.tolist() == [0] * 4
    np.testing.assert_allclose(jnp.linalg.norm(bank.features, axis=1), 1, rtol=1e-6)
    rows = random_rows(np.random.default_rng(0), 4)
    bank = memory_bank.enqueue(bank, *map(jnp.asarray, rows))
    np.testing.assert_array_equal(bank.features, rows[0])


def test_probabilities_may_be_bfloat16():
    bank = memory_bank.init(4, DIM, CLASSES, jnp.bfloat16)
    rows = random_rows(np.random.default_rng(0), 3)
    bank = memory_bank.enqueue(bank, *map(jnp.asarray, rows))
    assert bank.probs.dtype == jnp.bfloat16
    soft = memory_bank.soft_labels(bank, jnp.asarray(rows[0]), temperature=0.1)
    assert soft.dtype == jnp.float32
    np.testing.assert_allclose(soft.sum(axis=1), 1, atol=0.01)


def test_works_under_vmap_and_jit():
    bank, (features, *_) = filled_bank(6, 6)
    queries = jnp.asarray(features).reshape(3, 2, DIM)
    batched = jax.jit(jax.vmap(lambda q: memory_bank.neighbours(bank, q, 2).rows))(queries)
    expected = memory_bank.neighbours(bank, queries.reshape(6, DIM), 2).rows
    np.testing.assert_array_equal(batched.reshape(6, 2), expected)
