"""Who wins on CIFAR-100 when two CPU cores have to decide: methods, seeds, honest tuning.

    python benchmarks/study_cifar100.py --data=DATA_DIR [--output=runs/study] [--jobs=2]
        [--regimes=fit,underfit] [--part=tune,final] [--report=docs/results/cifar100_small.md]

Trains `configs/cifar_small.py` with each method. First, hyper-parameters: every method gets the
same number of candidates, one run each, trained on the study's training images and scored on 10,000
training images that no run trains on; the test set is not touched. Then the best candidate of
each method with other seeds, scored on all 10,000 test images, at the last step. Methods of one
stage take the same number of steps on the same batches; SupCon's two stages together put as many
images through the network, forward and backward, as the others do.

Each run is a process of its own with one thread. A finished run is not repeated and an interrupted
one goes on, so the study can be stopped and started at will. `--regimes=underfit` repeats the
final runs of two methods where the network cannot fit its training set.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

HELD_OUT = "train[40000:]"
TUNING_SEED = 100
SEEDS = {"fit": (0, 1, 2, 3, 4), "underfit": (0, 1, 2)}
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Method(NamedTuple):
    """A row of the table, and what was tried for it."""

    name: str
    options: str
    candidates: tuple[dict[str, Any], ...]


def rates(*others: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Two learning rates with the method's own settings, then two other settings."""
    own = tuple({"optimizer.learning_rate": rate} for rate in (0.1, 0.2))
    return (*own, *others)


SUPCON = {"linear_stage.steps": 300}
METHODS = (
    Method(
        "CE",
        "cross_entropy",
        rates({"optimizer.weight_decay": 1e-3}, {"optimizer.weight_decay": 2e-3}),
    ),
    Method(
        "CE + head",
        "no_contrast,no_dc",
        rates({"optimizer.weight_decay": 1e-3}, {"optimizer.weight_decay": 2e-3}),
    ),
    Method(
        "CE + L_in",
        "no_dc",
        rates({"optimizer.weight_decay": 1e-3}, {"objective.cone.sup_weight": 1.4}),
    ),
    Method(
        "CE + L_out",
        "joint_supcon",
        rates({"optimizer.weight_decay": 1e-3}, {"objective.joint_supcon.temperature": 0.2}),
    ),
    Method(
        "CoNe",
        "",
        rates({"optimizer.weight_decay": 1e-3}, {"objective.cone.dc_weight": 1.0}),
    ),
    Method(
        "SupCon (two stages)",
        "supcon",
        rates({"optimizer.learning_rate": 0.4}, {"optimizer.weight_decay": 1e-3}),
    ),
    Method(
        "PaCo",
        "paco",
        rates({"optimizer.weight_decay": 1e-3}, {"objective.paco.alpha": 0.05}),
    ),
    Method(
        "NNCLR + CE",
        "nnclr,with_ce",
        rates({"optimizer.weight_decay": 1e-3}, {"objective.nnclr.temperature": 0.2}),
    ),
)
IN_UNDERFIT = ("CE", "CoNe")


class Task(NamedTuple):
    """One run."""

    method: Method
    candidate: int
    seed: int
    directory: Path
    config: Any


def make_task(
    arguments: argparse.Namespace, regime: str, method: Method, candidate: int, seed: int, part: str
) -> Task:
    from cone_jax import recipe_file
    from cone_jax.sweeps.definition import apply_settings

    options = [name for name in (regime if regime != "fit" else "", method.options) if name]
    config = recipe_file.load_recipe(str(ROOT / "configs/cifar_small.py"), ",".join(options))
    settings = {"data.path": arguments.data, "seed": seed, **method.candidates[candidate]}
    if part == "tune":
        settings["data.test_split"] = HELD_OUT
    label = f"{part}-{regime}-{method.name}-{candidate}-{seed}".replace(" ", "_")
    directory = Path(arguments.output) / label
    return Task(method, candidate, seed, directory, apply_settings(config, settings))


