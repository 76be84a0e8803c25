"""Maps keep what is apart apart, and come out the same."""

import numpy as np
import pytest

from cone_jax.analysis.embedding_map import FEWEST, embedding_map, spread_classes


def test_groups_stay_apart_and_maps_stay_the_same():
    rng = np.random.default_rng(0)
    centres = 5.0 * np.eye(3, 20)
    groups = np.repeat(np.arange(3), 30)
    features = (centres[groups] + rng.normal(scale=0.3, size=(90, 20))).astype(np.float32)
    points = embedding_map(features)
    assert points.shape == (90, 2)
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    assert (groups[distance.argmin(axis=1)] == groups).all()
    np.testing.assert_array_equal(points, embedding_map(features))
    # Directions count, lengths do not.
    np.testing.assert_allclose(points, embedding_map(features * 4.0), atol=1e-3)


@pytest.mark.parametrize(
    "features",
    [np.ones((FEWEST - 1, 4)), np.ones((50, 4)), np.zeros((50, 4))],
    ids=["too few", "all equal", "all zero"],
)
def test_nothing_to_see(features):
    assert embedding_map(features) is None


def test_few_points_get_a_map():
    features = np.random.default_rng(0).normal(size=(FEWEST, 3)).astype(np.float32)
    assert np.isfinite(embedding_map(features)).all()


def test_classes_are_spread():
    assert spread_classes(3) == [0, 1, 2]
    chosen = spread_classes(1000)
    assert len(chosen) == 10
    assert (chosen[0], chosen[-1]) == (0, 999)
    assert set(np.diff(chosen)) == {111}
