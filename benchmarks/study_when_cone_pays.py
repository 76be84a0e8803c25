"""When does CoNe pay? Three small data sets, from scratch and fine-tuned, clean and noisy labels.

    python benchmarks/study_when_cone_pays.py --imagewoof=FOLDER --pets=FOLDER --cifar100=DATA_DIR
        --weights=mobilenet_v2.safetensors [--output=runs/study_when_cone_pays] [--jobs=2]

Cross-entropy (CE), CE with CoNe's projection head, and CoNe, five seeds each: top-1, loss and
calibration error on the test split, with the labels as they are and with 20 % of the training
labels flipped (by `data.corrections`). Twice: for the same number of epochs, and for the same time,
in which the epochs of CE and CE + head are multiplied by what the finished CoNe runs took beside
theirs, in CPU seconds; so equal time comes after equal epochs.

From scratch, photographs get the network that `--config.budget` began with on a CPU when the study
was begun, a ResNet-18 of half the width. What a recipe derives from the number of images it derives
here, too.

Each run is a process of its own; a finished run gets a line in `docs/results/when_cone_pays.jsonl`
and is not repeated, an interrupted one goes on. After each run the tables and the figure of
`docs/results/when_cone_pays.md` are made again.
"""

import argparse
import datetime
import itertools
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import study_cifar100  # sets XLA up: one thread per run
import study_label_errors
import study_report
from scipy import special

import cone_jax
from cone_jax import workdir
from cone_jax.analysis import figure_style
from cone_jax.analysis.tables import markdown_table
from cone_jax.config import run_config
from cone_jax.data.transforms import recipes
from cone_jax.errors import UserError
from cone_jax.sweeps import definition, runner
from cone_jax.sweeps.train_cell import RESULT_FILE

Record = dict[str, Any]

METHODS = {"CE": "cross_entropy", "CE + head": "cross_entropy,projection", "CoNe": ""}
BASELINES = ("CE", "CE + head")
SETS = ("imagewoof", "pets", "cifar100")
STARTS = ("scratch", "tuned")
NOISE = (0.0, 0.2)
METRICS = {"test/top1": 100.0, "test/loss": 1.0, "test/ece": 100.0}
SIZE = 64  # pixels, where a network for photographs is trained
EPOCHS = {"scratch": 40, "tuned": 10}
# A run writes its one checkpoint at the end, and is tested then.
ONCE: dict[str, Any] = {"evaluation.every_epochs": 0.0, "checkpoint.every_epochs": 1e6}
PICTURES: dict[str, Any] = {
    "data.image_size": SIZE,
    "data.train_transforms": recipes.standard(SIZE, scale=(0.2, 1.0)),
    "data.test_transforms": recipes.evaluation(round(SIZE * 8 / 7), SIZE),
    "data.threads": 1,
}
DATA: dict[str, dict[str, Any]] = {
    "imagewoof": {},
    # 15 % of each breed, about 15 pictures.
    "pets": {"data.train_split": "train[held_out]", "data.holdout": 0.15},
    # 20 superclasses, about 50 pictures each.
    "cifar100": {
        "data.source": "tfds",
        "data.name": "cifar100",
        "data.label_key": "coarse_label",
        "data.train_split": "train[:1000]",
        "data.test_split": "test[:4000]",
    },
}


class Key(NamedTuple):
    """What a run is."""

    set: str
    start: str
    noise: float
    method: str
    seed: int
    equal: str  # epochs or time


def recipe(key: Key) -> tuple[str, dict[str, Any]]:
    """The recipe with its options, and what differs from it."""
    options = [METHODS[key.method]]
    changed: dict[str, Any] = {**ONCE, **DATA[key.set]}
    if key.start == "tuned":
        file = "finetune.py"
        changed |= PICTURES
    elif key.set == "cifar100":
        file = "cifar_small.py"
        options.insert(0, "coarse")
        changed |= {"evaluation.evaluators": ("classification",), "bank.size": 960, "log_every": 15}
    else:
        file = "folder.py"
        changed |= {**PICTURES, "model.name": "resnet18", "model.options.width": 32}
    return f"{file}:{','.join(filter(None, options))}", changed | {"epochs": EPOCHS[key.start]}


