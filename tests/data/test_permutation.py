"""Small and large sets are shuffled by one and the same permutation, Grain's."""

import pytest
from grain.experimental import index_shuffle

from cone_jax.data.permutation import permuted


@pytest.mark.parametrize("seed", [0, 1, 123_456_789, 2**32 - 1])
@pytest.mark.parametrize("count", [1, 2, 3, 60, 1437, 50_000, 65_535, 65_536, 65_537])
def test_the_permutation_is_grains_index_shuffle(count, seed):
    indices = range(0, count, count // 300 + 1)
    expected = [index_shuffle(index, count - 1, seed, rounds=4) for index in indices]
    assert [permuted(index, count, seed) for index in indices] == expected


@pytest.mark.parametrize("count", [1, 7, 1437, 65_536])
def test_every_number_comes_once(count):
    assert sorted(permuted(index, count, 9) for index in range(count)) == list(range(count))
