"""Logistic regression against scikit-learn's, the choice of l2, and few-shot draws."""

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, top_k_accuracy_score

from cone_jax import distributed
from cone_jax.evaluation.probes import few_shot, linear


def mesh(devices=1):
    return distributed.make_mesh(jax.devices()[:devices])


@pytest.fixture(scope="module")
def problem():
    """Overlapping classes: 6 of them, 90 + 60 examples of 5 features."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 5))
    labels = np.arange(150) % 6
    rows = (centres[labels] + 0.8 * rng.normal(size=(150, 5))).astype(np.float32)
    return rows[:90], labels[:90], rows[90:], labels[90:]


@pytest.mark.parametrize(("devices", "l2"), [(1, 1e-3), (8, 1e-1)])
def test_the_answer_is_scikit_learns(problem, devices, l2):
    rows, labels, others, _ = problem
    ours = linear.fit(rows, labels, num_classes=6, l2=l2, mesh=mesh(devices))
    theirs = LogisticRegression(C=1 / (90 * l2), tol=1e-9, max_iter=5000)
    theirs.fit(rows.astype(np.float64), labels)
    np.testing.assert_allclose(ours.kernel, theirs.coef_.T, atol=5e-3 * np.abs(theirs.coef_).max())
    # A constant added to all biases changes nothing.
    np.testing.assert_allclose(
        ours.bias - ours.bias.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=0.02
    )
    np.testing.assert_array_equal(ours.ranked(others)[:, 0], theirs.predict(others))


def test_a_start_elsewhere_ends_at_the_same_place(problem):
    rows, labels, _, _ = problem
    far = linear.LinearClassifier(np.full((5, 6), 3.0, np.float32), np.ones(6, np.float32))
    settings = {"num_classes": 6, "l2": 0.1, "mesh": mesh()}
    near, moved = (linear.fit(rows, labels, start=s, **settings) for s in (None, far))
    np.testing.assert_allclose(near.kernel, moved.kernel, atol=2e-3)


def test_l2_is_the_best_on_the_hold_out():
    """Fifty features of noise and one that tells the class: little decay fits the noise."""
    rng = np.random.default_rng(3)
    labels = np.arange(80) % 2
    rows = rng.normal(size=(80, 51)).astype(np.float32)
    rows[:, 0] += 3.0 * labels
    settings = {"num_classes": 2, "mesh": mesh(), "seed": 0}
    chosen = linear.choose_l2(rows, labels, grid=(1e-6, 0.3), **settings)
    assert chosen == 0.3
    # So close that they make the same mistakes: the larger.
    assert linear.choose_l2(rows, labels, grid=(0.3, 0.300001), **settings) == 0.300001


def test_scores_are_those_of_scikit_learn(problem):
    rows, labels, others, truth = problem
    found = linear.linear_scores(
        (rows, labels), (others, truth), num_classes=6, mesh=mesh(), l2_grid=(0.05,)
    )
    mean, std = rows.mean(axis=0), rows.std(axis=0)
    theirs = LogisticRegression(C=1 / (90 * 0.05), tol=1e-8, max_iter=1000)
    theirs.fit((rows - mean) / std, labels)
    probabilities = theirs.predict_proba((others - mean) / std)
    predicted = probabilities.argmax(axis=1)
    assert found == pytest.approx(
        {
            "linear/top1": accuracy_score(truth, predicted),
            "linear/top5": top_k_accuracy_score(truth, probabilities, k=5),
            "linear/mean_per_class": balanced_accuracy_score(truth, predicted),
            "linear/l2": 0.05,
        }
    )


def test_a_dead_feature_stays_silent():
    train = np.array([[1.0, 5.0], [3.0, 5.0]], np.float32)
    test = np.array([[2.0, 6.0]], np.float32)
    seen, others = linear.standardise(train, test)
    np.testing.assert_allclose(seen, [[-1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(others, [[0.0, 0.0]])


def test_draws_are_balanced_nested_and_different():
    labels = np.repeat(np.arange(4), (10, 20, 30, 40))
    five, ten = (few_shot.draw_examples(labels, n, seed=0, draw=0) for n in (5, 10))
    assert np.bincount(labels[five]).tolist() == [5, 5, 5, 5]
    assert set(five) < set(ten)
    assert len(set(ten)) == 40
    other = few_shot.draw_examples(labels, 5, seed=0, draw=1)
    assert set(other) != set(five)


def test_few_shots_are_averaged_over_draws(problem):
    rows, labels, others, truth = problem
    found = few_shot.few_shot_scores(
        (rows, labels), (others, truth), num_classes=6, mesh=mesh(), shots=(3, 16), draws=2
    )
    single = []
    for draw in range(2):
        chosen = few_shot.draw_examples(labels, 3, seed=0, draw=draw)
        mean, std = rows[chosen].mean(axis=0), rows[chosen].std(axis=0)
        theirs = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000)
        theirs.fit((rows[chosen] - mean) / std, labels[chosen])
        single.append(theirs.score((others - mean) / std, truth))
    # No class has 16 examples.
    assert found == pytest.approx(
        {"few_shot3/top1": np.mean(single), "few_shot3/top1_std": np.std(single, ddof=1)}
    )
