"""Corrected labels and folds, whatever the source."""

import csv

import numpy as np
import pytest

from cone_jax import config as config_lib
from cone_jax.data import datasets
from cone_jax.data.sources import corrections, splits
from cone_jax.errors import UserError


@pytest.fixture
def data():
    return config_lib.default().data.unlock()


@pytest.fixture
def write(tmp_path, data):
    """Writes a file of corrections and names it in the config."""

    def written(*rows, header=corrections.HEADER):
        file = tmp_path / "corrections.csv"
        with file.open("w", newline="") as stream:
            csv.writer(stream).writerows([header, *rows])
        data.corrections = str(file)
        return data

    return written


def labels(source):
    return [source[index].label for index in range(len(source))]


def test_a_correction_changes_one_label_and_no_picture(data, write):
    plain = datasets.open_dataset(data)
    before = labels(plain.train)
    other = (before[5] + 1) % 10
    corrected = datasets.open_dataset(write(("digits/train[5]", str(before[5]), str(other))))
    expected = [*before[:5], other, *before[6:]]
    assert labels(corrected.train) == expected
    assert splits.labels_of(corrected.train).tolist() == expected
    assert labels(corrected.test) == labels(plain.test)
    for index in (4, 5, 6):
        np.testing.assert_array_equal(corrected.train[index].image, plain.train[index].image)


def test_an_empty_correction_leaves_the_picture_out(data, write):
    plain = datasets.open_dataset(data)
    given = str(plain.test[3].label)
    corrected = datasets.open_dataset(write(("digits/test[3]", given, "")))
    assert len(corrected.train) == len(plain.train)
    before = labels(plain.test)
    assert labels(corrected.test) == before[:3] + before[4:]
    assert corrected.test.describe(3) == "digits/test[4]"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("digits/train[5]", "nine", "1"), r"line 2: digits/train\[5\] is labelled '\d' in the d"),
        (("digits/train[9999]", "1", "2"), r"line 2: digits/train\[9999\] is neither in data.tra"),
        (("digits/train[5]", "1"), "line 2: 2 values; there must be 3"),
    ],
)
def test_what_the_data_contradict_is_refused(write, row, message):
    with pytest.raises(UserError, match=message):
        datasets.open_dataset(write(row))


def test_an_unknown_class_and_a_second_line_are_refused(data, write):
    given = str(datasets.open_dataset(data).train[5].label)
    with pytest.raises(UserError, match=r"line 2: 'owl' is not a class"):
        datasets.open_dataset(write(("digits/train[5]", given, "owl")))
    line = ("digits/train[5]", given, "")
    with pytest.raises(UserError, match=r"line 3: digits/train\[5\] stands in line 2 already"):
        datasets.open_dataset(write(line, line))


def test_a_file_that_is_not_one_of_corrections_is_refused(data, write):
    with pytest.raises(UserError, match="must begin with the line path,label,corrected"):
        datasets.open_dataset(write(header=("file", "class")))
    data.corrections = "nowhere.csv"
    with pytest.raises(UserError, match=r"data.corrections \(nowhere.csv\) cannot be read"):
        datasets.open_dataset(data)


def test_folds_share_every_record_and_every_class_evenly(data):
    whole = datasets.open_dataset(data).train
    data.folds = 4
    seen, sizes = [], []
    for fold in range(4):
        data.fold = fold
        part = datasets.open_dataset(data)
        left_out = {part.test.describe(index) for index in range(len(part.test))}
        kept = {part.train.describe(index) for index in range(len(part.train))}
        assert not left_out & kept
        assert len(kept) + len(left_out) == len(whole)
        counts = np.bincount(labels(part.test), minlength=10)
        every = np.bincount(labels(whole), minlength=10)
        assert np.all(np.abs(counts - every / 4) < 1)
        seen += left_out
        sizes.append(len(left_out))
    assert len(set(seen)) == len(seen) == len(whole)
    assert max(sizes) - min(sizes) <= 1


def test_folds_may_take_in_what_would_be_held_out(data, write, tmp_path):
    """Without a part to test on there is nothing but train for corrections to be found in."""
    images = np.zeros((20, 8, 8), np.uint8)
    np.savez(tmp_path / "cells.npz", images=images, labels=np.arange(20) % 2)
    data.source, data.path, data.holdout = "array", str(tmp_path / "cells.npz"), 0.0
    data.folds, data.test_split = 4, "test"
    dataset = datasets.open_dataset(data)
    assert (len(dataset.train), len(dataset.test)) == (15, 5)
    name = corrections.name_of(datasets.open_split(data, "train"), 5, data.path)
    corrected = datasets.open_dataset(write((name, "1", "")))
    assert len(corrected.train) + len(corrected.test) == 19


def test_folds_are_those_that_folds_of_says(data):
    whole = datasets.open_dataset(data).train
    data.folds, data.fold = 3, 2
    part = datasets.open_dataset(data)
    chosen = np.flatnonzero(splits.folds_of(whole, 3, data.holdout_seed) == 2)
    described = [part.test.describe(index) for index in range(len(part.test))]
    assert described == [whole.describe(record) for record in chosen.tolist()]


def test_a_fold_follows_from_the_path_and_not_from_the_order():
    class Files:
        class_names = ("a",)

        def __init__(self, names):
            self.names, self.labels = names, np.zeros(len(names), int)

        def __len__(self):
            return len(self.names)

        def relative_path(self, index):
            return self.names[index]

    names = [f"{number}.png" for number in range(40)]
    alone = dict(zip(names, splits.folds_of(Files(names), 2, 0), strict=True))
    assert list(alone.values()) != splits.folds_of(Files(names), 2, 1).tolist()
    shuffled = names[::-1]
    again = dict(zip(shuffled, splits.folds_of(Files(shuffled), 2, 0), strict=True))
    assert again == alone


@pytest.mark.parametrize(("folds", "fold"), [(1, 0), (3, 3), (0, 1)])
def test_a_fold_that_does_not_exist_is_refused(data, folds, fold):
    data.folds, data.fold = folds, fold
    with pytest.raises(UserError, match=r"data.fold \(\d\) must be less than data.folds"):
        datasets.open_dataset(data)
