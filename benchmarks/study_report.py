"""Records of finished study runs, and the tables and the figure that are made of them.

A record is one line of JSON: what was run, its fingerprint, and what came out. The file is kept
with the project, so a study goes on with what was measured in earlier sittings.
"""

import datetime
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

import cone_jax
from cone_jax import storage
from cone_jax.analysis import figure_style
from cone_jax.analysis.tables import markdown_table
from cone_jax.settings import free_fields
from cone_jax.workdir import flatten

Record = dict[str, Any]
BEGIN, END = "<!-- made by the study: begin -->", "<!-- made by the study: end -->"
BASELINE = "CE"


def fingerprint(config: ConfigDict) -> str:
    """The same for two configs if and only if they compute the same."""
    fields = {name: value for name, value in flatten(config).items() if name not in free_fields()}
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(path: Path) -> dict[str, Record]:
    """All records by fingerprint."""
    if not path.exists():
        return {}
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {record["fingerprint"]: record for record in records}


def append(path: Path, labels: Mapping[str, Any], config: ConfigDict, result: Record) -> None:
    """Adds a finished run."""
    wanted = ("test/top1", "test/loss", "fit/top1", "cpu_seconds")
    record = {
        **labels,
        "fingerprint": fingerprint(config),
        **{name: result[name] for name in wanted if name in result},
        "date": datetime.date.today().isoformat(),
        "versions": f"cone_jax {cone_jax.__version__}, jax {jax.__version__}",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def best_candidate(records: Sequence[Record], allowed: Sequence[int] | None = None) -> int:
    """The candidate with the highest accuracy, of all or of those allowed; the first of equals."""
    considered = [r for r in records if allowed is None or r["candidate"] in allowed]
    return min(considered, key=lambda r: (-r["test/top1"], r["candidate"]))["candidate"]


def gain(scores: Mapping[int, float], base: Mapping[int, float]) -> tuple[float, float]:
    """The mean difference over the seeds that both have, and its standard error.

    >>> gain({0: 3.0, 1: 5.0}, {0: 2.0, 1: 2.0})
    (2.0, 1.0)
    """
    differences = [scores[seed] - base[seed] for seed in sorted(scores.keys() & base.keys())]
    return statistics.mean(differences), _standard_error(differences)


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def by_seed(records: Sequence[Record], metric: str = "test/top1") -> dict[int, float]:
    """The metric of each seed, accuracies in per cent."""
    factor = 100.0 if metric.endswith("top1") else 1.0
    return {r["seed"]: factor * r[metric] for r in sorted(records, key=lambda r: r["seed"])}


def tuning_table(tuning: Mapping[str, Sequence[Record]]) -> str:
    """What was tried for each method, with its accuracy on the held-out images."""
    rows = []
    for method, records in tuning.items():
        chosen = best_candidate(records)
        for record in sorted(records, key=lambda r: r["candidate"]):
            settings = ", ".join(f"`{k}={v}`" for k, v in record["settings"].items())
            mark = "used" if record["candidate"] == chosen else ""
            rows.append((method, settings, f"{100 * record['test/top1']:.2f}", mark))
    return markdown_table(("method", "settings", "held-out top-1, %", ""), rows)


def results_table(final: Mapping[str, Sequence[Record]]) -> str:
    """Mean, deviation and every seed, and the distance to the baseline, seed by seed."""
    base = by_seed(final[BASELINE])
    rows = []
    for method, records in final.items():
        scores = by_seed(records)
        values = list(scores.values())
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        mean_gain, error = gain(scores, base)
        rows.append(
            (
                method,
                f"{statistics.mean(values):.2f}{spread}",
                ", ".join(f"{value:.2f}" for value in values),
                "" if method == BASELINE else f"{mean_gain:+z.2f} ± {error:.2f}",
                f"{statistics.mean(by_seed(records, 'test/loss').values()):.2f}",
                f"{statistics.mean(by_seed(records, 'fit/top1').values()):.1f}",
            )
        )
    head = (
        "method",
        "test top-1, %",
        "each seed",
        f"minus {BASELINE}",
        "test loss",
        "training images",
    )
    return markdown_table(head, rows)


def draw(final: Mapping[str, Sequence[Record]], path: Path) -> None:
    """One row a method: every seed a dot, the mean a bar, the baseline's mean a line."""
    from matplotlib.figure import Figure

    with figure_style.styled():
        figure = Figure(figsize=(7, 0.6 + 0.36 * len(final)), layout="constrained")
        axes = figure.add_subplot()
        for row, records in enumerate(final.values()):
            values = list(by_seed(records).values())
            colour = figure_style.SERIES[0 if row else -1]
            axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.65, markersize=5)
            axes.plot([statistics.mean(values)] * 2, [row - 0.3, row + 0.3], color=colour)
        base = statistics.mean(by_seed(final[BASELINE]).values())
        axes.axvline(base, color=figure_style.MUTED, linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(final)), list(final))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("test top-1, %: each seed a dot, their mean a bar")
        figure.savefig(path, metadata={"Date": None})


def write(document: Path, made: str) -> None:
    """Puts `made` between the two marks of the document, whose other words stay."""
    text = document.read_text() if document.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    with storage.replacing(document) as unfinished:
        unfinished.write_text(f"{before}{BEGIN}\n\n{made.strip()}\n\n{END}{after}")
