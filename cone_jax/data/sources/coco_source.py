"""Pictures with labelled objects as a source: COCO's folders, or a user's own in COCO's form.

    root/annotations/instances_train2017.json, root/train2017/       COCO itself
    root/annotations/instances_train.json, root/train/ or images/    the same without a year
    root/train/_annotations.coco.json, pictures beside it            as labelling programs export
    root/train.json, root/train/ or root/images/
    root/ANY.json, the only one, and root/images/ or root           one part; a hold-out is tested
    root/annotations/instances_default.json, root/images/            the same, as CVAT names it

A record's label is a `coco.Record`. The pictures of the test part count even where they hold no
object: what is found on them is wrong.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cone_jax.data import decode
from cone_jax.data.sources import coco, splits
from cone_jax.data.sources.source import OBJECTS, Record, Source
from cone_jax.errors import UserError


class CocoSource:
    """Pictures of one JSON file, read when asked for."""

    label_kind = OBJECTS

    def __init__(self, data: coco.CocoData, records: Iterable[coco.Record]) -> None:
        self._records = tuple(records)
        self.class_names = data.names
        self.category_ids = data.category_ids
        self.put_right = {
            "boxes clipped to their picture": data.clipped_boxes,
            "boxes without area dropped": data.dropped_boxes,
            "pictures without an object dropped": data.dropped_images,
        }
        # To a hold-out all pictures are of one kind.
        self.labels = np.zeros(len(self._records), np.int32)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        record = self._records[index]
        try:
            return Record(record.path.read_bytes(), record)
        except OSError as error:
            raise decode.DamagedImage(f"cannot be read: {error.strerror}") from error

    def objects(self, index: int) -> coco.Record:
        """What is labelled, without reading the picture."""
        return self._records[index]

    def describe(self, index: int) -> str:
        return str(self._records[index].path)

    def relative_path(self, index: int) -> str:
        return self._records[index].path.name


def open_coco(
    split: str,
    path: str,
    empty_images: str = "drop",
    holdout: float = 0.1,
    holdout_seed: int = 0,
) -> CocoSource:
    """The pictures of `split` below `path`; `empty_images` is about those to train on."""
    if not path:
        raise UserError("data.path is empty; give the folder that holds COCO's JSON and pictures")
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UserError(f"data.path ({root}) is not a folder; give the one with COCO's JSON")
    part = splits.part(split)
    keep_empty = part == "held-out" or empty_images == "keep"
    found = _parts(str(root.absolute()))
    name = splits.match(split, found)
    tested = splits.match("test", found) is not None
    if name is not None and (part == "held-out" or tested):
        data = coco.read(*found[name], masks=None, keep_empty=keep_empty)
        return CocoSource(data, data.records)
    whole = found.get(_WHOLE) or found.get(splits.match("train", found) or "")
    if whole is None:
        raise UserError(
            f"data.path ({root}) has no JSON file of {split!r}; expected "
            "annotations/instances_train2017.json with train2017/, train.json with images/, "
            "train/_annotations.coco.json, or one JSON file with images/"
        )
    splits.check_holdout(holdout, split, f"data.path ({root})")
    data = coco.read(*whole, masks=None, keep_empty=True)
    keys = [record.path.name.encode() for record in data.records]
    out = splits.held_out(keys, holdout, holdout_seed)
    mine = [
        record
        for index, record in enumerate(data.records)
        if (index in out) == (part == "held-out")
    ]
    if not mine:
        raise UserError(f"{whole[0]}: a single image leaves none to test on; add images")
    kept = [record for record in mine if keep_empty or not np.all(record.crowd)]
    coco.refuse_nothing(kept, whole[0])
    return CocoSource(dataclasses.replace(data, dropped_images=len(mine) - len(kept)), kept)


class Relabelled:
    """The records of a source of objects, with the labels that training gave their classes."""

    label_kind = OBJECTS

    def __init__(self, source: Source, trained: Source) -> None:
        self.class_names = trained.class_names
        self._source = source
        places = {name: label for label, name in enumerate(trained.class_names, 1)}
        unknown = [name for name in source.class_names if name not in places]
        if unknown:
            raise UserError(
                f"data: the classes {unknown[:5]} were not trained on; rename them in the JSON to "
                "those of the training part, or remove them"
            )
        self._label_of = np.array([0, *(places[name] for name in source.class_names)], np.int32)
        self.labels = np.zeros(len(source), np.int32)
        self.category_ids = self._ids(trained)

    def _ids(self, trained: Source) -> tuple[int, ...]:
        """The source's own category ids; for classes that it lacks training's, or unused ones."""
        own: Mapping[int, int] = dict(
            zip(self._label_of[1:].tolist(), _category_ids(self._source), strict=True)
        )
        used, ids = {*own.values()}, []
        for label, theirs in enumerate(_category_ids(trained), 1):
            free = theirs if theirs not in used else max(used) + 1
            ids.append(own.get(label, free))
            used.add(ids[-1])
        return tuple(ids)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Record:
        return Record(self._source[index].image, self.objects(index))

    def objects(self, index: int) -> coco.Record:
        record = objects_of(self._source, index)
        return dataclasses.replace(record, classes=self._label_of[record.classes])

    def describe(self, index: int) -> str:
        return self._source.describe(index)


def in_classes_of(trained: Source, source: Source) -> Source:
    """`source` with training's labels: classes are matched by name, never by number.

    Labelling programs number the classes of every part anew, and list only those that are in it.
    """
    return source if source.class_names == trained.class_names else Relabelled(source, trained)


def _category_ids(source: Source) -> tuple[int, ...]:
    numbered = tuple(range(1, len(source.class_names) + 1))
    return tuple(getattr(source, "category_ids", numbered))


_WHOLE = "instances"  # the part of a data set that has one only


def _parts(root: str) -> dict[str, tuple[Path, Path]]:
    """JSON file and folder of pictures, by the name of the part."""
    base = Path(root)
    found: dict[str, tuple[Path, Path]] = {}

    def add(name: str, file: Path, *folders: Path) -> None:
        folder = next((each for each in folders if each.is_dir()), None)
        if folder is None:
            raise UserError(
                f"{file} has no folder of pictures; expected {' or '.join(map(str, folders))}"
            )
        found.setdefault(name, (file, folder))

    for file in sorted((base / "annotations").glob("instances_*.json")):
        part = file.stem.removeprefix("instances_")
        add(part.rstrip("0123456789"), file, base / part, base / "images" / part, base / "images")
    for file in sorted(base.glob("*/_annotations.coco.json")):
        add(file.parent.name, file, file.parent)
    for name in ("train", "val", "valid", "validation", "test"):
        file = base / f"{name}.json"
        if file.is_file():
            add(name, file, base / name, base / "images")
    if "default" in found:  # CVAT's name of what is not divided
        found.setdefault(_WHOLE, found.pop("default"))
    alone = sorted(base.glob("*.json"))
    if (base / "instances.json").is_file():
        alone = [base / "instances.json"]
    if len(alone) == 1 and (not found or alone[0].stem == _WHOLE):
        add(_WHOLE, alone[0], base / "images", base)
    return found


def remarks(train: Source, test: Source) -> Iterator[str]:
    """Lines about corrected labels, and about what cannot be learnt or tested."""
    changed = getattr(train, "put_right", {})
    if any(changed.values()):
        yield ", ".join(f"{what}: {count:,}" for what, count in changed.items() if count)
    counted = zip(train.class_names, object_counts(train), strict=True)
    missing = [name for name, count in counted if not count]
    if missing:
        yield (
            f"warning: {len(missing)} of {len(train.class_names)} classes have no object to train "
            f"on, such as {missing[0]!r}"
        )
    if not np.any(object_counts(test)):
        yield "warning: no picture to test on has an object, so there will be no AP"


def object_counts(source: Source) -> np.ndarray:
    """The number of objects of each class, without crowds."""
    counts = np.zeros(len(source.class_names) + 1, int)
    for index in range(len(source)):
        record = objects_of(source, index)
        counts += np.bincount(record.classes[~record.crowd], minlength=len(counts))
    return counts[1:]


def truth(source: Source) -> dict[str, Any]:
    """The content of a COCO file for the records of a source, for the metric.

    A picture's id is its place in the source, a category's its label: ids of several files may
    clash, places cannot.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(len(source)):
        record = objects_of(source, index)
        images.append({"id": index, "height": record.size[0], "width": record.size[1]})
        for place in range(len(record.boxes)):
            code = record.segmentations[place]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": index,
                    "category_id": int(record.classes[place]),
                    "bbox": record.stated[place].tolist(),
                    "area": float(record.areas[place]),
                    "iscrowd": int(record.crowd[place]),
                    **({} if code is None else {"segmentation": _plain(code)}),
                }
            )
    categories = [{"id": 1 + k, "name": name} for k, name in enumerate(source.class_names)]
    return {"images": images, "annotations": annotations, "categories": categories}


def objects_of(source: Source, index: int) -> coco.Record:
    """The objects of a record of any source that has some."""
    record: coco.Record = source.objects(index)  # type: ignore[attr-defined]
    return record


def _plain(segmentation: Any) -> Any:
    if isinstance(segmentation, dict):
        return segmentation
    return [np.asarray(polygon).tolist() for polygon in segmentation]
