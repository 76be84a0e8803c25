"""The order of samples: complete, shuffled, the same from wherever it is started."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax.data.pipeline import Draw, TrainOrder, sample_rng


@settings(deadline=None, max_examples=50)
@given(
    records=st.integers(1, 60),
    batch=st.integers(1, 12),
    seed=st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 3),
)
def test_carry_visits_every_record_once_an_epoch(records, batch, seed, epoch):
    order = TrainOrder(records, batch, seed, "carry")
    draws = [order[position] for position in range(epoch * records, (epoch + 1) * records)]
    assert sorted(draw.record for draw in draws) == list(range(records))
    assert {draw.epoch for draw in draws} == {epoch}


@settings(deadline=None, max_examples=50)
@given(records=st.integers(4, 60), batch=st.integers(1, 4), seed=st.integers(0, 2**31 - 1))
def test_drop_visits_no_record_twice_and_whole_batches_only(records, batch, seed):
    order = TrainOrder(records, batch, seed, "drop")
    assert order.steps_per_epoch == records // batch
    length = order.steps_per_epoch * batch
    seen = [order[position].record for position in range(length)]
    assert len(set(seen)) == length
    assert order[length].epoch == 1


def test_epochs_and_seeds_differ():
    order = TrainOrder(1000, 10, 0)
    first = [order[i].record for i in range(1000)]
    second = [order[1000 + i].record for i in range(1000)]
    other = [TrainOrder(1000, 10, 1)[i].record for i in range(1000)]
    identity = np.arange(1000)
    for a, b in ((first, second), (first, other), (first, identity)):
        assert np.mean(np.equal(a, b)) < 0.02
    # Neighbours in the data set do not stay neighbours.
    assert np.mean(np.abs(np.diff(first)) == 1) < 0.02


def test_steps_of_an_epoch_with_carry_round_up():
    assert TrainOrder(10, 4, 0, "carry").steps_per_epoch == 3
    assert TrainOrder(10, 4, 0, "drop").steps_per_epoch == 2


def test_randomness_belongs_to_seed_epoch_record_and_view():
    draws = {
        sample_rng(seed, Draw(record, epoch), view).integers(2**62)
        for seed in (0, 1)
        for record in (0, 1)
        for epoch in (0, 1)
        for view in (0, 1)
    }
    assert len(draws) == 16
    again = sample_rng(1, Draw(1, 0), 1).integers(2**62)
    assert again == sample_rng(1, Draw(1, 0), 1).integers(2**62)


@pytest.mark.parametrize("last_batch", ["drop", "carry"])
def test_far_positions_are_immediate(last_batch):
    order = TrainOrder(1_281_167, 1024, 0, last_batch)
    assert 0 <= order[10**12].record < 1_281_167
