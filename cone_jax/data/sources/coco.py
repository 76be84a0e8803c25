"""Data in COCO's form: one JSON file of images, categories and annotations, and a folder.

Reading is strict. Whatever is malformed is an error that names file, field, value and cure. Two
things real data are full of are put right and counted: boxes beyond the picture are clipped, and
boxes without area are dropped. Categories become labels 1, 2, ... in the order of their ids.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cone_jax.data import decode, objects
from cone_jax.data import masks as mask_lib
from cone_jax.errors import UserError, optional_module

# In pixels. Filling a polygon takes pycocotools memory by the length of its outline, and boxes are
# float32.
FARTHEST = 100_000

Segmentation = list[np.ndarray] | dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Record:
    """One image and n objects: `boxes` float32 [n, 4], `classes` int32 [n], `crowd` bool [n].

    `stated` [n, 4] are the boxes and `areas` [n] the areas as COCO's metric takes them.
    """

    image_id: int
    path: Path
    size: tuple[int, int]  # height, width
    boxes: np.ndarray
    classes: np.ndarray
    crowd: np.ndarray
    segmentations: tuple[Segmentation, ...]
    stated: np.ndarray
    areas: np.ndarray


@dataclasses.dataclass(frozen=True)
class CocoData:
    """The records in the order of their ids, and what the labels mean.

    `category_ids[k]` and `names[k]` belong to label k + 1.
    """

    records: tuple[Record, ...]
    category_ids: tuple[int, ...]
    names: tuple[str, ...]
    dropped_images: int  # without an object
    dropped_boxes: int  # without area
    clipped_boxes: int


def read(
    annotations: Path, images: Path, *, masks: bool | None = True, keep_empty: bool = False
) -> CocoData:
    """Reads the JSON file `annotations`; `images` is the folder that its file names are in.

    With `masks` every object needs a segmentation; None takes those that there are. `keep_empty`
    keeps images without an object, which are dropped otherwise (an image with nothing but crowds
    has none).
    """
    content = _load_json(annotations)
    labels, names = _categories(content, annotations)
    pictures = _images(content, annotations, images)
    found: dict[int, list[dict[str, Any]]] = {image_id: [] for image_id in pictures}
    seen: set[int] = set()
    dropped = clipped = 0
    for index, entry in enumerate(content["annotations"]):
        where = _Entry(annotations, f"annotations[{index}]", entry)
        parsed = _annotation(where, pictures, labels, masks=masks)
        if parsed["id"] in seen:
            raise where.wrong("id", "unique")
        seen.add(parsed["id"])
        clipped += parsed["clipped"]
        if np.any(parsed["box"][2:] <= parsed["box"][:2]):
            dropped += 1
        else:
            found[entry["image_id"]].append(parsed)
    records = [_record(pictures[image_id], found[image_id]) for image_id in sorted(pictures)]
    kept = tuple(each for each in records if keep_empty or not np.all(each.crowd))
    refuse_nothing(kept, annotations)
    return CocoData(kept, tuple(labels), tuple(names), len(records) - len(kept), dropped, clipped)


def refuse_nothing(records: Sequence[Record], annotations: Path) -> None:
    """Raises `UserError` if no record is left to train on."""
    if not records:
        raise UserError(
            f"{annotations}: no image to train on has an object; label some, or set "
            "data.empty_images to 'keep'"
        )


def load(
    record: Record, *, masks: bool = True, mask_side: int = objects.MASK_SIDE
) -> objects.Example:
    """Decodes the picture and crops the masks of its objects; `UserError` where it is damaged."""
    try:
        return example(record, record.path.read_bytes(), mask_side if masks else 0)
    except (OSError, decode.DamagedImage) as error:
        raise UserError(f"{record.path}: not a readable picture ({error}); replace it") from error


def example(record: Record, image: bytes | np.ndarray, mask_side: int) -> objects.Example:
    """The picture and its objects; with `mask_side` 0 their masks are left empty.

    `decode.DamagedImage` where the picture cannot be decoded.
    """
    pixels = pixels_of(record, image)
    side = mask_side or objects.MASK_SIDE
    crops = np.zeros((len(record.boxes), side, side), np.uint8)
    frames = record.boxes.copy()
    for place, (box, code) in enumerate(zip(record.boxes, record.segmentations, strict=True)):
        if not mask_side or code is None:
            continue
        try:
            bitmap = decode_mask(code, record.size)
        except ValueError as error:
            name = f"image_id {record.image_id}, {record.path.name}"
            raise UserError(f"segmentation of {name}: {error}; correct the JSON") from error
        crops[place], frames[place] = objects.crop_mask(bitmap, box, side)
    return objects.Example(pixels, record.boxes, record.classes, record.crowd, crops, frames)


def pixels_of(record: Record, image: bytes | np.ndarray) -> np.ndarray:
    """The picture, uint8 [H, W, 3], the way up that its objects were labelled."""
    return decode.as_array(picture_of(record, image))


def picture_of(record: Record, image: bytes | np.ndarray) -> decode.Raster:
    """The picture that the objects were labelled on, of which the header has been read.

    Some labelling programs turn a photograph as its EXIF orientation says, others do not.
    """
    for upright in (True, False):
        picture = decode.open_image(image, upright=upright)
        width, height = decode.size_of(picture)
        if (height, width) == record.size:
            return picture
    raise UserError(
        f"{record.path}: {width} x {height} pixels, but the JSON's width and height are "
        f"{record.size[1]} x {record.size[0]}; correct the JSON"
    )


def decode_mask(segmentation: Any, size: tuple[int, int]) -> np.ndarray:
    """Polygons or a run-length code -> bool [H, W].

    >>> decode_mask([[0, 0, 2, 0, 2, 1, 0, 1]], (2, 3)).astype(int).tolist()
    [[1, 1, 0], [0, 0, 0]]
    """
    coco_mask = optional_module("pycocotools.mask", "detection")

    if isinstance(segmentation, dict):
        counts = segmentation["counts"]
        if isinstance(counts, list):
            counts = coco_mask.frPyObjects(segmentation, *size)["counts"]
    else:
        polygons = [np.asarray(polygon, np.float64).tolist() for polygon in segmentation]
        counts = coco_mask.merge(coco_mask.frPyObjects(polygons, *size))["counts"]
    return mask_lib.decode_mask(counts.encode() if isinstance(counts, str) else counts, size)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One entry of the JSON file, which knows its own place for error messages."""

    file: Path
    place: str
    content: Mapping[str, Any]

    def wrong(self, field: str, cure: str) -> UserError:
        value = json.dumps(self.content.get(field), default=str)
        shown = value if len(value) <= 60 else value[:57] + "..."
        return UserError(f"{self.file}: {self.place}.{field} ({shown}) must be {cure}")

    def integer(self, field: str, *, least: int | None = None) -> int:
        value = self.content.get(field)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(field, "a whole number")
        if least is not None and value < least:
            raise self.wrong(field, f"at least {least}")
        return value

    def text(self, field: str) -> str:
        value = self.content.get(field)
        if not isinstance(value, str) or not value:
            raise self.wrong(field, "a text")
        return value


