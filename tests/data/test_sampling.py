"""Sampling by class: exact numbers, exact order, exact resume, and pictures that differ."""

import numpy as np
import pytest

from cone_jax import config as config_lib
from cone_jax.data import datasets
from cone_jax.data.pipeline import Draw, Share, sample_rng
from cone_jax.data.sampling import SampledOrder
from cone_jax.data.sources import splits

LABELS = np.repeat([0, 1, 2], [100, 36, 4])


def order(sampling, seed=0, last_batch="carry"):
    return SampledOrder(140, 8, seed, last_batch, LABELS, sampling)


@pytest.mark.parametrize(("sampling", "power"), [("balanced", 0.0), ("sqrt", 0.5)])
def test_an_epoch_has_each_class_in_its_share(sampling, power):
    shares = np.array([100, 36, 4]) ** power
    expected = 140 * shares / shares.sum()
    for epoch in range(3):
        drawn = [order(sampling)[140 * epoch + place] for place in range(140)]
        assert {draw.epoch for draw in drawn} == {epoch}
        counts = np.bincount(LABELS[[draw.record for draw in drawn]], minlength=3)
        assert counts.sum() == 140
        assert np.all(np.abs(counts - expected) < 2)
        times = np.bincount([draw.record for draw in drawn], minlength=140)
        for label in range(3):
            own = times[label == LABELS]
            assert own.max() - own.min() <= 1, "records of a class come equally often"


def test_the_order_is_a_function_of_seed_and_position():
    forward = [order("balanced")[place] for place in range(300)]
    later = order("balanced")
    assert [later[place] for place in reversed(range(300))] == forward[::-1]
    assert [order("balanced", seed=1)[place] for place in range(300)] != forward
    assert forward[:140] != [draw._replace(epoch=0) for draw in forward[140:280]]


def test_a_record_that_comes_twice_looks_different_each_time():
    drawn = [order("balanced")[place] for place in range(140)]
    again = [draw for draw in drawn if draw.record == 139]
    assert sorted(draw.repeat for draw in again) == list(range(len(again)))
    numbers = {float(sample_rng(0, draw, 0).random()) for draw in again}
    assert len(numbers) == len(again) > 5
    first = sample_rng(3, Draw(5, 2), 1).random()
    assert first == np.random.default_rng((3, 2, 5, 1)).random(), "as without sampling"


def test_batches_start_anywhere_and_come_in_shares():
    config = config_lib.default()
    config.batch_size, config.data.sampling = 16, "sqrt"
    source = datasets.open_dataset(config.data).train
    whole = datasets.train_batches(config, source, 100)
    halves = [datasets.train_batches(config, source, 100, Share(i, 2)) for i in (0, 1)]
    for step in (95, 3):
        ids = np.concatenate([half[step]["id"] for half in halves])
        np.testing.assert_array_equal(ids, whole[step]["id"])
        np.testing.assert_array_equal(whole[step]["label"], splits.labels_of(source)[ids])


def test_a_long_tail_has_the_published_numbers():
    """CIFAR-100-LT, imbalance 100: 500 images of the first class, 5 of the last, 10,847 in all."""

    class Balanced:
        class_names = tuple(map(str, range(100)))
        labels = np.arange(50_000) % 100

        def __len__(self):
            return 50_000

    totals = {}
    for ratio in (100, 50, 10):
        kept = splits.long_tail(Balanced(), ratio, 0)
        counts = np.bincount(kept % 100, minlength=100)
        expected = [int(500 * (1 / ratio) ** (c / 99)) for c in range(100)]
        assert (
            np.abs(counts - expected).max() <= 1
        )  # of a power that is a whole number but for rounding
        assert np.all(np.diff(kept) > 0)
        totals[ratio] = len(kept)
    assert totals[100] == pytest.approx(10847, abs=2)
    assert totals[50] == pytest.approx(12608, abs=2)
    assert totals[10] == pytest.approx(19573, abs=2)


def test_only_train_is_thinned_out():
    data = config_lib.default().data
    plain = datasets.open_dataset(data)
    data.imbalance = 10.0
    thin = datasets.open_dataset(data)
    assert len(thin.test) == len(plain.test)
    counts = datasets.class_counts(thin.train)
    assert counts[0] > 8 * counts[-1] > 0
