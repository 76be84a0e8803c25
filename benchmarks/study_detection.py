"""Overfitting Mask R-CNN on a few pictures: can it learn boxes and masks at all?

    python benchmarks/study_detection.py --data=COCO128 --out=docs/results/detection
    python benchmarks/study_detection.py --data=COCO128 --neck=c4 --init_from=runs/cone_backbone

Takes the first `--pictures` pictures of a folder in COCO's form (by id, those with crowds left
out), trains ResNet-18 on them at `--side` pixels and measures AP on the very same pictures with
pycocotools: a detector without a fault reaches box AP 80 and mask AP 60. It keeps the run below
`--out` and prints one row per run.
"""

import argparse
import json
import sys
from pathlib import Path

from ml_collections import ConfigDict

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cone_jax import training
from cone_jax.config.run_config import load_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder in COCO's form")
    parser.add_argument("--out", type=Path, default=Path("runs/study_detection"))
    parser.add_argument("--neck", choices=("fpn", "c4"), default="fpn")
    parser.add_argument("--init_from", default="", help="weights of the backbone; empty: random")
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("--side", type=int, default=160)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = "cone" if arguments.init_from else "scratch"
    name = f"{arguments.neck}_{start}_{arguments.pictures}x{arguments.side}_s{arguments.seed}"
    data = write_subset(arguments.data, arguments.out / name / "data", arguments.pictures)
    scores = training.train(settings(arguments, data), arguments.out / name / "run")
    row = {key: scores[key] for key in sorted(scores) if key.startswith("test/")}
    print(json.dumps({"run": name, "steps": arguments.steps, **row}, indent=2))


def write_subset(source: Path, target: Path, count: int) -> Path:
    """A folder with `count` pictures to train on, which are those to test on, too."""
    content = json.loads((source / "instances.json").read_text())
    crowded = {each["image_id"] for each in content["annotations"] if each.get("iscrowd")}
    labelled = {each["image_id"] for each in content["annotations"]} - crowded
    chosen = [each for each in content["images"] if each["id"] in labelled]
    chosen = sorted(chosen, key=lambda each: each["id"])[:count]
    ids = {each["id"] for each in chosen}
    subset = {
        **content,
        "images": chosen,
        "annotations": [each for each in content["annotations"] if each["image_id"] in ids],
    }
    target.mkdir(parents=True, exist_ok=True)
    if not (target / "images").exists():
        (target / "images").symlink_to((source / "images").absolute())
    for part in ("train", "val"):
        (target / f"{part}.json").write_text(json.dumps(subset))
    return target


def settings(arguments: argparse.Namespace, data: Path) -> ConfigDict:
    config = load_recipe("configs/coco.py", f"{arguments.neck},own,small,resnet18").unlock()
    side = arguments.side
    config.seed, config.steps, config.batch_size = arguments.seed, arguments.steps, arguments.batch
    config.data.path, config.data.image_size = str(data), side
    config.data.train_transforms = (
        f"short_side({side}, longest={side})",
        "flip",
        f"pad({side}, {side}, objects=50)",
    )
    config.data.test_transforms = (f"short_side({side}, longest={side})", f"pad({side}, {side})")
    detection = config.objective.detection
    # Random BatchNorm cannot be frozen; and with few pictures its statistics are made precise.
    detection.backbone_norm, detection.freeze_at = "batch", 0
    detection.precise_bn_batches = 4
    detection.anchor_sizes = (8.0, 16.0, 32.0, 64.0, 128.0)
    config.optimizer.learning_rate, config.optimizer.reference_batch = arguments.rate, 0
    config.optimizer.clip_norm = 10.0
    epochs = arguments.steps * arguments.batch / arguments.pictures
    config.schedule.warmup_steps = min(100, arguments.steps // 10)
    config.schedule.milestones = ()
    config.schedule.milestone_steps = (
        (round(arguments.steps * 0.7), 0.1),
        (round(arguments.steps * 0.9), 0.01),
    )
    config.evaluation.batch_size = arguments.batch
    config.evaluation.every_epochs = config.checkpoint.every_epochs = max(epochs / 6, 1.0)
    config.init_from = arguments.init_from
    return config


if __name__ == "__main__":
    main()