def _load_json(path: Path) -> dict[str, list[Any]]:
    try:
        # Programs on Windows begin a file with a byte order mark.
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give COCO's JSON file") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); give COCO's JSON file") from error
    for field in ("images", "annotations", "categories"):
        entries = content.get(field) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise UserError(f"{path}: {field} must be a list of objects, as in COCO's instances")
    return content


def _categories(content: dict[str, list[Any]], path: Path) -> tuple[dict[int, int], list[str]]:
    """Category id -> label, in the order of ids, and the names in that order."""
    found: dict[int, str] = {}
    for index, each in enumerate(content["categories"]):
        entry = _Entry(path, f"categories[{index}]", each)
        category = entry.integer("id")
        if category in found:
            raise entry.wrong("id", "unique")
        found[category] = entry.text("name")
    if not found:
        raise UserError(f"{path}: categories is empty; list the classes with id and name")
    ordered = sorted(found)
    return {category: 1 + k for k, category in enumerate(ordered)}, [found[k] for k in ordered]


def _images(
    content: dict[str, list[Any]], path: Path, folder: Path
) -> dict[int, tuple[int, Path, tuple[int, int]]]:
    found: dict[int, tuple[int, Path, tuple[int, int]]] = {}
    if not content["images"]:
        raise UserError(f"{path}: images is empty; list the pictures with id and file_name")
    for index, each in enumerate(content["images"]):
        entry = _Entry(path, f"images[{index}]", each)
        image_id = entry.integer("id")
        if image_id in found:
            raise entry.wrong("id", "unique")
        name = Path(entry.text("file_name"))
        if name.is_absolute() or ".." in name.parts:
            raise entry.wrong("file_name", f"a name below {folder}")
        picture = folder / name
        if name.parts[:1] == (folder.name,) and not _is_file(picture):
            picture = folder.parent / name  # the name begins with the folder
        if not _is_file(picture):
            raise entry.wrong("file_name", f"a file in {folder}; add it or remove the entry")
        size = (entry.integer("height", least=1), entry.integer("width", least=1))
        found[image_id] = (image_id, picture, size)
    return found


