"""Overfitting Mask R-CNN on a few pictures: can it learn boxes and masks at all?

    python benchmarks/study_detection.py --data=COCO128 --neck=fpn
    python benchmarks/study_detection.py --data=COCO128 --neck=c4 --init_from=runs/cone_resnet18

Takes pictures of a folder in COCO's form, trains ResNet-18 on them and measures AP on the very same
pictures with pycocotools: a detector without a fault reaches box AP 80 and mask AP 60. The rule for
the pictures: no crowd, at most `MOST_OBJECTS` objects, and of these the `--pictures` whose smallest
object covers the largest share of its picture.

A run lives below `--runs` and goes on where it was interrupted. Once finished it is a line of
`--out`.jsonl, and is not repeated; the table, the curves and the drawn pictures are made again
from all lines.
"""

import argparse
import datetime
import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cone_jax import runtime

runtime.set_up()

import jax
import numpy as np
import study_report
from ml_collections import ConfigDict
from PIL import Image

import cone_jax
from cone_jax import training
from cone_jax.analysis import detection_files, figure_style, figures
from cone_jax.analysis.tables import markdown_table
from cone_jax.config.run_config import load_recipe
from cone_jax.evaluation.detection import DetectionOutcome
from cone_jax.training.run_directory import RunDirectory

MOST_OBJECTS = 5
METRICS = ("box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50", "mask_ap75")
# Everything at the size of small pictures: a core trains a few hundred steps in ten minutes.
SMALL: dict[str, Any] = {
    "backbone_norm": "batch",
    "freeze_at": 0,
    "precise_bn_batches": 4,
    "anchor_sizes": (16.0, 32.0, 64.0, 96.0, 128.0),
    "proposals_before_nms": (200, 100),
    "proposals": (64, 32),
    "rpn_samples": 64,
    "roi_samples": 32,
    "detections": 20,
    "box_features": 256,
    "pyramid_channels": 64,
    "mask_channels": 64,
    "mask_convolutions": 2,
}
# Every region goes through res5, which is most of the work.
SMALL_C4: dict[str, Any] = {**SMALL, "mask_convolutions": 0, "roi_samples": 16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder in COCO's form")
    parser.add_argument("--neck", choices=("fpn", "c4"), default="fpn")
    parser.add_argument("--init_from", default="", help="weights of the backbone; empty: random")
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/study_detection"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/detection")
    arguments = parser.parse_args()
    start = "cone" if arguments.init_from else "scratch"
    name = f"{arguments.neck}_{start}"
    directory = arguments.runs / f"{name}_{arguments.pictures}x{arguments.side}_s{arguments.seed}"
    data = write_subset(arguments.data, directory / "data", arguments.pictures)
    config = settings(arguments, data)
    records = arguments.out.with_suffix(".jsonl")
    if study_report.fingerprint(config) not in study_report.read(records):
        training.train(config, directory / "run")
        record = {"name": name, **finished(directory / "run", config)}
        keep_picture(directory / "run", arguments.out.with_name(f"detection_{name}.jpg"))
        with records.open("a") as file:
            file.write(json.dumps(record) + "\n")
    report(list(study_report.read(records).values()), arguments.out)


def write_subset(source: Path, target: Path, count: int) -> Path:
    """A folder with `count` pictures to train on, which are those to test on, too."""
    content = json.loads((source / "instances.json").read_text())
    objects: dict[int, list[dict[str, Any]]] = {}
    for each in content["annotations"]:
        objects.setdefault(each["image_id"], []).append(each)

    def smallest(image: dict[str, Any]) -> float:
        return min(each["area"] for each in objects[image["id"]]) / image["height"] / image["width"]

    suitable = [
        image
        for image in content["images"]
        if 1 <= len(objects.get(image["id"], [])) <= MOST_OBJECTS
        and not any(each.get("iscrowd") for each in objects[image["id"]])
    ]
    chosen = sorted(suitable, key=lambda image: (-smallest(image), image["id"]))[:count]
    ids = {image["id"] for image in chosen}
    subset = {
        **content,
        "images": chosen,
        "annotations": [each for each in content["annotations"] if each["image_id"] in ids],
    }
    (target / "images").mkdir(parents=True, exist_ok=True)
    for image in chosen:
        copied = target / "images" / image["file_name"]
        if not copied.exists():
            shutil.copyfile(source / "images" / image["file_name"], copied)
    for part in ("train", "val"):
        (target / f"{part}.json").write_text(json.dumps(subset))
    return target


