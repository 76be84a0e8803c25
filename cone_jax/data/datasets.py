"""From a config's section ``data`` to batches."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from cone_jax.data import sources, transforms
from cone_jax.data.pipeline import EvalBatches, Share, TrainBatches, TrainOrder
from cone_jax.data.sources import Source
from cone_jax.errors import UserError
from cone_jax.settings import Data


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The two splits of a data set."""

    train: Source
    test: Source

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names

    @property
    def num_classes(self) -> int:
        return len(self.train.class_names)


def open_dataset(data: ConfigDict) -> Dataset:
    """Opens both splits and checks that they belong together."""
    dataset = Dataset(open_split(data, data.train_split), open_split(data, data.test_split))
    unknown = sorted(set(dataset.test.class_names) - set(dataset.train.class_names))
    if unknown:
        raise UserError(
            f"data.test_split ({data.test_split!r}) has classes that train lacks: {unknown[:5]}"
        )
    for name in dataset.class_names:
        try:
            name.encode()
        except UnicodeEncodeError as error:  # how Python shows bytes that are no UTF-8
            raise UserError(f"data: the class name {name!r} is no UTF-8 text; rename it") from error
    if data.num_classes not in (0, dataset.num_classes):
        raise UserError(
            f"data.num_classes ({data.num_classes}) must be {dataset.num_classes}, "
            "what the source has, or 0"
        )
    return dataset


def open_split(data: ConfigDict, split: str) -> Source:
    """The records of one split; small pictures are kept decoded."""
    settings = Data.read(data)
    return sources.CachedSource(sources.open_source(settings, split), settings.cache_bytes)


def train_order(config: ConfigDict, num_records: int) -> TrainOrder:
    """The order of the training samples."""
    if num_records < config.batch_size and config.data.last_batch == "drop":
        raise UserError(
            f"batch_size ({config.batch_size}) must be at most the {num_records} training images"
        )
    return TrainOrder(num_records, config.batch_size, config.seed, config.data.last_batch)


def train_batches(
    config: ConfigDict, source: Source, num_steps: int, share: Share = Share()
) -> TrainBatches:
    """The training stream of this process."""
    data = config.data
    views = (data.train_transforms, data.key_transforms or data.train_transforms)[: data.views]
    fields = ("data.train_transforms", "data.key_transforms")
    pipelines = tuple(map(transforms.parse, views, fields))
    return TrainBatches(source, train_order(config, len(source)), pipelines, num_steps, share)


def class_shares(source: Source) -> tuple[float, ...]:
    """The share of each class among the records. Reads every one of them."""
    labels = [source[index].label for index in range(len(source))]
    counts = np.bincount(labels, minlength=len(source.class_names))
    return tuple((counts / len(labels)).tolist())


def eval_batches(
    config: ConfigDict,
    source: Source,
    share: Share = Share(),
    specs: Sequence[str] | None = None,
) -> EvalBatches:
    """The evaluation batches of this process; `specs` replace the config's test transforms."""
    specs = config.data.test_transforms if specs is None else specs
    pipeline = transforms.parse(specs, "data.test_transforms")
    return EvalBatches(source, pipeline, config.evaluation.batch_size, share)


def test_pictures(config: ConfigDict, source: Source, records: Sequence[int]) -> list[np.ndarray]:
    """Records as the network sees them at test time: uint8 [H, W, 3] each."""
    view = EvalBatches(source, transforms.parse(config.data.test_transforms), batch_size=1)
    return [view[record]["image"][0] for record in records]