def task(key: Key, stretch: float, arguments: argparse.Namespace) -> tuple[str, runner.CellRun]:
    """A run, and the fingerprint of all but where things lie and how far time is stretched."""
    name, changed = recipe(key)
    file, _, options = name.partition(":")
    config = run_config.load_recipe(str(ROOT / "configs" / file), options)
    config = definition.apply_settings(config, {**changed, "seed": key.seed})
    mark = study_report.fingerprint(config)
    places = {"data.path": getattr(arguments, key.set)}
    if key.start == "tuned":
        places["init_from"] = arguments.weights
    missing = [field for field, value in places.items() if not value]
    if missing:
        wanted = "weights" if missing == ["init_from"] else key.set
        raise UserError(f"--{wanted} is needed")
    if arguments.steps:
        places["steps"] = arguments.steps
    directory = Path(arguments.output).absolute() / "-".join(map(str, key)).replace(" ", "_")
    if key.equal == "time":
        places["epochs"] = max(round(config.epochs * stretch), 1)
        if (directory / workdir.CONFIG_FILE).exists():  # begun: it stays as long
            places["epochs"] = workdir.load_config(directory).epochs
    if key.noise:
        directory.mkdir(parents=True, exist_ok=True)
        found = definition.apply_settings(config, places)
        study_label_errors.flip(found, key.noise, key.seed, directory / "flipped.csv")
        places["data.corrections"] = str(directory / "flipped.csv")
    config = definition.apply_settings(config, places)
    return mark, runner.CellRun(definition.Cell(directory.name), None, directory, config)


def read(document: Path) -> dict[tuple[Key, str], Record]:
    """What has been run, by key and fingerprint."""
    file = document.with_suffix(".jsonl")
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
    return {(key_of(line), line["fingerprint"]): line for line in lines}


def key_of(record: Record) -> Key:
    return Key(*(record[field] for field in Key._fields))


def stretches(records: list[Record]) -> dict[tuple[str, str, str], float]:
    """By set, start and method: the CPU seconds of CoNe over its own, at equal epochs."""
    spent: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        if record["equal"] == "epochs" and not record["noise"]:
            place = record["set"], record["start"], record["method"]
            spent.setdefault(place, []).append(record["cpu_seconds"])
    return {
        place: statistics.mean(spent[(*place[:2], "CoNe")]) / statistics.mean(seconds)
        for place, seconds in spent.items()
        if (*place[:2], "CoNe") in spent
    }


def keys(equal: str, noise: float, arguments: argparse.Namespace) -> Iterator[Key]:
    """The runs asked for, one seed of everything before the next."""
    chosen = (arguments.seeds, arguments.sets, arguments.starts, arguments.methods)
    for seed, name, start, method in itertools.product(*(c.split(",") for c in chosen)):
        if equal == "time" and method not in BASELINES:
            continue  # CoNe's equal time is its equal epochs
        if method == "CE + head" and (start == "tuned" or name == "cifar100"):
            continue  # the classifier sees the features: the head would not be trained
        yield Key(name, start, noise, method, int(seed), equal)


def carry_out(equal: str, noise: float, arguments: argparse.Namespace) -> None:
    document = Path(arguments.report)
    known = read(document)
    ratios = stretches(list(known.values()))
    pending: dict[Path, tuple[Key, str, runner.CellRun]] = {}
    for key in keys(equal, noise, arguments):
        place = (key.set, key.start, key.method)
        if equal == "time" and place not in ratios:
            continue
        mark, run = task(key, ratios.get(place, 1.0), arguments)
        if (key, mark) not in known:
            pending[run.directory] = key, mark, run

    def finished() -> None:
        for place in [place for place in pending if (place / RESULT_FILE).exists()]:
            key, mark, run = pending.pop(place)
            result = json.loads((place / RESULT_FILE).read_text())
            line: Record = {**key._asdict(), "fingerprint": mark, "epochs": run.config.epochs}
            line |= {name: result[name] for name in (*METRICS, "cpu_seconds")}
            line |= {"date": datetime.date.today().isoformat(), "version": cone_jax.__version__}
            with document.with_suffix(".jsonl").open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        write_document(document)

    failures = runner.carry_out(
        [run for _, _, run in pending.values()],
        jobs=arguments.jobs,
        say=lambda line: print(line, flush=True),
        finished=finished,
        command=(sys.executable, str(Path(__file__).resolve()), "--cell"),
    )
    finished()
    if failures:
        sys.exit("\n".join(failures))