def _annotation(
    entry: _Entry,
    pictures: Mapping[int, tuple[int, Path, tuple[int, int]]],
    labels: Mapping[int, int],
    *,
    masks: bool | None,
) -> dict[str, Any]:
    number = entry.integer("id")
    if entry.integer("image_id") not in pictures:
        raise entry.wrong("image_id", "the id of one of images")
    if entry.integer("category_id") not in labels:
        raise entry.wrong("category_id", "the id of one of categories")
    if entry.content.get("iscrowd", 0) not in (0, 1):
        raise entry.wrong("iscrowd", "0 or 1")
    height, width = pictures[entry.content["image_id"]][2]
    box = _box(entry)
    inside = np.clip(box, 0, np.array([width, height, width, height], np.float32))
    wanted = masks or (masks is None and bool(entry.content.get("segmentation")))
    segmentation = _segmentation(entry, (height, width)) if wanted else None
    area = entry.content.get("area", float(np.prod(box[2:] - box[:2])))
    if not _is_number(area) or area < 0:
        raise entry.wrong("area", "a number of at least 0")
    return {
        "id": number,
        "stated": entry.content["bbox"],
        "area": area,
        "box": inside,
        "clipped": bool(np.any(np.abs(inside - box) > 1e-3)),
        "label": labels[entry.content["category_id"]],
        "crowd": bool(entry.content.get("iscrowd", 0)),
        "segmentation": segmentation,
    }


def _box(entry: _Entry) -> np.ndarray:
    box = entry.content.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_place, box)):
        raise entry.wrong("bbox", f"four numbers within {FARTHEST:,} pixels: x, y, width, height")
    if box[2] < 0 or box[3] < 0:
        raise entry.wrong("bbox", "x, y, width, height with sides of at least 0")
    return np.array([box[0], box[1], box[0] + box[2], box[1] + box[3]], np.float32)


def _segmentation(entry: _Entry, size: tuple[int, int]) -> Segmentation:
    value = entry.content.get("segmentation")
    if isinstance(value, dict):
        counts = value.get("counts")
        if value.get("size") != list(size) or not isinstance(counts, list | str):
            raise entry.wrong("segmentation", f"a run-length code with counts and size {[*size]}")
        if not _fill(counts, size):
            rule = f"counts of at least 0 that add up to {size[0]} x {size[1]} pixels"
            raise entry.wrong("segmentation", f"a run-length code with {rule}")
        return value
    if not isinstance(value, list) or not value:
        raise entry.wrong("segmentation", "polygons or a run-length code; or read without masks")
    for polygon in value:
        good = isinstance(polygon, list) and len(polygon) >= 6 and len(polygon) % 2 == 0
        if not good or not all(map(_is_place, polygon)):
            rule = (
                f"polygons x0, y0, x1, y1, ... of three points or more, within {FARTHEST:,} pixels"
            )
            raise entry.wrong("segmentation", rule)
    return [np.asarray(polygon, np.float64) for polygon in value]


def _fill(counts: list[Any] | str, size: tuple[int, int]) -> bool:
    """Whether runs, compressed or not, make a picture of this size."""
    if isinstance(counts, str):
        try:
            counts = list(mask_lib.run_lengths(counts.encode(), size))
        except ValueError:
            return False
    whole = all(type(each) is int and each >= 0 for each in counts)
    return whole and sum(counts) == size[0] * size[1]


def _is_number(value: Any, most: float = sys.float_info.max) -> bool:
    """Of at most this size; neither NaN nor a whole number too long for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= most


def _is_place(value: Any) -> bool:
    return _is_number(value, FARTHEST)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than the file system takes
        return False


def _record(picture: tuple[int, Path, tuple[int, int]], objects: list[dict[str, Any]]) -> Record:
    return Record(
        *picture,
        boxes=np.array([each["box"] for each in objects], np.float32).reshape(-1, 4),
        classes=np.array([each["label"] for each in objects], np.int32),
        crowd=np.array([each["crowd"] for each in objects], bool),
        segmentations=tuple(each["segmentation"] for each in objects),
        stated=np.array([each["stated"] for each in objects], np.float64).reshape(-1, 4),
        areas=np.array([each["area"] for each in objects], np.float64),
    )
