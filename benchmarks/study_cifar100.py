"""Who wins on CIFAR-100 when two CPU cores have to decide: methods, seeds, honest tuning.

    python benchmarks/study_cifar100.py --data=DATA_DIR [--output=runs/study_cifar100] [--jobs=2]
        [--parts=tune,final] [--regimes=fit,coarse,underfit,memorise] [--methods=CE,CoNe]

Trains `configs/cifar_small.py` with each method. First, hyper-parameters: every method gets the
same number of candidates, one run each, trained on the study's training images and scored on 10,000
training images that no run trains on; the test set is not touched. Then the best candidate of
each method with other seeds, scored on all 10,000 test images, at the last step. Methods of one
stage take the same number of steps on the same batches; SupCon's two stages together put as many
images through the network, forward and backward, as the others do.

Each run is a process of its own. A finished run gets a line in `docs/results/cifar100_small.jsonl`
and is not repeated; an interrupted one goes on: the study can be spread over many sittings. After
each run the tables and figures of `docs/results/cifar100_small.md` are made again from all lines
there are. Three regimes repeat the final runs of cross-entropy and CoNe: `coarse` with classes of
more variety, `underfit` where the network cannot fit its training set, `memorise` with the recipe's
own weight decay, with which it fits nearly all of it.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cone_jax import runtime

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
if ONE_THREAD not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
runtime.set_up()

import study_report
from rich.console import Console

from cone_jax import storage, training, workdir
from cone_jax.config import run_config
from cone_jax.errors import Interrupted, TrainingFailed
from cone_jax.sweeps import definition, runner
from cone_jax.sweeps.train_cell import RESULT_FILE

HELD_OUT = "train[40000:]"
TUNING_SEED = 100
FINAL_SEEDS = range(6)


class Method(NamedTuple):
    """A row of the table, and what is tried for it."""

    name: str
    options: str
    settings: Mapping[str, Any] = MappingProxyType({})  # of all its runs


# What every method is tried with, beside its own settings: the third with the recipe's rate.
CANDIDATES: tuple[dict[str, Any], ...] = (
    {"optimizer.learning_rate": 0.2},
    {"optimizer.learning_rate": 0.4},
    {"optimizer.weight_decay": 2e-3},
)
# Two views: 35 epochs are 70 of the others. The linear stage has no backward pass through the
# backbone, so 30 epochs are 10.
SAME_BUDGET = {"epochs": 35, "linear_stage.epochs": 30, "linear_stage.batch_size": 64}
# PaCo's own values for CIFAR-100.
PACO_CIFAR = {"objective.paco.alpha": 0.01, "objective.paco.temperature": 0.07}
# Where `configs/cifar_small.py` has the classifier of CoNe and PaCo.
ON_FEATURES = {"model.classifier_input": "features"}
METHODS = (
    Method("CE", "cross_entropy"),
    Method("CE + head", "cross_entropy,projection"),
    Method("CE + L_in", "no_dc"),
    Method("CE + L_out", "no_dc,sup_out"),
    Method("CE + L_dc", "no_contrast"),
    Method("CoNe", ""),
    Method("SupCon (two stages)", "supcon", SAME_BUDGET),
    Method("PaCo", "paco", PACO_CIFAR),
    Method("NNCLR + CE", "nnclr,with_ce", ON_FEATURES),
)


class Regime(NamedTuple):
    """Where methods are compared."""

    title: str
    options: str  # of the recipe
    methods: tuple[str, ...]
    candidates: tuple[int, ...] = (0, 1, 2)  # of which each method has the best


EVERYTHING = tuple(method.name for method in METHODS)
PAIR = ("CE", "CoNe")
REGIMES = {
    "fit": Regime("The network fits its training set", "", EVERYTHING),
    "coarse": Regime("The same with the 20 superclasses", "coarse", PAIR),
    "underfit": Regime("It cannot fit its training set", "underfit", PAIR),
    "memorise": Regime("It fits nearly all of it", "", PAIR, candidates=(0, 1)),
}


class Task(NamedTuple):
    """One run."""

    part: str  # tune or final
    regime: str
    method: Method
    candidate: int
    seed: int
    config: Any

    @property
    def labels(self) -> dict[str, Any]:
        """What its record says of it."""
        return {
            "part": self.part,
            "regime": self.regime,
            "method": self.method.name,
            "candidate": self.candidate,
            "settings": CANDIDATES[self.candidate],
            "seed": self.seed,
        }

    @property
    def directory(self) -> str:
        name = f"{self.part}-{self.regime}-{self.method.name}-{self.candidate}-{self.seed}"
        return re.sub(r"[^\w-]+", "_", name)


class Study:
    """What has been measured, and the way to measure more."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.data, self.jobs = arguments.data, arguments.jobs
        self.output, self.document = Path(arguments.output), Path(arguments.report)
        self.records_file = self.document.with_suffix(".jsonl")

    def task(self, part: str, regime: str, method: Method, candidate: int, seed: int) -> Task:
        options = [name for name in (REGIMES[regime].options, method.options) if name]
        config = run_config.load_recipe(str(ROOT / "configs/cifar_small.py"), ",".join(options))
        settings = {
            "data.path": self.data,
            "seed": seed,
            "data.test_split": HELD_OUT if part == "tune" else "test",
            **method.settings,
            **CANDIDATES[candidate],
        }
        return Task(
            part, regime, method, candidate, seed, definition.apply_settings(config, settings)
        )

    def measured(self, tasks: Sequence[Task]) -> dict[str, list[study_report.Record]]:
        """The records of those tasks that have one, by method."""
        records = study_report.read(self.records_file)
        found: dict[str, list[study_report.Record]] = {}
        for task in tasks:
            record = records.get(study_report.fingerprint(task.config))
            if record is not None:
                found.setdefault(task.method.name, []).append(record)
        return found

    def tuning(self, methods: Sequence[Method]) -> list[Task]:
        candidates = range(len(CANDIDATES))
        return [self.task("tune", "fit", m, c, TUNING_SEED) for c in candidates for m in methods]

    def final(self, regime: str, methods: Sequence[Method]) -> list[Task]:
        """Runs of each method's best candidate, for the methods that are tuned to the end."""
        tried, allowed = self.measured(self.tuning(methods)), REGIMES[regime].candidates
        ready = [
            (method, study_report.best_candidate(tried[method.name], allowed))
            for method in methods
            if len(tried.get(method.name, ())) == len(CANDIDATES)
            and method.name in REGIMES[regime].methods
        ]
        return [
            self.task("final", regime, method, candidate, seed)
            for seed in FINAL_SEEDS
            for method, candidate in ready
        ]

    def carry_out(self, tasks: Sequence[Task]) -> None:
        """Trains what has no record, and writes one for each as it ends."""
        known = study_report.read(self.records_file)
        tasks = [task for task in tasks if study_report.fingerprint(task.config) not in known]
        runs = {}
        for task in tasks:
            place = self.output / task.directory
            cell = definition.Cell(task.directory)
            runs[place] = task, runner.CellRun(cell, None, place, task.config)

        def record_finished() -> None:
            for place in [place for place in runs if (place / RESULT_FILE).exists()]:
                task = runs.pop(place)[0]
                result = json.loads((place / RESULT_FILE).read_text())
                study_report.append(self.records_file, task.labels, task.config, result)
            self.write_document()

        command = (sys.executable, str(Path(__file__).resolve()), "--cell")
        failures = runner.carry_out(
            [run for _, run in runs.values()],
            jobs=self.jobs,
            say=lambda line: print(line, flush=True),
            finished=record_finished,
            command=command,
        )
        record_finished()  # those that had ended before they could be recorded
        if failures:
            sys.exit("\n".join(failures))

    def write_document(self) -> None:
        """Makes tables and figure from what there is."""
        parts = []
        for regime in REGIMES:
            results = self.measured(self.final(regime, METHODS))
            if study_report.BASELINE not in results:
                continue
            figure = self.document.with_name(f"{self.document.stem}_{regime}.svg")
            study_report.draw(results, figure)
            parts += [
                f"### {REGIMES[regime].title}",
                study_report.results_table(results),
                f"![every seed of every method]({figure.name})",
            ]
        tried = self.measured(self.tuning(METHODS))
        if tried:
            parts += ["### What was tried for each", study_report.tuning_table(tried)]
        if parts:
            study_report.write(self.document, "\n\n".join(parts))


