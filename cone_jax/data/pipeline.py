"""From records to batches: which record stands where, and the rows of a step.

The position of a sample in training is a number counted from 0 over the whole run. Its record is a
function of (seed, position) alone, through a pseudo-random permutation of each epoch. So any
process can start at any position at once, and the order does not depend on how many processes
there are.

`TrainBatches[t]` is the share of one process in the batch of training step t, a pure function
of (seed, t). Grain's threads or worker processes evaluate it ahead of time; the state of the
stream is therefore one number, the next step, and holds for any number of processes.
`EvalBatches` visits every record exactly once, padding the last batch with masked rows.

Nothing here imports JAX, so that worker processes stay light.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import grain
import numpy as np
from absl import flags

from cone_jax.data import decode
from cone_jax.data.sources import Source, has_objects
from cone_jax.data.transforms import Pipeline
from cone_jax.errors import UserError


class Draw(NamedTuple):
    """One sample of the training stream."""

    record: int
    epoch: int
    repeat: int = 0  # how often the epoch has had the record before


@dataclasses.dataclass(frozen=True)
class TrainOrder:
    """The endless stream of training samples: each epoch visits each record once.

    `last_batch` says what happens to the ``num_records % batch_size`` samples at the end of an
    epoch: with ``drop`` the epoch ends at its last full batch (other records miss out each
    time); with ``carry`` they form a batch together with the start of the next epoch.

    >>> order = TrainOrder(num_records=5, batch_size=2, seed=0, last_batch="carry")
    >>> sorted(order[position].record for position in range(5, 10))
    [0, 1, 2, 3, 4]
    """

    num_records: int
    batch_size: int
    seed: int
    last_batch: str = "drop"

    @property
    def epoch_length(self) -> int:
        """Samples of the stream in one epoch."""
        if self.last_batch == "carry":
            return self.num_records
        return self.num_records // self.batch_size * self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one epoch; with ``carry`` the epoch's end lies inside the last one."""
        return -(-self.epoch_length // self.batch_size)

    def __getitem__(self, position: int) -> Draw:
        epoch, index = divmod(position, self.epoch_length)
        return Draw(int(_shuffled(self.num_records, self.seed, epoch)[index]), epoch)


# Threads that read ahead work on two epochs at the most. ImageNet takes 5 MB and 20 ms an epoch;
# Grain's index_shuffle needs no table, but some 20 us a record in sets of a thousand.
@functools.lru_cache(maxsize=4)
def _shuffled(num_records: int, seed: int, epoch: int) -> np.ndarray:
    """The records of an epoch in their order."""
    records = np.arange(num_records, dtype=np.int32)
    np.random.default_rng((seed, epoch)).shuffle(records)
    return records


def sample_rng(seed: int, draw: Draw, view: int) -> np.random.Generator:
    """The private generator of one view of one record in one epoch, whoever makes it."""
    again = (draw.repeat,) if draw.repeat else ()
    return np.random.default_rng((seed, draw.epoch, draw.record, view, *again))


# image [b, H, W, 3] or [b, V, H, W, 3] uint8, label [b] int32, id [b] int32 and, for
# evaluation, mask [b] bool; `damaged` [b] holds the record that could not be read, or -1.
HostBatch = dict[str, np.ndarray]
# One row of a batch.
Sample = dict[str, Any]

Transform = TypeVar("Transform")

NOT_DAMAGED = -1
# So many damaged files never end a run, unless they are more than a tenth of its pictures. One
# never does: what is held out of a small folder may be fewer than ten.
HANDFUL = 5


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of every batch this process makes: `index` of `count` equal parts."""

    index: int = 0
    count: int = 1

    def rows(self, batch_size: int) -> range:
        local = batch_size // self.count
        return range(self.index * local, (self.index + 1) * local)


def draws_of(order: TrainOrder, step: int, share: Share) -> list[Draw]:
    """The samples in a process's rows of the batch of `step` (from 0)."""
    first = step * order.batch_size
    return [order[first + row] for row in share.rows(order.batch_size)]


def first_readable(count: int, wanted: int, read: Callable[[int], Sample | None]) -> Sample:
    """`read` applied to record `wanted` or, if that is damaged, to the next one.

    `read` gives None for a record that must not stand in for the wanted one. The `id` of the row is
    the record read, `damaged` the first of `count` that could not be.
    """
    damaged = NOT_DAMAGED
    for offset in range(count):
        record = (wanted + offset) % count
        try:
            row = read(record)
        except decode.DamagedImage:
            damaged = record if damaged == NOT_DAMAGED else damaged
            continue
        if row is not None:
            return {**row, "id": record, "damaged": damaged}
    raise UserError(
        f"data: none of {count} training images can be read; give JPEG, PNG, WebP or BMP files"
    )


@dataclasses.dataclass(frozen=True)
class TrainBatches:
    """The batches of training, by step. There is one pipeline per view."""

    source: Source
    order: TrainOrder
    views: Sequence[Pipeline]
    num_steps: int
    share: Share = Share()

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, step: int) -> HostBatch:
        draws = draws_of(self.order, step, self.share)
        return _assemble([self.sample(draw) for draw in draws], "data.train_transforms")

    def sample(self, draw: Draw) -> Sample:
        """One row; a record that cannot be read is replaced by the one after it."""

        def read(record: int) -> Sample:
            image, label = self.source[record]
            picture = decode.open_image(image)
            views = [
                pipeline(picture, sample_rng(self.order.seed, draw, view))
                for view, pipeline in enumerate(self.views)
            ]
            pixels = views[0] if len(views) == 1 else _stack(views, "data.train_transforms")
            return {"image": pixels, "label": label}

        return first_readable(len(self.source), draw.record, read)

    def check_size(self, image_size: int) -> None:
        """`UserError` unless the transforms give square pictures of `image_size`."""
        height, width, _ = self.sample(self.order[0])["image"].shape[-3:]
        if (height, width) != (image_size, image_size):
            raise UserError(
                f"data.image_size ({image_size}) does not fit data.train_transforms, which give "
                f"{height} x {width} pixels"
            )


