"""How well wrong labels are found, beside cleanlab's confident learning on the same probabilities.

    python benchmarks/study_label_errors.py --sets=digits [--output=runs/study_label_errors]
    python benchmarks/study_label_errors.py --sets=cifar100 --cifar100=DATA_DIR
    python benchmarks/study_label_errors.py --sets=imagewoof --imagewoof=FOLDER
    python benchmarks/study_label_errors.py --sets=pets_frozen,imagewoof_frozen,cifar100_frozen
        --weights=mobilenet_v2.safetensors --pets=FOLDER --imagewoof=FOLDER --cifar100=DATA_DIR

A share of the training labels is replaced by another class, drawn evenly, by a file of corrections
(`data.corrections`). Four folds are trained as ``--mode=label_errors`` trains them, and every
ranking gets the same out-of-sample probabilities and neighbours. A ranking is judged by the
precision among as many pictures as were flipped, and by its average precision.

The sets that end in `_frozen` train no network: four logistic regressions on the features of a
given MobileNetV2 take the place of the four folds, and its features are where neighbours are looked
for.

A fold is a run of its own, and goes on where it was interrupted; a finished cell (set, share, seed)
keeps its evidence as an .npz file and is not repeated. After each cell the tables of
`docs/results/label_errors.md` are made again.
"""

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cone_jax import runtime

runtime.set_up()

import numpy as np
import study_report
from ml_collections import ConfigDict
from rich.console import Console
from sklearn.metrics import average_precision_score

from cone_jax import storage, training
from cone_jax.analysis import label_errors
from cone_jax.analysis.label_errors import Evidence
from cone_jax.analysis.tables import markdown_table
from cone_jax.config import run_config
from cone_jax.data import datasets
from cone_jax.data.sources import corrections, splits
from cone_jax.data.transforms import recipes
from cone_jax.evaluation.probes import extraction
from cone_jax.training import plan, pretrained
from cone_jax.training.run import Run
from cone_jax.training.run_directory import RunDirectory

FOLDS = 4
SHARES = (0.1, 0.2)
SEEDS = (0, 1, 2)
STRENGTH = 30.0  # of logistic regression on features of unit length: the inverse of its decay


def digits(arguments: argparse.Namespace) -> ConfigDict:
    return _recipe("digits.py", {"epochs": 20})


def cifar100(arguments: argparse.Namespace) -> ConfigDict:
    """The recipe's 3,000 training images, 20 superclasses."""
    return _recipe("cifar_small.py:coarse", {"data.path": arguments.cifar100})


def imagewoof(arguments: argparse.Namespace) -> ConfigDict:
    """The network and the pictures that `--config.budget` begins with on a CPU."""
    pictures = {"data.image_size": 64, "data.test_transforms": recipes.evaluation(73, 64)}
    pictures["data.train_transforms"] = recipes.standard(64, scale=(0.2, 1.0))
    network = {"model.name": "resnet18", "model.options.width": 32}
    settings = {"data.path": arguments.imagewoof, "epochs": 40}
    return _recipe("folder.py", {**pictures, **network, **settings})


def pets_frozen(arguments: argparse.Namespace) -> ConfigDict:
    return _frozen(arguments, {"data.path": arguments.pets})


def imagewoof_frozen(arguments: argparse.Namespace) -> ConfigDict:
    return _frozen(arguments, {"data.path": arguments.imagewoof})


def cifar100_frozen(arguments: argparse.Namespace) -> ConfigDict:
    """The first 2,000 training images, 20 superclasses, enlarged."""
    settings = {"data.path": arguments.cifar100, "data.train_split": "train[:2000]"}
    settings |= {"data.source": "tfds", "data.name": "cifar100", "data.label_key": "coarse_label"}
    return _frozen(arguments, settings)


def _frozen(arguments: argparse.Namespace, settings: dict[str, Any]) -> ConfigDict:
    """Pictures of 96 pixels, and the weights that see them."""
    pictures = {"data.image_size": 96, "data.test_transforms": recipes.evaluation(110, 96)}
    pictures["data.train_transforms"] = recipes.standard(96)
    start = {"init_from": arguments.weights, "derive": (), "bank.size": 64}
    return _recipe("finetune.py", {**pictures, **start, **settings})