def train_one(directory: Path) -> int:
    """The child process: trains one run and leaves its result."""
    try:
        metrics = training.train(workdir.load_config(directory), directory, Console(width=120))
    except Interrupted as stopped:
        print(stopped)
        return 1
    # Of this sitting, when the run was interrupted.
    result = {**metrics, "cpu_seconds": round(time.process_time())}
    with storage.replacing(directory / RESULT_FILE) as unfinished:
        unfinished.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", help="TFDS data_dir with cifar100")
    parser.add_argument("--output", default="runs/study_cifar100", help="for runs and checkpoints")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--parts", default="tune,final")
    parser.add_argument("--regimes", default=",".join(REGIMES))
    parser.add_argument("--methods", default=",".join(method.name for method in METHODS))
    parser.add_argument("--report", default=str(ROOT / "docs/results/cifar100_small.md"))
    arguments = parser.parse_args()
    if arguments.cell:
        sys.exit(train_one(arguments.cell))
    if not arguments.data:
        parser.error("--data is needed")
    study = Study(arguments)
    methods = [method for method in METHODS if method.name in arguments.methods.split(",")]
    try:
        if "tune" in arguments.parts:
            study.carry_out(study.tuning(methods))
        if "final" in arguments.parts:
            for regime in arguments.regimes.split(","):
                study.carry_out(study.final(regime, methods))
    except (KeyboardInterrupt, TrainingFailed):
        sys.exit("stopped; the same command goes on")
    study.write_document()
    print(f"see {study.document}")


if __name__ == "__main__":
    main()
