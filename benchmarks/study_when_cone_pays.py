"""When does CoNe pay? Three small data sets, from scratch and fine-tuned, clean and noisy labels.

    python benchmarks/study_when_cone_pays.py --imagewoof=FOLDER --pets=FOLDER --cifar100=DATA_DIR
        --weights=mobilenet_v2.safetensors [--output=runs/study_when_cone_pays] [--jobs=2]

Cross-entropy (CE), CE with CoNe's projection head, and CoNe, five seeds each: top-1, loss and
calibration error on the test split, with the labels as they are and with 20 % of the training
labels flipped (by `data.corrections`). Twice: for the same number of epochs, and for the same time,
in which the epochs of CE and CE + head are multiplied by what the finished CoNe runs took beside
theirs, in CPU seconds; so equal time comes after equal epochs.

Each run is a process of its own; a finished run gets a line in `docs/results/when_cone_pays.jsonl`
and is not repeated, an interrupted one goes on. After each run the tables of
`docs/results/when_cone_pays.md` are made again.
"""

import argparse
import datetime
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import study_cifar100  # sets XLA up: one thread per run
import study_label_errors
import study_report

import cone_jax
from cone_jax.analysis.tables import markdown_table
from cone_jax.config import run_config
from cone_jax.errors import UserError
from cone_jax.sweeps import definition, runner
from cone_jax.sweeps.train_cell import RESULT_FILE

METHODS = {"CE": "cross_entropy", "CE + head": "cross_entropy,projection", "CoNe": ""}
SETS = {"imagewoof": "folder.py", "pets": "folder.py", "cifar100": "cifar_small.py"}
STARTS = ("scratch", "tuned")
NOISE = (0.0, 0.2)
METRICS = {"test/top1": 100.0, "test/loss": 1.0, "test/ece": 100.0}
EPOCHS = {"scratch": 60, "tuned": 20}
# Pictures of 96 pixels; nothing is left to the clock, so that all methods have the same.
FOLDER: dict[str, Any] = {
    "derive": (),
    "batch_size": 32,
    "bank.size": 256,
    "objective.cone.neighbours": 16,
    "ema.momentum": 0.99,
    "schedule.warmup_epochs": 3.0,
    "evaluation.every_epochs": 0.0,
    "checkpoint.every_epochs": 5.0,
}


def settings(name: str, start: str, method: str, arguments: Any) -> tuple[str, dict[str, Any]]:
    """The options of the recipe, and what differs from it."""
    path = getattr(arguments, name)
    if not path:
        raise UserError(f"--{name} is needed")
    found: dict[str, Any] = {"data.path": path}
    options = [METHODS[method]]
    if SETS[name] == "folder.py":
        options.insert(0, "small")
        found |= FOLDER | {"epochs": EPOCHS[start]}
    if start == "tuned":
        if not arguments.weights:
            raise UserError("--weights is needed to fine-tune")
        found |= {"model.name": "mobilenet_v2", "init_from": arguments.weights}
        found |= {"init_strict": False, "epochs": EPOCHS[start]}
        # As measured on 1,480 pets: a tenth of the rate from scratch and less.
        found |= {"optimizer.name": "sgd", "optimizer.weight_decay": 1e-4}
        found |= {"optimizer.learning_rate": 0.01, "optimizer.reference_batch": 0}
        if SETS[name] != "folder.py":
            found |= {"model.stem": "imagenet"}
    return ",".join(filter(None, options)), found


def task(key: tuple[str, str, float, str, int, str], stretch: float, arguments: Any) -> Any:
    """The run of a cell: its name and config."""
    name, start, noise, method, seed, equal = key
    options, changed = settings(name, start, method, arguments)
    config = run_config.load_recipe(str(ROOT / "configs" / SETS[name]), options)
    config = definition.apply_settings(config, {**changed, "seed": seed})
    if equal == "time":
        config = definition.apply_settings(config, {"epochs": round(config.epochs * stretch)})
    if arguments.steps:
        config = definition.apply_settings(config, {"steps": arguments.steps})
    directory = Path(arguments.output).absolute() / "-".join(map(str, key)).replace(" ", "_")
    if noise:
        directory.mkdir(parents=True, exist_ok=True)
        study_label_errors.flip(config, noise, seed, directory / "flipped.csv")
        corrected = {"data.corrections": str(directory / "flipped.csv")}
        config = definition.apply_settings(config, corrected)
    return runner.CellRun(definition.Cell(directory.name), None, directory, config)


