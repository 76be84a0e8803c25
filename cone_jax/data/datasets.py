"""From a config's section ``data`` to batches."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from ml_collections import ConfigDict

from cone_jax.console import Report
from cone_jax.data import sources, transforms
from cone_jax.data.pipeline import EvalBatches, Share, TrainBatches, TrainOrder
from cone_jax.data.sources import Source, coco_source, splits
from cone_jax.errors import UserError
from cone_jax.settings import Data

if TYPE_CHECKING:
    from cone_jax.data.object_batches import ObjectEvalBatches, ObjectTrainBatches


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
    dataset = _open_both(Data.read(data))
    unknown = sorted(set(dataset.test.class_names) - set(dataset.train.class_names))
    if unknown:
        raise UserError(
            f"data.test_split ({data.test_split!r}) has classes that train lacks: {unknown[:5]}"
        )
    if sources.has_objects(dataset.train) and sources.has_objects(dataset.test):
        test = coco_source.in_classes_of(dataset.train, dataset.test)
        dataset = dataclasses.replace(dataset, test=test)
    for name in dataset.class_names:
        try:
            name.encode()
        except UnicodeEncodeError as error:  # how Python shows bytes that are no UTF-8
            raise UserError(f"data: the class name {name!r} is not UTF-8; rename it") from error
    if data.num_classes not in (0, dataset.num_classes):
        raise UserError(
            f"data.num_classes ({data.num_classes}) must be {dataset.num_classes}, "
            "what the source has, or 0"
        )
    return dataset


def check_labels(config: ConfigDict, dataset: Dataset, wanted: str) -> None:
    """`UserError` unless the data have what the method learns from: a class, or objects."""
    objects = sources.has_objects(dataset.train)
    if objects != (wanted == sources.OBJECTS):
        has, other = ("objects", "detection") if objects else ("one class per image", "another")
        raise UserError(
            f"objective.name ({config.objective.name!r}) does not fit data.source "
            f"({config.data.source!r}), which has {has}; choose {other} objective or source"
        )


def known_labels(source: Source) -> np.ndarray | None:
    """The label of every record, where the source knows them without reading its pictures."""
    labels = getattr(source, "labels", None)
    return None if labels is None else np.asarray(labels)  # a source of the user's may have a tuple


def _known_counts(source: Source, num_classes: int) -> np.ndarray | None:
    labels = known_labels(source)
    return None if labels is None else np.bincount(labels[labels >= 0], minlength=num_classes)


FEW_IMAGES = 10  # of a class to train on; fewer bring a warning


def check_classes(dataset: Dataset, data: ConfigDict, report: Report) -> None:
    """Refuses a data set that cannot be learned or tested, and warns of one that hardly can be.

    A class that is held out by `data.holdout` may have a single test image, with a warning.
    """
    where = f"data.path ({data.path})" if data.path else f"data.source ({data.source})"
    if sources.has_objects(dataset.train):
        for remark in coco_source.remarks(dataset.train, dataset.test):
            report(f"{where}: {remark}")
        return
    names = dataset.class_names
    train = _known_counts(dataset.train, len(names))
    if len(names) < 2:
        inside = _folders_inside(data, names)
        cure = (
            f"its folders look like the classes: --config.data.path={shlex.quote(inside)}"
            if inside
            else "a classifier needs two; give the folder that holds a folder for each class"
        )
        raise UserError(f"{where} has one class, {', '.join(names)!r}; {cure}")
    if train is None:
        return
    if train.min() < 2:
        raise UserError(
            f"{where}: class {names[train.argmin()]!r} has {train.min()} image to train on; a "
            "class needs two in train and one to test on at least: add images or remove the class"
        )
    own = not (getattr(dataset.test, "is_holdout", False) or data.folds)
    _check_tested(dataset, where, report, own=own)
    few = int((train < FEW_IMAGES).sum())
    if few:
        report(
            f"warning: {few} of {len(names)} classes have fewer than {FEW_IMAGES} images to train "
            f"on ({names[train.argmin()]!r} has {train.min()}): expect little more than chance "
            f"({1 / len(names):.0%}) for them from scratch, and more from weights (init_from); add "
            "images if you can"
        )


def _check_tested(dataset: Dataset, where: str, report: Report, *, own: bool) -> None:
    """`own`: the test part is the user's, not taken from train."""
    names = dataset.class_names
    counts = _known_counts(dataset.test, len(names))
    if counts is None or dataset.test.class_names != names:
        return
    name, least = names[counts.argmin()], int(counts.min())
    if own and least < 2:
        raise UserError(
            f"{where}: class {name!r} has {least} image{'s' * (least == 0)} to test on; a class "
            "needs two: add images to the test part, or remove that part (data.holdout takes one)"
        )
    if least < 2:
        alone = int((counts < 2).sum())
        report(
            f"warning: {alone} of {len(names)} classes have one test image ({name!r} is one), so "
            "the accuracy is a rough guess; a larger --config.data.holdout tests on more"
        )


