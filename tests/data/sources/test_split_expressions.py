"""Sums and hold-outs of parts, for sources without a split language of their own."""

import pickle

import numpy as np
import pytest

from cone_jax.data import decode, sources
from cone_jax.errors import UserError


def files(root, split, **options):
    source = sources.create("image_folder", split, path=str(root), **options)
    return [source.describe(i).removeprefix(f"{root}/") for i in range(len(source))], source


@pytest.fixture
def root(make_folder):
    parts = {"train": 20, "val": 4, "test": 6}
    return make_folder(
        [f"{part}/{name}/{i}.png" for part, n in parts.items() for name in "ab" for i in range(n)]
    )


def test_a_sum_is_one_part_after_the_other(root):
    both, source = files(root, "train+validation")
    assert both == files(root, "train")[0] + files(root, "val")[0]
    assert source.class_names == ("a", "b")
    assert [source[i].label for i in (0, 39, 40, 47)] == [0, 1, 0, 1]
    # Every file is a grey of its own: record 40 is the first of val.
    pixels = decode.open_image(source[40].image).full()
    assert pixels.getpixel((0, 0)) == (40, 40, 40)
    with pytest.raises(IndexError):
        source[48]


def test_kept_and_held_out_are_train_in_two(root):
    train = files(root, "train")[0]
    kept, held = (files(root, f"train[{part}]", holdout=0.2)[0] for part in ("kept", "held_out"))
    assert sorted(kept + held) == sorted(train)
    for name in "ab":
        assert sum(f"/{name}/" in file for file in held) == 4
    others = files(root, "train[held_out]", holdout=0.2, holdout_seed=1)[0]
    assert others != held


def test_an_added_picture_leaves_the_others_on_their_side(root, make_folder):
    before = set(files(root, "train[held_out]", holdout=0.2)[0])
    make_folder(["train/a/000.png"])
    after = set(files(root, "train[held_out]", holdout=0.2)[0])
    assert len(before - after) <= 1


def test_where_the_test_part_is_a_hold_out_the_validation_part_is_another(make_folder):
    root = make_folder([f"{name}/{i}.png" for name in "ab" for i in range(20)])
    test, kept, held = (
        set(files(root, split)[0]) for split in ("test", "train[kept]", "train[held_out]")
    )
    assert len(test) == 4
    assert len(held) == 4
    assert not test & (kept | held)
    assert len(test | kept | held) == 40


def test_sources_without_a_list_of_labels_are_read_for_them():
    held = sources.create("digits", "train[held_out]", holdout=0.1)
    kept = sources.create("digits", "train[kept]", holdout=0.1)
    assert len(held) + len(kept) == 1437
    counts = np.bincount([held[i].label for i in range(len(held))])
    whole = sources.create("digits", "train")
    expected = np.bincount([whole[i].label for i in range(1437)]) * 0.1
    assert np.all(np.abs(counts - expected) <= 0.5)


def test_expressions_survive_the_way_to_a_worker(root):
    _, source = files(root, "train[kept]+val")
    arrived = pickle.loads(pickle.dumps(source))
    assert arrived[36 + 3] == source[36 + 3]


@pytest.mark.parametrize(
    ("split", "holdout", "message"),
    [
        ("train[heldout]", 0.1, r"'train\[heldout\]' must be train\[kept\] or train\[held_out\]"),
        ("train[kept]", 0.0, r"data\.holdout is 0"),
        ("train[kept]", 1.0, r"data\.holdout \(1\.0\)"),
        ("train+tset", 0.1, "tset"),
    ],
)
def test_mistakes_are_named(root, split, holdout, message):
    with pytest.raises(UserError, match=message):
        files(root, split, holdout=holdout)
