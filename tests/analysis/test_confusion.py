"""Counts of mistakes against a plain loop."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax.analysis.confusion import confusion_matrix, frequent_mistakes, worst_classes

answers = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


@given(answers)
@settings(deadline=None, max_examples=30)
def test_against_a_loop(pairs):
    labels, predictions = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    matrix = confusion_matrix(labels, predictions, 5)
    counts = [[pairs.count((i, j)) for j in range(5)] for i in range(5)]
    assert matrix.tolist() == counts

    scores = worst_classes(matrix)
    assert [score.label for score in scores] == sorted(
        {label for label, _ in pairs},
        key=lambda label: (counts[label][label] / sum(counts[label]), label),
    )
    for score in scores:
        row = counts[score.label]
        assert score.examples == sum(row)
        assert score.accuracy == row[score.label] / sum(row)
        errors = {j: n for j, n in enumerate(row) if j != score.label and n}
        assert (score.taken_for is None) == (not errors)
        if errors:
            assert errors[score.taken_for] == max(errors.values())

    mistakes = frequent_mistakes(matrix, most=100)
    assert sum(mistake.times for mistake in mistakes) == sum(i != j for i, j in pairs)
    assert [m.times for m in mistakes] == sorted((m.times for m in mistakes), reverse=True)
    assert all(counts[m.label][m.prediction] == m.times for m in mistakes)


def test_the_most_are_the_worst():
    matrix = np.array([[9, 1, 0], [5, 5, 0], [0, 0, 0]])
    assert [score.label for score in worst_classes(matrix, most=1)] == [1]
    assert [(m.label, m.prediction) for m in frequent_mistakes(matrix, most=1)] == [(1, 0)]
