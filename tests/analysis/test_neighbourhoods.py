"""Neighbours and coefficients against loops over the bank's rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import memory_bank
from cone_jax.analysis import neighbourhoods


def unit(rng, *shape):
    rows = rng.normal(size=shape)
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def bank():
    """30 rows of 40 written, three classes, records 100 to 129."""
    rng = np.random.default_rng(0)
    empty = memory_bank.init(size=40, dim=6, num_classes=3)
    return memory_bank.enqueue(
        empty,
        jnp.asarray(unit(rng, 30, 6)),
        jnp.arange(30, dtype=jnp.int32) % 3,
        jnp.full((30, 3), 1 / 3),
        jnp.arange(100, 130, dtype=jnp.int32),
    )


def test_nearest_rows(bank):
    queries = unit(np.random.default_rng(1), 4, 6)
    sheet = neighbourhoods.nearest(
        bank, queries, np.arange(4), np.zeros(4, int), np.zeros(4, int), k=5
    )
    cosines = queries @ np.asarray(bank.features)[:30].T
    for index in range(4):
        order = np.argsort(-cosines[index])[:5]
        assert sheet.neighbours[index].tolist() == (order + 100).tolist()
        assert sheet.neighbour_labels[index].tolist() == (order % 3).tolist()
        np.testing.assert_allclose(sheet.similarity[index], cosines[index, order], atol=1e-6)


def test_a_record_is_a_neighbour_once_by_its_nearest_copy(bank):
    """Ten of the records are written again, with other embeddings."""
    rng = np.random.default_rng(2)
    again = jnp.arange(100, 110, dtype=jnp.int32)
    bank = memory_bank.enqueue(
        bank, jnp.asarray(unit(rng, 10, 6)), (again - 100) % 3, jnp.full((10, 3), 1 / 3), again
    )
    queries = unit(np.random.default_rng(1), 3, 6)
    sheet = neighbourhoods.nearest(
        bank, queries, np.arange(3), np.zeros(3, int), np.zeros(3, int), k=40
    )
    cosines, ids = queries @ np.asarray(bank.features).T, np.asarray(bank.ids)
    for index in range(3):
        best: dict[int, float] = {}
        for row in np.argsort(-cosines[index]):
            best.setdefault(int(ids[row]), cosines[index, row])
        assert sheet.neighbours[index].tolist() == [*best, *[-1] * 10]
        np.testing.assert_allclose(sheet.similarity[index, :30], list(best.values()), atol=1e-6)
        assert (sheet.neighbour_labels[index, 30:] == -1).all()


def test_rows_never_written_are_no_neighbours():
    bank = memory_bank.init(size=4, dim=2, num_classes=2)
    bank = memory_bank.enqueue(
        bank, jnp.eye(2), jnp.array([0, 1]), jnp.eye(2), jnp.array([7, 8], jnp.int32)
    )
    sheet = neighbourhoods.nearest(
        bank, np.array([[1.0, 0.0]], np.float32), np.zeros(1), np.zeros(1), np.zeros(1), k=8
    )
    assert sheet.neighbours.tolist() == [[7, 8, -1, -1]]
    assert sheet.neighbour_labels.tolist() == [[0, 1, -1, -1]]


def test_coefficients_of_the_gradient_analysis(bank):
    """alpha_p = s_p / S_p - s_p / (S_p + S_n), with the query's own copy left out."""
    tau = 0.2
    features, labels = np.asarray(bank.features)[:30], np.arange(30) % 3
    records = np.array([100, 104])  # rows 0 and 4, of classes 0 and 1
    queries = features[[0, 4]]
    sheet = neighbourhoods.pull(bank, queries, records, labels[[0, 4]], temperature=tau)
    for index, own in enumerate((0, 4)):
        s = np.exp(features.astype(np.float64) @ queries[index].astype(np.float64) / tau)
        others = np.arange(30) != own
        positive = others & (labels == labels[own])
        s_p, s_all = s[positive].sum(), s[others].sum()
        expected = {100 + row: s[row] / s_p - s[row] / s_all for row in np.flatnonzero(positive)}
        found = dict(zip(sheet.positives[index].tolist(), sheet.alpha[index], strict=True))
        assert found.keys() == expected.keys()
        assert 100 + own not in found
        for record, alpha in expected.items():
            assert found[record] == pytest.approx(alpha, rel=1e-4)
        # The most similar first, and pulled the most; together 1 - P_pos.
        assert (np.diff(sheet.similarity[index]) <= 0).all()
        assert (np.diff(sheet.alpha[index]) <= 0).all()
        assert sheet.alpha[index].sum() == pytest.approx(1 - s_p / s_all, rel=1e-4)


def test_of_many_positives_the_middle_is_left_out(bank):
    arguments = (bank, np.asarray(bank.features)[:1], np.array([100]), np.array([0]))
    whole = neighbourhoods.pull(*arguments, temperature=0.1)
    short = neighbourhoods.pull(*arguments, temperature=0.1, most=5)
    count = int(np.isfinite(whole.alpha[0]).sum())
    assert count == 9
    kept = [0, 1, count - 3, count - 2, count - 1]
    assert short.positives[0].tolist() == whole.positives[0, kept].tolist()


def test_queries_with_different_numbers_of_positives():
    bank = memory_bank.init(size=8, dim=2, num_classes=2)
    features = jnp.asarray(unit(np.random.default_rng(0), 5, 2))
    labels = jnp.array([0, 0, 0, 1, 1], jnp.int32)
    bank = memory_bank.enqueue(
        bank, features, labels, jnp.eye(5, 2), jnp.arange(5, dtype=jnp.int32)
    )
    sheet = neighbourhoods.pull(
        bank, np.asarray(features)[[0, 3]], np.array([0, 3]), np.array([0, 1]), temperature=0.1
    )
    assert np.isfinite(sheet.alpha).sum(axis=1).tolist() == [2, 1]
    assert sheet.positives[1].tolist() == [4, -1]
    assert neighbourhoods.ends(sheet, 0, each=1) == [0, 1]
    assert neighbourhoods.ends(sheet, 1, each=1) == [0]
