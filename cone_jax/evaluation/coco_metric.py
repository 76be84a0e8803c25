"""COCO's metric of boxes and masks, by pycocotools."""

import contextlib
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from cone_jax.data import masks as mask_lib
from cone_jax.detection.batch import Detections
from cone_jax.errors import optional_module

Kind = Literal["bbox", "segm"]
SUMMARY = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")


@dataclasses.dataclass(frozen=True)
class Score:
    """Average precisions in percent, NaN where there is nothing to find.

    `precision` [10, 101, K] holds the precision at ten IoUs (0.5 to 0.95), 101 recalls (0 to 1)
    and for each class, for curves; -1 where a class has no object.
    """

    summary: Mapping[str, float]
    per_class: Mapping[int, float]  # by category id
    precision: np.ndarray


def results(
    image_ids: Sequence[int],
    originals: Sequence[tuple[int, int]],
    sizes: np.ndarray,
    detections: Detections,
    category_ids: Sequence[int],
    *,
    masks: bool = True,
) -> list[dict[str, Any]]:
    """COCO's result entries of a batch that has been brought to the host.

    `sizes` [B, 2] are those of the resized images, `originals` what the files have; boxes and masks
    are given in pixels of the files. Images beyond `image_ids` are padding of the batch.
    """
    entries = []
    for place, (image_id, original) in enumerate(zip(image_ids, originals, strict=True)):
        boxes = mask_lib.rescale_boxes(
            np.asarray(detections.boxes[place]), tuple(sizes[place]), original
        )
        for found in np.flatnonzero(np.asarray(detections.valid[place])):
            x0, y0, x1, y1 = (float(value) for value in boxes[found])
            entry = {
                "image_id": int(image_id),
                "category_id": int(category_ids[int(detections.classes[place, found]) - 1]),
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "score": float(detections.scores[place, found]),
            }
            if masks:
                mask = np.asarray(detections.masks[place, found])
                picture = mask_lib.paste_mask(mask, boxes[found], original)
                entry["segmentation"] = mask_lib.encode_mask(picture)
            entries.append(entry)
    return entries


def evaluate(
    truth: Mapping[str, Any],
    found: Sequence[Mapping[str, Any]],
    *,
    kind: Kind,
    image_ids: Iterable[int] | None = None,
) -> Score:
    """Scores result entries against the content of COCO's JSON file.

    `image_ids` limits the judgement to these images; by default all of the file count. Missing
    areas are those of the boxes.
    """
    cocoeval = optional_module("pycocotools.cocoeval", "detection")

    with contextlib.redirect_stdout(io.StringIO()):
        reference = _index(_completed(truth))
        if found:
            entries = [dict(entry) for entry in found]
            if kind == "bbox":
                # With masks at hand pycocotools would judge their areas.
                for entry in entries:
                    entry.pop("segmentation", None)
            predicted = reference.loadRes(entries)
        else:
            predicted = _index({**truth, "annotations": []})
        judge = cocoeval.COCOeval(reference, predicted, kind)
        if image_ids is not None:
            judge.params.imgIds = sorted(set(image_ids))
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    precision = judge.eval["precision"][:, :, :, 0, -1]
    per_class = {
        int(category): _percent(_mean(precision[:, :, place]))
        for place, category in enumerate(judge.params.catIds)
    }
    summary = {
        name: _percent(float(value)) for name, value in zip(SUMMARY, judge.stats, strict=False)
    }
    return Score(summary, per_class, precision)


def _completed(truth: Mapping[str, Any]) -> dict[str, Any]:
    """`truth` with optional fields added, and ids from 1: pycocotools never finds an id 0."""
    annotations = [
        {
            "area": each["bbox"][2] * each["bbox"][3],
            "iscrowd": 0,
            **each,
            "id": number,
        }
        for number, each in enumerate(truth["annotations"], 1)
    ]
    return {**truth, "annotations": annotations}


def _index(content: Mapping[str, Any]) -> Any:
    coco_api = optional_module("pycocotools.coco", "detection")

    indexed = coco_api.COCO()
    # loadRes copies these two, which own data often lack.
    indexed.dataset = {"info": {}, "licenses": [], **content}
    indexed.createIndex()
    return indexed


def _mean(precision: np.ndarray) -> float:
    counted = precision[precision > -1]
    return float(np.mean(counted)) if counted.size else -1.0


def _percent(value: float) -> float:
    return 100.0 * value if value > -1 else float("nan")