def write_document(document: Path) -> None:
    """The verdicts, their figure, and one table per set, start and noise."""
    records = list(read(document).values())
    parts = [verdict_table(records)]
    for name, start, noise in itertools.product(SETS, STARTS, NOISE):
        rows = []
        for method, equal in itertools.product(METHODS, ("epochs", "time")):
            own = _of(records, set=name, start=start, noise=noise, method=method, equal=equal)
            if own:
                cells = [_cell([scale * r[m] for r in own]) for m, scale in METRICS.items()]
                length = f"{own[0]['epochs']:g}"
                rows.append((f"{method}, equal {equal}", length, *cells, str(len(own))))
        if rows:
            parts.append(f"### {_title(name, start, noise)}")
            header = ("method", "epochs", "top-1, %", "loss", "ECE, %", "seeds")
            parts.append(markdown_table(header, rows))
    if any(parts):
        study_report.write(document, "\n\n".join(filter(None, parts)))


def differences(records: list[Record], baseline: str, equal: str, **where: Any) -> list[float]:
    """CoNe's top-1 minus the baseline's, in points, of every seed that both have."""
    cone, other = (
        {r["seed"]: 100 * r["test/top1"] for r in _of(records, **where, method=method, equal=kind)}
        for method, kind in (("CoNe", "epochs"), (baseline, equal))
    )
    return [cone[seed] - other[seed] for seed in sorted(cone.keys() & other.keys())]


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval by Student's t.

    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)
    (2.0, 2.484)
    """
    error = statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), float(special.stdtrit(len(values) - 1, 0.975)) * error


COMPARISONS = tuple(itertools.product(BASELINES, ("epochs", "time")))


def verdicts(records: list[Record]) -> Iterator[tuple[str, list[tuple[float, float] | None]]]:
    """For each set, start and noise the mean and half interval of every comparison."""
    for name, start, noise in itertools.product(SETS, STARTS, NOISE):
        found = []
        for baseline, equal in COMPARISONS:
            where = {"set": name, "start": start, "noise": noise}
            values = differences(records, baseline, equal, **where)
            found.append(interval(values) if len(values) > 1 else None)
        if any(found):
            yield _title(name, start, noise), found


def verdict_table(records: list[Record]) -> str:
    """Bold where the interval leaves zero out."""
    rows = []
    for title, found in verdicts(records):
        cells = []
        for pair in found:
            text = "" if pair is None else f"{pair[0]:+.1f} ± {pair[1]:.1f}"
            cells.append(f"**{text}**" if pair and abs(pair[0]) > pair[1] else text)
        rows.append((title, *cells))
    header = ("", *(f"against {baseline}, equal {equal}" for baseline, equal in COMPARISONS))
    return markdown_table(header, rows) if rows else ""


def draw(records: list[Record], path: Path) -> None:
    """CoNe minus each baseline at equal time, with its interval, one row per situation."""
    from matplotlib.figure import Figure

    found = list(verdicts(records))
    with figure_style.styled():
        figure = Figure(figsize=(7, 1.1 + 0.42 * len(found)), layout="constrained")
        axes = figure.add_subplot()
        for index, baseline in enumerate(BASELINES):
            column = COMPARISONS.index((baseline, "time"))
            points = [(row, p[column]) for row, (_, p) in enumerate(found) if p[column]]
            axes.errorbar(
                [mean for _, (mean, _) in points],
                [row + 0.16 * (2 * index - 1) for row, _ in points],
                xerr=[half for _, (_, half) in points],
                fmt=figure_style.MARKERS[index],
                color=figure_style.SERIES[index],
                capsize=2.5,
                label=f"against {baseline}",
            )
        axes.axvline(0.0, color=figure_style.MUTED, linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(found)), [title for title, _ in found])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("CoNe's top-1 minus the other's at equal time, points, 95 % interval")
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})


def _of(records: list[Record], **where: Any) -> list[Record]:
    return [r for r in records if all(r[field] == value for field, value in where.items())]


def _title(name: str, start: str, noise: float) -> str:
    how = {"scratch": "from scratch", "tuned": "fine-tuned"}[start]
    return f"{name}, {how}" + (f", {noise:.0%} of the labels flipped" if noise else "")


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
        for noise in map(float, arguments.noise.split(",")):
            for equal in ("epochs", "time"):
                carry_out(equal, noise, arguments)
    except UserError as error:
        parser.error(str(error))
    document = Path(arguments.report)
    draw(list(read(document).values()), document.with_suffix(".svg"))


if __name__ == "__main__":
    main()