def _folders_inside(data: ConfigDict, names: Sequence[str]) -> str:
    """The folder that was taken for the only class, where it holds folders itself."""
    if data.source != "image_folder" or not names:
        return ""
    root = Path(data.path).expanduser()
    for folder in (root, root / "train", root / "training"):
        inside = folder / names[0]
        if inside.is_dir() and sum(each.is_dir() for each in inside.iterdir()) > 1:
            return str(inside)
    return ""


def open_split(data: ConfigDict, split: str) -> Source:
    """The records of one split; small pictures are kept decoded."""
    settings = Data.read(data)
    return _cached(_corrected(settings, split), settings)


def _cached(source: Source, data: Data) -> Source:
    if sources.has_objects(source):
        return source
    upright = data.test_pixels != "stored"
    return sources.CachedSource(source, data.cache_bytes, upright=upright)


def _open_both(data: Data) -> Dataset:
    """Both splits; with folds, what of train is not in the fold, and the fold."""
    train = _corrected(data, data.train_split)
    if data.imbalance > 1.0:
        train = splits.Subset(train, splits.long_tail(train, data.imbalance, data.holdout_seed))
    if data.folds:
        fold = splits.folds_of(train, data.folds, data.holdout_seed)
        chosen = (np.flatnonzero(fold != data.fold), np.flatnonzero(fold == data.fold))
        if not all(map(len, chosen)):
            raise UserError(f"data.folds ({data.folds}) is more than the {len(train)} images allow")
        parts: list[Source] = [splits.Subset(train, records) for records in chosen]
    else:
        parts = [train, _corrected(data, data.test_split)]
    if data.corrections:
        from cone_jax.data.sources import corrections

        corrections.check_all_found(_as_they_are(data), corrections.read(data.corrections), data)
    return Dataset(*(_cached(part, data) for part in parts))


def _as_they_are(data: Data) -> list[Source]:
    """Both splits without corrections; folds can do without a part to test on."""
    opened = [sources.open_source(data, data.train_split)]
    try:
        opened.append(sources.open_source(data, data.test_split))
    except UserError:
        if not data.folds:
            raise
    return opened


def _corrected(data: Data, split: str) -> Source:
    source = sources.open_source(data, split)
    if sources.has_objects(source):
        data.check_of_objects()
    if not data.corrections:
        return source
    from cone_jax.data.sources import corrections

    lines = corrections.read(data.corrections)
    return corrections.apply(source, lines, data.path, data.corrections)


