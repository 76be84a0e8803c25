"""Batches of pictures with objects: what `pipeline` is to classes.

Landscape and portrait pictures are padded to different shapes, so no batch has both. The order of
training stays a function of (seed, position): each epoch shuffles all records, fills batches from
either kind, and shuffles the batches. Evaluation takes one kind after the other.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from cone_jax.data import decode
from cone_jax.data.objects import Example, ObjectPipeline
from cone_jax.data.pipeline import (
    NOT_DAMAGED,
    Draw,
    EveryRecord,
    HostBatch,
    Sample,
    Share,
    TrainOrder,
    draws_of,
    first_readable,
    sample_rng,
)
from cone_jax.data.sources import coco, coco_source
from cone_jax.data.sources.source import Source
from cone_jax.errors import UserError


def standing(source: Source) -> np.ndarray:
    """Whether the picture of each record is taller than wide, bool [n]."""
    return np.array([_stands(source, index) for index in range(len(source))], bool)


def _stands(source: Source, record: int) -> bool:
    height, width = coco_source.objects_of(source, record).size
    return height > width


@dataclasses.dataclass(frozen=True)
class GroupedOrder(TrainOrder):
    """`TrainOrder` in which every batch is of one kind of record.

    What does not fill a batch of its kind waits for another epoch, as with ``drop``.

    >>> order = GroupedOrder(5, 2, seed=0, kinds=(False, True, False, True, False))
    >>> sorted(sorted(order[2 * b + i].record % 2 for i in range(2)) for b in range(2))
    [[0, 0], [1, 1]]
    """

    kinds: tuple[bool, ...] = ()

    @property
    def epoch_length(self) -> int:
        standing = sum(self.kinds)
        counts = (standing, len(self.kinds) - standing)
        return sum(count // self.batch_size * self.batch_size for count in counts)

    def __getitem__(self, position: int) -> Draw:
        epoch, index = divmod(position, self.epoch_length)
        return Draw(int(_grouped(self, epoch)[index]), epoch)


@functools.lru_cache(maxsize=4)
def _grouped(order: GroupedOrder, epoch: int) -> np.ndarray:
    """The records of an epoch in their order."""
    rng = np.random.default_rng((order.seed, epoch))
    records, kinds = rng.permutation(order.num_records), np.array(order.kinds)
    batches: list[np.ndarray] = []
    for kind in (False, True):
        own = records[kinds[records] == kind]
        full = len(own) // order.batch_size
        batches.extend(own[: full * order.batch_size].reshape(full, -1))
    return np.concatenate([batches[place] for place in rng.permutation(len(batches))])


@dataclasses.dataclass(frozen=True)
class ObjectTrainBatches:
    """The batches of training, by step: `pipeline.TrainBatches` for pictures with objects."""

    source: Source
    order: TrainOrder
    transform: ObjectPipeline
    num_steps: int
    share: Share = Share()

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, step: int) -> HostBatch:
        samples = [self.sample(draw) for draw in draws_of(self.order, step, self.share)]
        return _assemble(samples, self.transform)

    def sample(self, draw: Draw) -> Sample:
        """One row; a record that cannot be read is replaced by the next of its kind."""
        kinds = getattr(self.order, "kinds", ())

        def read(record: int) -> Sample | None:
            if kinds and kinds[record] != kinds[draw.record]:
                return None
            example = _read(self.source, record, self.transform.pad.mask_side)
            example = self.transform(example, sample_rng(self.order.seed, draw, 0))
            return {"image": example, "upright": _stands(self.source, record)}

        return first_readable(len(self.source), draw.record, read)

    def check_size(self, image_size: int) -> None:
        """`UserError` unless `image_size` is the longer side of the padded pictures."""
        longer = self.transform.pad.width
        if image_size != longer:
            raise UserError(
                f"data.image_size ({image_size}) must be {longer}, the longer side of pad in "
                "data.train_transforms"
            )
        _assemble([self.sample(self.order[0])], self.transform)


class ObjectEvalBatches(EveryRecord[ObjectPipeline]):
    """Every record of a source once; `mask` is False on the padding of the end of each kind."""

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> HostBatch:
        records = self._batches[index]
        rows = [self._sample(records, row) for row in self.share.rows(self.batch_size)]
        return _assemble(rows, self.transform)

    @functools.cached_property
    def _batches(self) -> Sequence[np.ndarray]:
        kinds = np.zeros(len(self.source), bool)
        if not self.transform.pad.one_shape:
            kinds = standing(self.source)
        groups = (np.flatnonzero(kinds == kind) for kind in (False, True))
        return [
            group[first : first + self.batch_size]
            for group in groups
            for first in range(0, len(group), self.batch_size)
        ]

    def _sample(self, records: np.ndarray, row: int) -> Sample:
        """A record, or the first of the batch again as padding. What is damaged counts as black."""
        real = row < len(records)
        record, damaged = int(records[row if real else 0]), NOT_DAMAGED
        try:
            example = _read(self.source, record, 0)
        except decode.DamagedImage:
            damaged = record
            label = coco_source.objects_of(self.source, record)
            example = coco.example(label, np.zeros((*label.size, 3), np.uint8), 0)
        example = self.transform(example, np.random.default_rng(0))
        upright = _stands(self.source, record)
        return {
            "image": example,
            "id": record,
            "mask": real,
            "damaged": damaged,
            "upright": upright,
        }


def _read(source: Source, record: int, mask_side: int) -> Example:
    image, label = source[record]
    return coco.example(label, image, mask_side)


def _assemble(samples: Sequence[Sample], transform: ObjectPipeline) -> HostBatch:
    examples = [sample["image"] for sample in samples]
    batch = transform.stack(examples, upright=samples[0]["upright"])
    for name in ("id", "damaged"):
        batch[name] = np.array([sample[name] for sample in samples], np.int32)
    if "mask" in samples[0]:
        batch["mask"] = np.array([sample["mask"] for sample in samples], bool)
    return batch
