"""Which way of meeting a long tail pays: CIFAR-100 with imbalance 50, a small ResNet, six seeds.

    python benchmarks/study_long_tail.py --data=DATA_DIR [--output=runs/study_long_tail] [--jobs=2]

Trains `configs/cifar_small.py:lt50` with cross-entropy, cross-entropy with logit adjustment, PaCo,
CoNe, and CoNe with logit adjustment: the same images, batches and number of steps. Reported are
top-1 and the mean accuracy of classes with many, medium and few training images.

Each run is a process of its own; a finished run gets a line in `docs/results/long_tail.jsonl` and
is not repeated, an interrupted one goes on. After each run `docs/results/long_tail.md` is made
again.
"""

import argparse
import datetime
import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import study_cifar100  # sets XLA up: one thread per run
import study_report

import cone_jax
from cone_jax.analysis.tables import markdown_table
from cone_jax.config import run_config
from cone_jax.sweeps import definition, runner
from cone_jax.sweeps.train_cell import RESULT_FILE

METHODS = {
    "CE": "cross_entropy",
    "CE + logit adjustment": "cross_entropy,logit_adjustment",
    "PaCo": "paco",
    "CoNe": "",
    "CoNe + logit adjustment": "logit_adjustment",
}
METRICS = ("test/top1", "long_tail/many", "long_tail/medium", "long_tail/few")


def tasks(arguments: argparse.Namespace) -> dict[str, tuple[str, int, runner.CellRun]]:
    """Method, seed and run, by fingerprint."""
    found = {}
    for seed in map(int, arguments.seeds.split(",")):
        for name in arguments.methods.split(","):
            options = ",".join(filter(None, ("lt50", METHODS[name])))
            config = run_config.load_recipe(str(ROOT / "configs/cifar_small.py"), options)
            settings = {"data.path": arguments.data, "seed": seed}
            if arguments.steps:
                settings["steps"] = arguments.steps
            config = definition.apply_settings(config, settings)
            place = Path(arguments.output) / f"{name.replace(' ', '_')}-{seed}"
            run = runner.CellRun(definition.Cell(f"{name} {seed}"), None, place, config)
            found[study_report.fingerprint(config)] = name, seed, run
    return found


def record(arguments: argparse.Namespace, pending: dict) -> None:
    """Writes a line for each run that has ended, and the tables."""
    file = Path(arguments.report).with_suffix(".jsonl")
    for key, (name, seed, run) in list(pending.items()):
        if not (run.directory / RESULT_FILE).exists():
            continue
        result = json.loads((run.directory / RESULT_FILE).read_text())
        line = {"method": name, "seed": seed, "fingerprint": key}
        line |= {metric: result[metric] for metric in METRICS}
        line |= {"date": datetime.date.today().isoformat(), "version": cone_jax.__version__}
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        del pending[key]
    write_document(Path(arguments.report))


def write_document(document: Path) -> None:
    lines = list(study_report.read(document.with_suffix(".jsonl")).values())
    rows = []
    for name in METHODS:
        own = [line for line in lines if line["method"] == name]
        if own:
            cells = [_cell([100 * line[metric] for line in own]) for metric in METRICS]
            rows.append((name, *cells, str(len(own))))
    if rows:
        header = ("method", "top-1, %", "many", "medium", "few", "seeds")
        study_report.write(document, markdown_table(header, rows))


def _cell(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", help="TFDS data_dir with cifar100")
    parser.add_argument("--output", default="runs/study_long_tail")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2,3,4,5")
    parser.add_argument("--steps", type=int, default=0, help="of every run, for a first try")
    parser.add_argument("--report", default=str(ROOT / "docs/results/long_tail.md"))
    arguments = parser.parse_args()
    if arguments.cell:
        sys.exit(study_cifar100.train_one(arguments.cell))
    if not arguments.data:
        parser.error("--data is needed")
    known = study_report.read(Path(arguments.report).with_suffix(".jsonl"))
    pending = {key: task for key, task in tasks(arguments).items() if key not in known}
    failures = runner.carry_out(
        [run for _, _, run in pending.values()],
        jobs=arguments.jobs,
        say=lambda line: print(line, flush=True),
        finished=lambda: record(arguments, pending),
        command=(sys.executable, str(Path(__file__).resolve()), "--cell"),
    )
    record(arguments, pending)
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