@dataclasses.dataclass(frozen=True)
class EveryRecord(Generic[Transform]):
    """What batches with every record of a source are made from."""

    source: Source
    transform: Transform
    batch_size: int
    share: Share = Share()


class EvalBatches(EveryRecord[Pipeline]):
    """Every record of a source once, in order; `mask` is False on the padding of the end."""

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch_size)

    def __getitem__(self, index: int) -> HostBatch:
        first = index * self.batch_size
        samples = [self._sample(first + row) for row in self.share.rows(self.batch_size)]
        return _assemble(samples, "data.test_transforms")

    def _sample(self, position: int) -> Sample:
        """A record, or record 0 again as padding. An unreadable picture counts as black."""
        real = position < len(self.source)
        record = position if real else 0
        label, damaged = -1, NOT_DAMAGED
        rng = np.random.default_rng(0)  # evaluation transforms are deterministic
        try:
            image, label = self.source[record]
            pixels = self.transform(self.transform.open(image), rng)
        except decode.DamagedImage:
            damaged = record
            pixels = self.transform(np.zeros((256, 256, 3), np.uint8), rng)
        real = real and label >= 0  # without its label it cannot be scored
        return {"image": pixels, "label": label, "id": record, "mask": real, "damaged": damaged}


def _assemble(samples: Sequence[Sample], field: str) -> HostBatch:
    batch = {"image": _stack([sample["image"] for sample in samples], field)}
    for name in ("label", "id", "damaged"):
        batch[name] = np.array([sample[name] for sample in samples], np.int32)
    if "mask" in samples[0]:
        batch["mask"] = np.array([sample["mask"] for sample in samples], bool)
    return batch


def _stack(images: Sequence[np.ndarray], field: str) -> np.ndarray:
    if len({image.shape for image in images}) > 1:
        raise UserError(
            f"{field} gives images of different sizes ({images[0].shape[:2]} and others); "
            "end it with a crop such as 'centre_crop(224)'"
        )
    return np.stack(images)


def check_damaged(source: Source, damaged: int, among: int, limit: float, last: str) -> None:
    """`UserError` where too many of `among` pictures cannot be read; `last` is one of them.

    A handful is never too many, unless the limit is 0: of a few hundred pictures a fraction is
    less than one file.
    """
    handful = min(HANDFUL, max(among // 10, 1), among - 1) if limit > 0 else 0
    if damaged > max(limit * among, handful):
        listed = "" if has_objects(source) else " (--mode=check lists all)"
        raise UserError(
            f"data: {damaged} of {among} images cannot be read, more than data.damaged_limit "
            f"({limit:.1%}); the last was {last}; repair the files{listed} or raise the limit"
        )


class DamageTally:
    """Counts records that could not be read; too many end the run (`check_damaged`).

    Too many of all, or of those that this process has seen where it is one of several; in
    either case of as many as it sees in an epoch.
    """

    def __init__(
        self, source: Source, limit: float, report: Callable[[str], object], share: Share = Share()
    ) -> None:
        self._source = source
        self._limit = limit
        self._report = report
        self._in_an_epoch = -(-len(source) // share.count)
        self._drawn = 0
        self._seen: set[int] = set()

    def add(self, damaged: np.ndarray) -> None:
        self._drawn += len(damaged)
        among = min(max(self._drawn, self._in_an_epoch), len(self._source))
        for record in damaged[damaged != NOT_DAMAGED].tolist():
            if record in self._seen:
                continue
            self._seen.add(record)
            reason = decode.reason_unreadable(self._source, record)
            if len(self._seen) <= 5:
                self._report(f"cannot read {self._source.describe(record)}; replaced ({reason})")
            last = f"{self._source.describe(record)} ({reason})"
            check_damaged(self._source, len(self._seen), among, self._limit, last)


def read_ahead(
    batches: "TrainBatches | EvalBatches | grain.RandomAccessDataSource[HostBatch]",
    *,
    start: int = 0,
    threads: int = 4,
    prefetch: int = 4,
    workers: int = 0,
) -> Iterator[HostBatch]:
    """Iterates from batch `start` to the end, `prefetch` batches ahead.

    `threads` make batches in parallel; with `workers` each of so many processes has its own
    threads. The sequence is the same whatever their number.
    """
    dataset = grain.MapDataset.source(batches)[start:]
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    stream = dataset.to_iter_dataset(options)
    if workers > 0:
        if not flags.FLAGS.is_parsed():  # Grain's workers inherit absl flags
            flags.FLAGS.mark_as_parsed()
        stream = stream.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=prefetch)
        )
    return iter(stream)