def settings(arguments: argparse.Namespace, data: Path) -> ConfigDict:
    recipe = str(ROOT / "configs" / "coco.py")
    config = load_recipe(recipe, f"{arguments.neck},own,small,resnet18").unlock()
    side = arguments.side
    config.seed, config.steps, config.batch_size = arguments.seed, arguments.steps, arguments.batch
    config.data.path, config.data.image_size = str(data), side
    resize = f"short_side({side}, longest={side})"
    config.data.train_transforms = (resize, f"pad({side}, {side}, objects={MOST_OBJECTS})")
    config.data.test_transforms = (resize, f"pad({side}, {side})")
    config.objective.detection.update(SMALL if arguments.neck == "fpn" else SMALL_C4)
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate, config.optimizer.reference_batch = arguments.rate, 0
    config.optimizer.clip_norm = 10.0
    config.schedule.warmup_steps = 40
    config.schedule.milestones, config.schedule.decay = (), "cosine"
    config.evaluation.batch_size = arguments.batch
    per_epoch = arguments.pictures / arguments.batch
    config.evaluation.every_epochs = arguments.steps / per_epoch / 8
    config.checkpoint.every_epochs = config.evaluation.every_epochs
    config.init_from = arguments.init_from
    return config


def finished(workdir: Path, config: ConfigDict) -> study_report.Record:
    """The line of a finished run: what it was, what it reached, and how."""
    tested = [
        row
        for row in map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        if "test/box_ap" in row
    ]
    return {
        "neck": config.objective.detection.neck,
        "from": config.init_from and "cone",
        "init_from": config.init_from,
        "seed": config.seed,
        "steps": config.steps,
        "batch": config.batch_size,
        "side": config.data.image_size,
        **{metric: _percent(tested[-1], metric) for metric in METRICS},
        "curve": [
            (row["step"], _percent(row, "box_ap"), _percent(row, "mask_ap")) for row in tested
        ],
        "fingerprint": study_report.fingerprint(config),
        "date": datetime.date.today().isoformat(),
        "versions": f"cone_jax {cone_jax.__version__}, jax {jax.__version__}",
    }


def _percent(row: dict[str, float], metric: str) -> float:
    return round(100 * row.get(f"test/{metric}", 0.0), 2)


def keep_picture(workdir: Path, target: Path) -> None:
    """What the finished detector finds, on one sheet."""
    run = RunDirectory.open(workdir)
    outcome = run.run.evaluators[0].evaluate(run.run, run.variables(run.run, run.resolve()), print)
    if not isinstance(outcome, DetectionOutcome):
        raise TypeError(f"{workdir} is not the run of a detector")
    drawn, _ = detection_files.pictures(outcome, count=16)
    side, columns = 120, 8
    sheet = Image.new("RGB", (columns * side, -(-len(drawn) // columns) * side), "white")
    for place, pixels in enumerate(drawn):
        small = Image.fromarray(pixels)
        small.thumbnail((side - 4, side - 4))
        sheet.paste(small, (place % columns * side, place // columns * side))
    sheet.save(target, quality=80)


def report(records: list[study_report.Record], out: Path) -> None:
    """The table between the marks of the document, and the curves."""
    rows = [
        [
            f"ResNet-18 {record['neck'].upper()}",
            record["from"] or "scratch",
            str(record["seed"]),
            f"{record['steps']} x {record['batch']}",
            *(f"{record[metric]:.1f}" for metric in METRICS),
        ]
        for record in records
    ]
    header = ["", "from", "seed", "steps x batch", *(name.replace("_", " ") for name in METRICS)]
    study_report.write(out.with_suffix(".md"), markdown_table(header, rows))
    lines = []
    for look, record in enumerate(records):
        steps, *kinds = np.array(record["curve"]).T
        for kind, values in zip(("box", "mask"), kinds, strict=True):
            label = f"{record['neck'].upper()}, {record['from'] or 'scratch'}, {kind}"
            lines.append(figures.Line(label, steps, values, look=look))
    chart = figures.curves(lines, y_label="AP, %", x_label="step")
    with figure_style.styled():
        chart.savefig(out.with_name("detection_curves.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