def train_order(config: ConfigDict, num_records: int, source: Source | None = None) -> TrainOrder:
    """The order of the training samples, which for non-uniform sampling depends on `source`.

    Without a source only its length is right. Pictures with objects go in groups of one shape.
    """
    if num_records < config.batch_size and config.data.last_batch == "drop":
        raise UserError(
            f"batch_size ({config.batch_size}) must be at most the {num_records} training images"
        )
    known = (num_records, config.batch_size, config.seed, config.data.last_batch)
    if config.data.sampling == "uniform" or source is None:
        order = TrainOrder(*known)
        if source is None or not sources.has_objects(source):
            return order
        return _order_of_objects(config, source, order)
    from cone_jax.data.sampling import SampledOrder

    return SampledOrder(*known, splits.labels_of(source), config.data.sampling)


def train_batches(
    config: ConfigDict, source: Source, num_steps: int, share: Share = Share()
) -> "TrainBatches | ObjectTrainBatches":
    """The training stream of this process."""
    data, order = config.data, train_order(config, len(source), source)
    if sources.has_objects(source):
        from cone_jax.data import object_batches, objects

        pipeline = objects.parse(data.train_transforms, "data.train_transforms")
        return object_batches.ObjectTrainBatches(source, order, pipeline, num_steps, share)
    views = (data.train_transforms, data.key_transforms or data.train_transforms)[: data.views]
    fields = ("data.train_transforms", "data.key_transforms")
    pipelines = tuple(map(transforms.parse, views, fields))
    return TrainBatches(source, order, pipelines, num_steps, share)


def _order_of_objects(config: ConfigDict, source: Source, order: TrainOrder) -> TrainOrder:
    """Separate batches of landscape and portrait pictures, unless one shape holds both."""
    from cone_jax.data import object_batches, objects

    data = config.data
    if objects.parse(data.train_transforms, "data.train_transforms").pad.one_shape:
        return order
    if data.last_batch == "carry":
        raise UserError(
            "data.last_batch ('carry') must be 'drop' where pictures are padded to two shapes; or "
            "pad to one, such as pad(1344, 1344)"
        )
    kinds = tuple(object_batches.standing(source).tolist())
    grouped = object_batches.GroupedOrder(**dataclasses.asdict(order), kinds=kinds)
    if not grouped.epoch_length:
        raise UserError(
            f"batch_size ({config.batch_size}) must be at most the {len(kinds) - sum(kinds)} "
            f"landscape or the {sum(kinds)} portrait pictures; or pad to one shape"
        )
    return grouped


def class_shares(source: Source) -> tuple[float, ...]:
    """The share of each class among the records."""
    counts = class_counts(source)
    return tuple((counts / counts.sum()).tolist())


def class_counts(source: Source) -> np.ndarray:
    """How many records each class has; those whose label cannot be read are in none."""
    labels = splits.labels_of(source)
    return np.bincount(labels[labels >= 0], minlength=len(source.class_names))


def eval_batches(
    config: ConfigDict,
    source: Source,
    share: Share = Share(),
    specs: Sequence[str] | None = None,
    batch_size: int | None = None,
) -> "EvalBatches | ObjectEvalBatches":
    """The evaluation batches of this process.

    `specs` replace the config's test transforms, `batch_size` its size of a batch.
    """
    specs = config.data.test_transforms if specs is None else specs
    batch_size = batch_size or config.evaluation.batch_size
    if sources.has_objects(source):
        from cone_jax.data import object_batches, objects

        whole = objects.parse(specs, "data.test_transforms")
        return object_batches.ObjectEvalBatches(source, whole, batch_size, share)
    pipeline = transforms.parse(specs, "data.test_transforms", config.data.test_pixels)
    return EvalBatches(source, pipeline, batch_size, share)


def test_pictures(config: ConfigDict, source: Source, records: Sequence[int]) -> list[np.ndarray]:
    """Records as the network sees them at test time: uint8 [H, W, 3] each."""
    data = config.data
    pipeline = transforms.parse(data.test_transforms, pixels=data.test_pixels)
    view = EvalBatches(source, pipeline, batch_size=1)
    return [view[record]["image"][0] for record in records]
