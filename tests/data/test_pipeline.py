"""Batches: right rows for each process, exact evaluation, damage counted and replaced."""

import io

import numpy as np
import pytest
from PIL import Image

from cone_jax.data import transforms
from cone_jax.data.pipeline import (
    NOT_DAMAGED,
    DamageTally,
    EvalBatches,
    Share,
    TrainBatches,
    TrainOrder,
    read_ahead,
)
from cone_jax.data.sources.array import ArraySource
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError


def array_source(count=20, size=4):
    images = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones(
        (1, size, size, 3), np.uint8
    )
    return ArraySource(images, np.arange(count) % 3, ["a", "b", "c"])


class FilesSource:
    """Encoded pictures, some of which are rubbish."""

    class_names = ("only",)

    def __init__(self, count, damaged):
        self.count, self.damaged = count, set(damaged)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.damaged:
            return Record(b"not an image", 0)
        buffer = io.BytesIO()
        Image.new("RGB", (4, 4), (index, index, index)).save(buffer, "PNG")
        return Record(buffer.getvalue(), 0)

    def describe(self, index):
        return f"photos/{index}.png"


def train_batches(source, batch_size=6, specs=("random_crop(4, padding=1)",), views=1, **options):
    order = TrainOrder(len(source), batch_size, seed=3)
    return TrainBatches(source, order, (transforms.parse(specs),) * views, 50, **options)


def test_processes_share_each_batch_in_order():
    source = array_source()
    whole = train_batches(source)
    parts = [train_batches(source, share=Share(index, 3)) for index in range(3)]
    for step in (0, 4, 17):
        joined = [part[step] for part in parts]
        for name, rows in whole[step].items():
            np.testing.assert_array_equal(rows, np.concatenate([part[name] for part in joined]))


@pytest.mark.parametrize("workers", [0, 2])
def test_read_ahead_from_any_step_gives_the_batches_of_that_step(workers):
    batches = train_batches(array_source())
    stream = read_ahead(batches, start=7, threads=2, prefetch=2, workers=workers)
    for step in (7, 8, 9):
        actual = next(stream)
        for name, rows in batches[step].items():
            np.testing.assert_array_equal(actual[name], rows)
    del stream


def test_labels_and_ids_belong_to_the_pixels():
    batch = train_batches(array_source(), specs=())[0]
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["id"])
    np.testing.assert_array_equal(batch["label"], batch["id"] % 3)


def test_two_views_differ_and_are_stacked_a_sample():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 4, 4, 3)).astype(np.uint8)
    source = ArraySource(images, np.zeros(20, int), ["a"])
    batch = train_batches(source, views=2)[0]
    assert batch["image"].shape == (6, 2, 4, 4, 3)
    assert not np.array_equal(batch["image"][:, 0], batch["image"][:, 1])
    one_view = train_batches(source, views=1)[0]
    np.testing.assert_array_equal(batch["image"][:, 0], one_view["image"])


@pytest.mark.parametrize("batch_size", [4, 7, 20, 32])
@pytest.mark.parametrize("processes", [1, 2])
def test_evaluation_sees_every_record_once(batch_size, processes):
    batch_size = batch_size * processes
    seen = []
    for index in range(processes):
        batches = EvalBatches(
            array_source(), transforms.parse(()), batch_size, Share(index, processes)
        )
        for batch in read_ahead(batches, threads=2, prefetch=2):
            assert len(batch["id"]) == batch_size // processes
            seen.extend(batch["id"][batch["mask"]].tolist())
    assert sorted(seen) == list(range(20))


def test_damaged_images_are_replaced_by_the_next_record_and_reported_once():
    source = FilesSource(12, damaged=(3, 4))
    batches = train_batches(source, specs=())
    said = []
    tally = DamageTally(source, limit=0.5, report=said.append)
    for step in range(4):
        batch = batches[step]
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["id"])
        hit = batch["damaged"] != NOT_DAMAGED
        assert set(batch["damaged"][hit].tolist()) <= {3, 4}
        assert set(batch["id"][hit].tolist()) <= {5}
        tally.add(batch["damaged"])
    assert [line.partition(" (")[0] for line in sorted(said)] == [
        f"cannot read photos/{i}.png; replaced" for i in (3, 4)
    ]


def test_too_much_damage_ends_the_run_with_the_path():
    source = FilesSource(100, damaged=range(30))
    tally = DamageTally(source, limit=0.02, report=lambda line: None)
    with pytest.raises(UserError, match=r"6 of 100 .* data.damaged_limit \(2.0%\).*photos/7.png"):
        tally.add(np.array([5, -1, 6, 1, 2, 3, 7], np.int32))


@pytest.mark.parametrize(("damaged", "ends"), [(4, False), (40, True)])
def test_each_of_several_processes_judges_by_what_it_has_seen(damaged, ends):
    """Of 400 images, 2 % are allowed; each process sees a hundred others in every epoch."""
    source = FilesSource(400, damaged=range(damaged))
    rng = np.random.default_rng(0)
    tally = DamageTally(source, limit=0.02, report=lambda line: None, share=Share(1, 4))
    epochs = [rng.permutation(400)[:100] for _ in range(8)]
    records = [np.where(epoch < damaged, epoch, NOT_DAMAGED) for epoch in epochs]
    if not ends:
        for epoch in records:
            tally.add(epoch)
        return
    with pytest.raises(UserError, match="of 100 images cannot be read"):
        tally.add(records[0])


def test_nothing_readable_is_an_error_not_a_hang():
    with pytest.raises(UserError, match="none of 6 training images can be read"):
        train_batches(FilesSource(6, damaged=range(6)))[0]


def test_unreadable_test_image_still_counts_once():
    batches = EvalBatches(
        FilesSource(3, damaged=[1]), transforms.parse(("resize(4)", "centre_crop(4)")), 3
    )
    batch = batches[0]
    assert batch["mask"].all()
    assert batch["damaged"].tolist() == [-1, 1, -1]
    assert not batch["image"][1].any()


def test_images_of_different_sizes_name_the_cure():
    class Mixed(FilesSource):
        def __getitem__(self, index):
            return Record(np.zeros((3 + index, 4, 3), np.uint8), 0)

    with pytest.raises(UserError, match=r"data.train_transforms gives images of different sizes"):
        train_batches(Mixed(12, damaged=()), specs=())[0]