FROZEN = {
    "pets_frozen": pets_frozen,
    "imagewoof_frozen": imagewoof_frozen,
    "cifar100_frozen": cifar100_frozen,
}
SETS = {"digits": digits, "cifar100": cifar100, "imagewoof": imagewoof} | FROZEN


def _recipe(recipe: str, settings: dict[str, Any]) -> ConfigDict:
    name, _, options = recipe.partition(":")
    config = run_config.load_recipe(str(ROOT / "configs" / name), options)
    with config.unlocked():
        config.update_from_flattened_dict(settings)
    return config


def flip(config: ConfigDict, share: float, seed: int, file: Path) -> np.ndarray:
    """Writes corrections that flip a share of the training labels; which records they are."""
    source = datasets.open_split(config.data, config.data.train_split)
    labels, names = splits.labels_of(source), source.class_names
    rng = np.random.default_rng((seed, round(1000 * share)))
    chosen = rng.choice(len(labels), round(share * len(labels)), replace=False)
    wrong = (labels[chosen] + rng.integers(1, len(names), len(chosen))) % len(names)
    with storage.replacing(file) as unfinished, unfinished.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(corrections.HEADER)
        for record, label in zip(chosen.tolist(), wrong.tolist(), strict=True):
            path = corrections.name_of(source, record, config.data.path)
            writer.writerow([path, names[labels[record]], names[label]])
    flipped = np.zeros(len(labels), bool)
    flipped[chosen] = True
    return flipped


def gather(config: ConfigDict, place: Path) -> Evidence:
    """Trains what folds have not been trained, and asks each about its own pictures."""
    parts = []
    settled = plan.resolve(config, place, print)  # as that of the run whose labels are doubted
    for fold, one in enumerate(label_errors.fold_configs(settled, FOLDS)):
        directory = place / f"fold-{fold}"
        training.train(one, directory, Console(quiet=True))
        opened = RunDirectory.open(directory)
        step = opened.resolve()
        run = opened.run.stage_at(step)
        variables = opened.variables(run, step)
        parts.append(label_errors.examine(run, variables, report=print))
    source = datasets.open_split(config.data, config.data.train_split)
    return label_errors.combine(parts, source, config.data.holdout_seed)


def features(config: ConfigDict, file: Path) -> np.ndarray:
    """[n, d], of unit length: what the given weights make of the training pictures; kept."""
    if not file.exists():
        run = Run.open(config)
        state, _ = pretrained.load(run, report=print)
        stream = run.eval_stream(run.dataset.train, print)
        found = extraction.extract(run.learner, state.variables, stream).features
        with storage.replacing(file) as unfinished, unfinished.open("wb") as opened:
            np.save(opened, found / np.linalg.norm(found, axis=-1, keepdims=True))
    return np.load(file, allow_pickle=False)


