"""The results of a detector for people: tables, curves, pictures, and the paper's table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from cone_jax import storage
from cone_jax.analysis import figure_style, figures, page, paper_comparison, tables
from cone_jax.analysis.page import Section
from cone_jax.data import contact_sheet, decode, object_drawing
from cone_jax.data.sources import coco, coco_source
from cone_jax.errors import UserError
from cone_jax.evaluation.detection import DetectionEvaluator, DetectionOutcome, drawn_entries
from cone_jax.training.run_directory import RunDirectory

_PICTURES, _WORST = 12, 15
_SIDE = 320  # of the pictures on a sheet
# The paper's columns, and ours.
_PAPER = {
    "AP50_box": "box_ap50",
    "AP_box": "box_ap",
    "AP75_box": "box_ap75",
    "AP50_mask": "mask_ap50",
    "AP_mask": "mask_ap",
    "AP75_mask": "mask_ap75",
}


def write_detections(outcome: DetectionOutcome, directory: Path) -> list[Path]:
    """COCO's result JSON, the table of classes, precision-recall curves, drawn pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    results = directory / "detections.json"
    with storage.replacing(results) as unfinished:
        unfinished.write_text(json.dumps(original_entries(outcome)) + "\n")
    header, rows = class_table(outcome)
    paths = [results, tables.write_csv(directory / "per_class.csv", header, rows)]
    paths += figure_style.save(precision_recall(outcome), directory / "precision_recall")
    drawn, captions = pictures(outcome)
    paths.append(contact_sheet.write(directory / "detections.png", _on_squares(drawn), captions))
    table = directory / "paper.md"
    with storage.replacing(table) as unfinished:
        unfinished.write_text(tables.markdown_table(*paper_table(outcome)) + "\n")
    return [*paths, table]


def original_entries(outcome: DetectionOutcome) -> list[dict[str, Any]]:
    """The result entries with the ids of the files that the data came from."""
    source: Any = outcome.source
    ids = getattr(source, "category_ids", None) or range(1, len(outcome.class_names) + 1)
    return [
        {
            **entry,
            "image_id": coco_source.objects_of(source, entry["image_id"]).image_id,
            "category_id": int(ids[entry["category_id"] - 1]),
        }
        for entry in outcome.found
    ]


def class_table(outcome: DetectionOutcome) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
    """AP of every class that has an object, the worst boxes first."""
    counts = coco_source.object_counts(outcome.source)
    kinds = list(outcome.scored)
    rows: list[tuple[Any, ...]] = []
    for label, (name, count) in enumerate(zip(outcome.class_names, counts, strict=True), 1):
        values = [outcome.scored[kind].per_class.get(label, float("nan")) for kind in kinds]
        if count and np.isfinite(values[0]):
            rows.append((name, int(count), *(round(value, 2) for value in values)))
    rows.sort(key=lambda row: row[2])
    return ("class", "objects", *(f"{kind}_ap" for kind in kinds)), rows


def precision_recall(outcome: DetectionOutcome) -> Figure:
    """Mean precision over the classes, by recall, at three overlaps."""
    recall = np.linspace(0.0, 100.0, 101)
    lines = []
    for kind, score in outcome.scored.items():
        for place, overlap in ((0, 0.5), (5, 0.75), (9, 0.95)):
            precision = score.precision[place]
            known = precision[:, (precision > -1).all(axis=0)]
            mean = 100 * known.mean(axis=1) if known.size else np.zeros(101)
            lines.append(figures.Line(f"{kind} {overlap}", recall, mean))
    figure = figures.curves(lines, y_label="precision, %", x_label="recall, %")
    figure.axes[0].set_ylim(0.0, 105.0)
    return figure


def pictures(
    outcome: DetectionOutcome, count: int = _PICTURES
) -> tuple[list[np.ndarray], list[str]]:
    """The first pictures with what was found on them, and where each comes from."""
    names = dict(enumerate(outcome.class_names, 1))
    by_picture: dict[int, list[dict[str, Any]]] = {}
    for entry in outcome.found:
        by_picture.setdefault(entry["image_id"], []).append(entry)
    drawn, captions = [], []
    for index in range(min(count, len(outcome.source))):
        try:
            image, record = outcome.source[index]
            pixels = coco.pixels_of(record, image)
        except decode.DamagedImage:
            continue
        entries = drawn_entries(by_picture.get(index, []), names)
        drawn.append(object_drawing.draw(pixels, entries))
        name, found = Path(outcome.source.describe(index)).name, by_picture.get(index, [])
        captions.append(f"{name}: {len(entries)} of {len(found)} drawn")
    return drawn, captions


def paper_table(outcome: DetectionOutcome) -> tuple[list[str], list[list[str]]]:
    """The paper's rows of COCO for this neck, and this run below them."""
    neck = outcome.config.objective.detection.neck.upper()
    known: dict[str, dict[str, str]] = {}
    for row in paper_comparison.read_paper():
        if row.table == "coco" and row.arch.endswith(neck):
            known.setdefault(row.method, {})[row.metric] = row.value
    rows = [
        [f"{method} (the paper's)", *(values.get(name, "–") for name in _PAPER)]
        for method, values in known.items()
    ]
    own = [tables.one_decimal(_percent(outcome.scores.get(ours))) for ours in _PAPER.values()]
    return ["", *_PAPER], [*rows, ["this run, on its own test pictures", *own]]


def section(run: RunDirectory, step: int | str) -> Section | None:
    """The report's section on what a detector finds in the test pictures."""
    evaluators = [each for each in run.run.evaluators if isinstance(each, DetectionEvaluator)]
    number = run.resolve(step)
    stage = run.run.stage_at(number).on_local_devices()
    if not evaluators:
        return None
    outcome = evaluators[0].evaluate(stage, run.variables(stage, number), lambda line: None)
    header, rows = class_table(outcome)
    drawn, captions = pictures(outcome)
    worst = page.table(
        header, [tuple(map(str, row)) for row in rows[:_WORST]], numbers=range(1, len(header))
    )
    paper_header, paper_rows = paper_table(outcome)
    parts = [
        page.paragraph(
            f"{len(outcome.source):,} test pictures at step {number:,}; of what was found on each, "
            "objects with a score of 50% or more are drawn."
        ),
        page.group("", (page.thumbnail(*each, []) for each in zip(drawn, captions, strict=True))),
        page.grid(
            [
                page.chart(
                    precision_recall(outcome),
                    "precision-recall",
                    "Precision and recall",
                    "Mean over the classes, by overlap.",
                ),
                Markup("<div><h3>Worst classes</h3>{}</div>").format(worst),
            ],
            wide=True,
        ),
        Markup("<h3>Beside the paper's table (COCO val2017)</h3>"),
        page.table(paper_header, paper_rows, numbers=range(1, len(paper_header))),
    ]
    return Section("detections", "Detections", page.join(parts))


def obtain_section(run: RunDirectory, step: int | str) -> tuple[Section | None, str]:
    """`section`, or why there is none."""
    try:
        return section(run, step), ""
    except UserError as error:
        return None, str(error)


def _on_squares(drawn: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures of any shape on equal squares, uint8 [N, side, side, 3]."""
    squares = np.full((len(drawn), _SIDE, _SIDE, 3), 255, np.uint8)
    for place, pixels in enumerate(drawn):
        small = Image.fromarray(pixels)
        small.thumbnail((_SIDE, _SIDE))
        shrunk = np.asarray(small)
        squares[place, : shrunk.shape[0], : shrunk.shape[1]] = shrunk
    return squares


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share