def carry_out(tasks: Sequence[Task], jobs: int) -> dict[Path, dict[str, float]]:
    """Trains what is not finished; the final metrics of each."""
    from cone_jax.sweeps import runner
    from cone_jax.sweeps.definition import Cell
    from cone_jax.sweeps.train_cell import RESULT_FILE

    runs = [
        runner.CellRun(Cell(task.method.name), task.seed, task.directory, task.config)
        for task in tasks
    ]
    command = (sys.executable, str(Path(__file__).resolve()), "--cell")
    failures = runner.carry_out(
        runs,
        jobs=jobs,
        say=lambda line: print(line, flush=True),
        finished=lambda: None,
        command=command,
    )
    if failures:
        sys.exit("\n".join(failures))
    return {run.directory: json.loads((run.directory / RESULT_FILE).read_text()) for run in runs}


def train_one(directory: Path) -> int:
    """The child process: trains one run and leaves its result."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
    from cone_jax import runtime

    runtime.use_fast_cpu_convolutions()
    runtime.use_compilation_cache()

    from rich.console import Console

    from cone_jax import atomic_file, training, workdir
    from cone_jax.errors import Interrupted
    from cone_jax.sweeps.train_cell import RESULT_FILE

    try:
        metrics = training.train(workdir.load_config(directory), directory, Console(width=120))
    except Interrupted as stopped:
        print(stopped)
        return 1
    with atomic_file.replacing(directory / RESULT_FILE) as unfinished:
        unfinished.write_text(json.dumps(metrics, indent=2) + "\n")
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", help="TFDS data_dir with cifar100")
    parser.add_argument("--output", default="runs/study_cifar100")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--regimes", default="fit,underfit")
    parser.add_argument("--part", default="tune,final")
    parser.add_argument("--report", default="")
    arguments = parser.parse_args()
    if arguments.cell:
        sys.exit(train_one(arguments.cell))
    if not arguments.data:
        parser.error("--data is needed")
    chosen = tune(arguments)
    if "final" not in arguments.part:
        return
    outcomes = {}
    for regime in arguments.regimes.split(","):
        methods = [m for m in METHODS if regime == "fit" or m.name in IN_UNDERFIT]
        tasks = [
            make_task(arguments, regime, method, chosen[method.name], seed, "final")
            for seed in SEEDS[regime]
            for method in methods
        ]
        results = carry_out(tasks, arguments.jobs)
        outcomes[regime] = {
            method.name: [results[t.directory] for t in tasks if t.method is method]
            for method in methods
        }
    print(table(outcomes))
    if arguments.report:
        Path(arguments.report).write_text(table(outcomes))


def tune(arguments: argparse.Namespace) -> dict[str, int]:
    """The best candidate of each method on images held out of training."""
    tasks = [
        make_task(arguments, "fit", method, candidate, TUNING_SEED, "tune")
        for candidate in range(len(METHODS[0].candidates))
        for method in METHODS
    ]
    results = carry_out(tasks, arguments.jobs)
    chosen = {}
    for method in METHODS:
        scores = [results[task.directory]["test/top1"] for task in tasks if task.method is method]
        chosen[method.name] = max(range(len(scores)), key=scores.__getitem__)
        listing = ", ".join(f"{score:.2%}" for score in scores)
        print(f"{method.name}: {listing}; candidate {chosen[method.name]} is used", flush=True)
    return chosen


def table(outcomes: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Mean, deviation and every seed, and the distance to CE in standard errors of the mean
    difference, seed by seed."""
    lines = []
    for regime, rows in outcomes.items():
        lines += [
            f"## {regime}",
            "",
            "| method | test top-1, % | seeds | minus CE | train top-1, % |",
        ]
        lines.append("|---|---|---|---|---|")
        base = [100 * run["test/top1"] for run in rows["CE"]]
        for name, runs in rows.items():
            scores = [100 * run["test/top1"] for run in runs]
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            gains = [score - of_ce for score, of_ce in zip(scores, base, strict=True)]
            error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
            fitted = [100 * run["train/top1"] for run in runs if "train/top1" in run]
            listing = ", ".join(f"{score:.2f}" for score in scores)
            gain = "" if name == "CE" else f"{statistics.mean(gains):+.2f} ± {error:.2f}"
            train = f"{statistics.mean(fitted):.1f}" if fitted else ""
            mean = statistics.mean(scores)
            lines.append(f"| {name} | {mean:.2f} ± {spread:.2f} | {listing} | {gain} | {train} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