def gather_frozen(config: ConfigDict, rows: np.ndarray) -> Evidence:
    """The evidence of logistic regressions on features, each fold judged by the other three."""
    from sklearn.linear_model import LogisticRegression

    source = datasets.open_split(config.data, config.data.train_split)
    labels = splits.labels_of(source)
    fold = splits.folds_of(source, FOLDS, config.data.holdout_seed)
    parts = []
    for number in range(FOLDS):
        inside, outside = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        classifier = LogisticRegression(C=STRENGTH, max_iter=300, tol=1e-3)
        classifier.fit(rows[outside], labels[outside])
        similarity = rows[inside] @ rows[outside].T
        near = np.argsort(-similarity, axis=-1)[:, : label_errors.NEIGHBOURS]
        parts.append(
            Evidence(
                records=inside,
                labels=labels[inside],
                probabilities=classifier.predict_proba(rows[inside]),
                neighbours=outside[near],
                neighbour_labels=labels[outside[near]],
                similarity=np.take_along_axis(similarity, near, axis=-1),
            )
        )
    return Evidence(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def rankings(evidence: Evidence) -> Iterator[tuple[str, np.ndarray]]:
    """Scores by name, the most suspicious highest."""
    from cleanlab import filter, rank

    labels, probabilities = evidence.labels, evidence.probabilities
    found = label_errors.suspect(evidence, evidence)
    yield "ours: classifier and neighbours", found.scores
    yield "ours: neighbours alone", 1.0 - found.neighbours
    for method in ("self_confidence", "normalized_margin"):
        quality = rank.get_label_quality_scores(labels, probabilities, method=method)
        yield f"cleanlab: {method}", -quality
        # Confident learning: what it prunes comes first, in the order of the same quality.
        pruned = filter.find_label_issues(labels, probabilities, n_jobs=1)
        yield f"cleanlab: confident learning, {method}", -quality + 10.0 * pruned


def judge(scores: np.ndarray, flipped: np.ndarray) -> dict[str, float]:
    first = np.argsort(-scores, kind="stable")[: flipped.sum()]
    return {
        "precision": float(flipped[first].mean()),
        "average_precision": float(average_precision_score(flipped, scores)),
    }


def measure(
    name: str, make: Callable[..., ConfigDict], share: float, seed: int, arguments: Any
) -> None:
    place = Path(arguments.output).absolute() / f"{name}-{share}-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    config = make(arguments)
    with config.unlocked():
        config.seed = seed
    flipped = flip(config, share, seed, place / "flipped.csv")
    with config.unlocked():
        config.data.corrections = str(place / "flipped.csv")
    kept = place / "evidence.npz"
    if not kept.exists():
        if name in FROZEN:
            kept_features = Path(arguments.output).absolute() / f"{name}.npy"
            evidence = gather_frozen(config, features(make(arguments), kept_features))
        else:
            evidence = gather(config, place)
        with storage.replacing(kept) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, **evidence._asdict())
    with np.load(kept, allow_pickle=False) as arrays:
        evidence = Evidence(*(arrays[field] for field in Evidence._fields))
    found = {method: judge(s, flipped[evidence.records]) for method, s in rankings(evidence)}
    accuracy = float(np.mean(evidence.probabilities.argmax(-1) == evidence.labels))
    record = {"set": name, "share": share, "seed": seed, "agreement": accuracy, "rankings": found}
    with storage.replacing(place / "record.json") as unfinished:
        unfinished.write_text(json.dumps(record, indent=1) + "\n")
    print(name, share, seed, json.dumps(found), flush=True)


def write_document(output: Path, document: Path) -> None:
    """One table per set, over all seeds there are."""
    records = [json.loads(file.read_text()) for file in sorted(output.glob("*/record.json"))]
    parts = []
    for name in SETS:
        for share in SHARES:
            cells = [r for r in records if (r["set"], r["share"]) == (name, share)]
            if not cells:
                continue
            seeds = ", ".join(str(cell["seed"]) for cell in cells)
            rows = []
            for method in cells[0]["rankings"]:
                columns = []
                for metric in ("precision", "average_precision"):
                    values = [100 * cell["rankings"][method][metric] for cell in cells]
                    columns.append(f"{np.mean(values):.1f} ± {np.std(values):.1f}")
                rows.append([method, *columns])
            header = ["ranking", "precision at the number flipped, %", "average precision, %"]
            parts.append(f"### {name}, {share:.0%} flipped, seeds {seeds}")
            parts.append(markdown_table(header, rows))
    if parts:
        study_report.write(document, "\n\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="digits", help=", ".join(SETS))
    parser.add_argument("--shares", default=",".join(map(str, SHARES)))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--cifar100", default="", help="TFDS data_dir with cifar100")
    parser.add_argument("--imagewoof", default="", help="the folder with train/ and val/")
    parser.add_argument("--pets", default="", help="the folder with train/ and test/")
    parser.add_argument("--weights", default="", help="of a MobileNetV2, for the frozen sets")
    parser.add_argument("--output", default="runs/study_label_errors")
    parser.add_argument("--report", default=str(ROOT / "docs/results/label_errors.md"))
    arguments = parser.parse_args()
    os.environ.setdefault("TQDM_DISABLE", "1")
    for name in arguments.sets.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            for share in map(float, arguments.shares.split(",")):
                measure(name, SETS[name], share, seed, arguments)
                write_document(Path(arguments.output), Path(arguments.report))


if __name__ == "__main__":
    main()