def stretches(records: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """By set, start and method: the CPU seconds of CoNe over its own, at equal epochs."""
    spent: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        if record["equal"] == "epochs":
            place = record["set"], record["start"], record["method"]
            spent.setdefault(place, []).append(record["cpu_seconds"])
    return {
        place: statistics.mean(spent[(*place[:2], "CoNe")]) / statistics.mean(seconds)
        for place, seconds in spent.items()
        if (*place[:2], "CoNe") in spent
    }


def carry_out(equal: str, arguments: Any) -> None:
    file = Path(arguments.report).with_suffix(".jsonl")
    known = study_report.read(file)
    ratios = stretches(list(known.values()))
    chosen = (arguments.sets, arguments.starts, arguments.noise, arguments.methods, arguments.seeds)
    pending = {}
    for name, start, noise, method, seed in itertools.product(*(c.split(",") for c in chosen)):
        if equal == "time" and (method == "CoNe" or (name, start, method) not in ratios):
            continue  # CoNe's own are those of equal epochs
        key = (name, start, float(noise), method, int(seed), equal)
        run = task(key, ratios.get((name, start, method), 1.0), arguments)
        if study_report.fingerprint(run.config) not in known:
            pending[run.directory] = key, run

    def finished() -> None:
        for place in [place for place in pending if (place / RESULT_FILE).exists()]:
            key, run = pending.pop(place)
            result = json.loads((place / RESULT_FILE).read_text())
            names = ("set", "start", "noise", "method", "seed", "equal")
            line = dict(zip(names, key, strict=True))
            line |= {metric: result[metric] for metric in (*METRICS, "cpu_seconds")}
            line |= {"fingerprint": study_report.fingerprint(run.config)}
            line |= {"date": datetime.date.today().isoformat(), "version": cone_jax.__version__}
            with file.open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        write_document(Path(arguments.report))

    failures = runner.carry_out(
        [run for _, run in pending.values()],
        jobs=arguments.jobs,
        say=lambda line: print(line, flush=True),
        finished=finished,
        command=(sys.executable, str(Path(__file__).resolve()), "--cell"),
    )
    finished()
    if failures:
        sys.exit("\n".join(failures))


def write_document(document: Path) -> None:
    """One table per set, start and noise; equal time beside equal epochs."""
    records = list(study_report.read(document.with_suffix(".jsonl")).values())
    parts = []
    for name, start, noise in itertools.product(SETS, STARTS, NOISE):
        rows = []
        for method, equal in itertools.product(METHODS, ("epochs", "time")):
            asked = {"set": name, "start": start, "noise": noise, "method": method, "equal": equal}
            own = [r for r in records if all(r[field] == value for field, value in asked.items())]
            if own:
                cells = [_cell([scale * r[m] for r in own]) for m, scale in METRICS.items()]
                rows.append((f"{method}, equal {equal}", *cells, str(len(own))))
        if rows:
            parts.append(f"### {name}, {start}, {noise:.0%} of the labels flipped")
            header = ("method", "top-1, %", "loss", "ECE, %", "seeds")
            parts.append(markdown_table(header, rows))
    if parts:
        study_report.write(document, "\n\n".join(parts))


def _cell(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", type=Path, help=argparse.SUPPRESS)
    for name in SETS:
        parser.add_argument(f"--{name}", default="", help="where it is")
    parser.add_argument("--weights", default="", help="of a MobileNetV2, to fine-tune")
    parser.add_argument("--output", default="runs/study_when_cone_pays")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--starts", default=",".join(STARTS))
    parser.add_argument("--noise", default=",".join(map(str, NOISE)))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--steps", type=int, default=0, help="of every run, for a first try")
    parser.add_argument("--report", default=str(ROOT / "docs/results/when_cone_pays.md"))
    arguments = parser.parse_args()
    if arguments.cell:
        sys.exit(study_cifar100.train_one(arguments.cell))
    try:
        for equal in ("epochs", "time"):
            carry_out(equal, arguments)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
