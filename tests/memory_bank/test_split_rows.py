"""A bank split over eight devices is the bank on one, for any size and number of queries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import distributed, memory_bank

pytestmark = pytest.mark.optimised

DIM, CLASSES = 4, 5


@pytest.fixture(scope="module")
def mesh():
    return distributed.make_mesh()


def keys_of(rng, count, first_id):
    # Quarters: products of such features are exact, in whatever order they are added up, and many
    # keys are exactly as similar as others.
    return {
        "features": jnp.asarray(np.round(rng.normal(size=(count, DIM))) / 4, jnp.float32),
        "labels": jnp.asarray(rng.integers(0, CLASSES, count), jnp.int32),
        "probs": jnp.asarray(rng.dirichlet(np.ones(CLASSES), size=count), jnp.float32),
        "ids": jnp.arange(first_id, first_id + count),
    }


def both_banks(mesh, size, batches, seed=0):
    whole = memory_bank.init(size, DIM, CLASSES)
    split = memory_bank.init(size, DIM, CLASSES, mesh=mesh, split=True)
    split = jax.device_put(split, memory_bank.shardings(split, mesh))
    enqueue = jax.jit(memory_bank.enqueue, donate_argnums=0)
    rng, written = np.random.default_rng(seed), 0
    for count in batches:
        keys = keys_of(rng, count, written)
        whole, split = enqueue(whole, **keys), enqueue(split, **keys)
        written += count
    return whole, split


# Divisible and not, fewer rows than devices, empty, half filled, wrapped around.
CASES = [(16, (8, 8, 8)), (19, (8, 8, 8)), (19, (8,)), (3, (2, 2)), (13, ()), (40, (8,) * 7)]


@pytest.mark.parametrize(("size", "batches"), CASES)
def test_it_holds_the_same_rows_an_eighth_on_each_device(mesh, size, batches):
    whole, split = both_banks(mesh, size, batches)
    assert split.size == size
    for name in ("features", "labels", "probs", "ids"):
        column = getattr(split, name)
        np.testing.assert_array_equal(column[:size], getattr(whole, name))
        assert {shard.data.shape[0] for shard in column.addressable_shards} == {-(-size // 8)}
    assert (int(split.cursor), int(split.filled)) == (int(whole.cursor), int(whole.filled))
    assert (split.labels[size:] == -1).all()


@pytest.mark.parametrize(("size", "batches"), CASES)
@pytest.mark.parametrize("same_class", [False, True])
def test_it_finds_the_same_neighbours(mesh, size, batches, same_class):
    whole, split = both_banks(mesh, size, batches)
    keys = keys_of(np.random.default_rng(1), 11, first_id=5)
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(11, min(size, 6))), jnp.float32)

    def look_up(bank, queries):
        near = memory_bank.neighbours(
            bank,
            queries,
            min(size, 6),
            keys["ids"],
            same_class=keys["labels"] if same_class else None,
        )
        return jnp.sum(near.similarity * weights), near

    compare = jax.jit(jax.value_and_grad(look_up, argnums=1, has_aux=True))
    (_, expected), gradient = compare(whole, keys["features"])
    (_, actual), split_gradient = compare(split, keys["features"])
    np.testing.assert_array_equal(actual.valid, expected.valid)
    np.testing.assert_array_equal(actual.labels, expected.labels)
    rows = np.where(expected.valid, expected.rows, 0)
    np.testing.assert_array_equal(np.where(actual.valid, actual.rows, 0), rows)
    np.testing.assert_allclose(actual.similarity, expected.similarity, atol=1e-6)
    np.testing.assert_allclose(split_gradient, gradient, atol=1e-6)


@pytest.mark.parametrize(("size", "batches"), CASES)
def test_it_averages_the_same_predictions(mesh, size, batches):
    whole, split = both_banks(mesh, size, batches)
    keys = keys_of(np.random.default_rng(1), 11, first_id=5)
    average = jax.jit(
        lambda bank: memory_bank.soft_labels(
            bank, keys["features"], temperature=0.07, exclude_ids=keys["ids"]
        )
    )
    np.testing.assert_allclose(average(split), average(whole), atol=1e-6)


def test_all_rows_are_the_same(mesh):
    whole, split = both_banks(mesh, 19, (8, 8))
    queries = keys_of(np.random.default_rng(1), 3, first_id=5)["features"]
    for actual, expected in zip(
        memory_bank.all_rows(split, queries), memory_bank.all_rows(whole, queries), strict=True
    ):
        np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_predictions_are_recomputed_where_the_rows_are(mesh):
    kernel = jax.random.normal(jax.random.key(0), (DIM, CLASSES))
    keys = keys_of(np.random.default_rng(0), 16, 0)
    lean = memory_bank.init(19, DIM, 0, keep_norms=True)
    split = memory_bank.init(19, DIM, 0, keep_norms=True, mesh=mesh, split=True)
    norms = jnp.linspace(0.5, 3.0, 16)

    @jax.jit
    def average(bank, kernel):
        bank = memory_bank.enqueue(bank, keys["features"], keys["labels"], None, norms=norms)
        return memory_bank.soft_labels(
            bank,
            keys["features"],
            temperature=0.2,
            classify=lambda embedding: jax.nn.softmax(embedding @ kernel),
        )

    np.testing.assert_allclose(average(split, kernel), average(lean, kernel), atol=1e-6)


def test_queries_split_over_devices_need_no_other_device(mesh):
    """A bank that is whole everywhere: `top_k` must not gather the similarities of all queries."""
    bank, _ = both_banks(mesh, 8 * 1021, (8, 8))
    bank = bank.replace(mesh=mesh)
    keys = keys_of(np.random.default_rng(1), 16, first_id=5)
    queries = jax.device_put(keys["features"], distributed.split(mesh))

    def look_up(bank, queries):
        near = memory_bank.neighbours(bank, queries, 4)
        return near.similarity, memory_bank.soft_labels(bank, queries, temperature=0.1)

    compiled = jax.jit(look_up).lower(bank, queries).compile()
    assert "all-gather" not in compiled.as_text()
    for actual, expected in zip(
        look_up(bank, queries), look_up(bank.replace(mesh=None), queries), strict=True
    ):
        np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_no_device_ever_holds_all_rows(mesh):
    """The compiled look-ups gather queries and answers, never the bank."""
    bank = memory_bank.init(8 * 521, DIM, CLASSES, mesh=mesh, split=True)
    bank = jax.device_put(bank, memory_bank.shardings(bank, mesh))
    keys = keys_of(np.random.default_rng(0), 16, 0)

    def step(bank, keys):
        near = memory_bank.neighbours(bank, keys["features"], 4)
        soft = memory_bank.soft_labels(bank, keys["features"], temperature=0.1)
        return memory_bank.enqueue(bank, **keys), near, soft

    compiled = jax.jit(step, donate_argnums=0).lower(bank, keys).compile().as_text()
    assert "[521," in compiled
    assert "[4168," not in compiled
