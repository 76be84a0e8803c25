"""Nearest neighbours against a NumPy loop and scikit-learn, ties and blocks included."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from cone_jax import distributed
from cone_jax.evaluation.probes import knn

T = 0.07


def mesh(devices=1):
    return distributed.make_mesh(jax.devices()[:devices])


def reference(train, labels, queries, k, num_classes):
    """Ranked classes of each query, one at a time, by stable sorts in float64."""
    ranked = []
    for query in queries.astype(np.float64):
        cosines = np.array(
            [
                row @ query / max(np.linalg.norm(row) * np.linalg.norm(query), 1e-12)
                for row in train.astype(np.float64)
            ]
        )
        votes = np.zeros(num_classes)
        # Rounding makes equal cosines of different rows differ by an epsilon or two.
        for place in np.argsort(-cosines.round(6), kind="stable")[:k]:
            votes[labels[place]] += np.exp(cosines[place].round(6) / T)
        ranked.append(np.argsort(-votes.round(9), kind="stable")[: min(5, num_classes)])
    return np.array(ranked)


@pytest.mark.parametrize(("devices", "query_rows", "train_rows"), [(1, 64, 7), (8, 16, 10)])
def test_every_block_size_gives_the_answer_of_a_full_sort(devices, query_rows, train_rows):
    rng = np.random.default_rng(0)
    train, labels = rng.normal(size=(53, 6)).astype(np.float32), rng.integers(0, 7, 53)
    queries = rng.normal(size=(21, 6)).astype(np.float32)
    expected = {k: reference(train, labels, queries, k, 7) for k in (1, 5, 45)}
    found = knn.knn_classes(
        (train, labels),
        queries,
        num_classes=7,
        mesh=mesh(devices),
        ks=(45, 1, 5),
        query_rows=query_rows,
        train_rows=train_rows,
    )
    assert found.keys() == expected.keys()
    for k, classes in expected.items():
        np.testing.assert_array_equal(found[k], classes)


def test_top1_is_scikit_learns():
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(4, 8))
    labels = rng.integers(0, 4, 120)
    rows = (centres[labels] + rng.normal(size=(120, 8))).astype(np.float32)
    theirs = KNeighborsClassifier(
        15, metric="cosine", algorithm="brute", weights=lambda distance: np.exp(-distance / T)
    ).fit(rows[:80], labels[:80])
    ours = knn.knn_scores(
        (rows[:80], labels[:80]), (rows[80:], labels[80:]), num_classes=4, mesh=mesh(), ks=(15,)
    )
    assert ours["knn15/top1"] == pytest.approx(theirs.score(rows[80:], labels[80:]))
    assert 0.3 < ours["knn15/top1"] < 1.0  # a problem on which mistakes can be made


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_ties_go_to_the_first_example_and_the_lower_class(data):
    """Rows along few axes: most cosines are equal, and exact in float32."""
    count = 9
    axes = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    train = np.eye(3, dtype=np.float32)[axes] * 4
    queries = np.eye(3, dtype=np.float32)
    k = data.draw(st.sampled_from([1, 2, 5]))
    found = knn.knn_classes(
        (train, labels), queries, num_classes=3, mesh=mesh(), ks=(k,), train_rows=4
    )
    np.testing.assert_array_equal(found[k], reference(train, labels, queries, k, 3))


def test_k_is_no_larger_than_the_training_set():
    rows, labels = np.eye(3, dtype=np.float32), np.arange(3)
    scores = knn.knn_scores((rows, labels), (rows, labels), num_classes=3, mesh=mesh())
    assert scores == {"knn3/top1": 1.0, "knn3/top5": 1.0, "knn3/mean_per_class": 1.0}


def test_length_does_not_matter():
    train = np.array([[1.0, 0.0], [0.0, 100.0]], np.float32)
    query = np.array([[0.2, 0.1]], np.float32)
    found = knn.knn_classes((train, np.array([1, 0])), query, num_classes=2, mesh=mesh(), ks=(1,))
    assert found[1][0, 0] == 1


def test_padding_of_a_block_has_no_vote():
    """All examples are on the other side: a row of zeros would be nearer than any of them."""
    train = np.array([[-1.0, 0.5], [-1.0, 0.0], [-1.0, 0.1]], np.float32)
    query = np.array([[1.0, 0.0]], np.float32)
    labels = np.array([2, 1, 1])
    found = knn.knn_classes(
        (train, labels), query, num_classes=3, mesh=mesh(), ks=(3,), train_rows=2
    )
    assert found[3][0].tolist() == [2, 1, 0]
