import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax.data.sources import splits
from cone_jax.errors import UserError


@pytest.mark.parametrize(
    ("split", "present", "expected"),
    [
        ("train", ["test", "train"], "train"),
        ("train", ["training", "test"], "training"),
        ("test", ["train", "val"], "val"),
        ("test", ["train", "val", "test"], "test"),
        ("validation", ["train", "val", "test"], "val"),
        ("valid", ["train", "test"], "test"),
        ("Test", ["TRAIN", "TEST"], "TEST"),
        ("extra", ["train", "extra"], "extra"),
        ("extra", ["train", "test"], None),
        ("train", ["val", "test"], None),
    ],
)
def test_a_split_is_found_under_its_usual_names(split, present, expected):
    assert splits.match(split, present) == expected


def test_an_unknown_part_is_refused():
    with pytest.raises(UserError, match="'tset'"):
        splits.part("tset")


keys = st.lists(st.binary(max_size=8), unique=True, max_size=60)


@given(keys, st.floats(0.01, 0.99), st.integers(-5, 5))
@settings(deadline=None, max_examples=50)
def test_the_hold_out_has_the_size_asked_for_and_leaves_something_to_train_on(keys, fraction, seed):
    count = len(splits.held_out(keys, fraction, seed))
    if len(keys) < 2:
        assert count == 0
    else:
        assert 1 <= count <= len(keys) - 1
        assert abs(count - fraction * len(keys)) <= 1


@given(keys, st.binary(min_size=9, max_size=9), st.floats(0.05, 0.95))
@settings(deadline=None, max_examples=50)
def test_an_added_image_moves_at_most_one_other(keys, added, fraction):
    before = {keys[i] for i in splits.held_out(keys, fraction, 0)}
    longer = [*keys, added]
    after = {longer[i] for i in splits.held_out(longer, fraction, 0)}
    assert len(before ^ (after - {added})) <= 1


def test_the_seed_chooses_the_images():
    keys = [bytes([i]) for i in range(100)]
    chosen = [frozenset(splits.held_out(keys, 0.3, seed)) for seed in range(3)]
    assert len(set(chosen)) == 3
    assert chosen[0] == splits.held_out(keys, 0.3, 0)


@pytest.mark.parametrize("holdout", [-0.1, 1.0, 1.5, float("nan")])
def test_an_impossible_fraction_is_refused(holdout):
    with pytest.raises(UserError, match=r"data.holdout"):
        splits.check_holdout(holdout, "train", "here")


def test_nothing_to_test_on_is_an_error_only_when_testing():
    splits.check_holdout(0.0, "train", "here")
    with pytest.raises(UserError, match=r"data.holdout is 0"):
        splits.check_holdout(0.0, "test", "here")
