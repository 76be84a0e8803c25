"""What a transfer leaves behind, and the paper's table with it.

The workdir of a transfer holds `transfer.json`; several of them make one table.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cone_jax import storage
from cone_jax.analysis.paper_comparison import read_paper
from cone_jax.analysis.tables import markdown_table, one_decimal
from cone_jax.errors import UserError

RESULT_FILE = "transfer.json"
TABLE_FILE = "transfer.md"
# Columns of the paper's table, in its order.
COLUMNS = (
    "CIFAR10",
    "CIFAR100",
    "Food",
    "Cars",
    "DTD",
    "Pets",
    "Flowers",
    "Aircraft",
    "Caltech101",
)
MEAN = "Mean"

# method -> column -> percent
Rows = dict[str, dict[str, float]]


def write(directory: Path, record: dict[str, Any]) -> None:
    """Writes the results of a transfer."""
    with storage.replacing(directory / RESULT_FILE) as unfinished:
        unfinished.write_text(json.dumps(record, indent=2) + "\n")


def read(directory: Path) -> dict[str, Any]:
    """Reads what `write` has written."""
    path = directory / RESULT_FILE
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{directory} has no {RESULT_FILE}; is its transfer finished?") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def write_table(directory: Path, records: Sequence[dict[str, Any]]) -> Path:
    """Writes `transfer.md`."""
    path = directory / TABLE_FILE
    directory.mkdir(parents=True, exist_ok=True)
    with storage.replacing(path) as unfinished:
        unfinished.write_text(as_markdown(records), encoding="utf-8")
    return path


def as_markdown(records: Sequence[dict[str, Any]]) -> str:
    """The paper's table, and a row for each network fine-tuned here."""
    ours = _our_rows(records)
    others = dict.fromkeys(r["dataset"] for r in records if r["dataset"] not in COLUMNS)
    columns = [*COLUMNS, MEAN, *others]
    rows = [
        [name, *(one_decimal(scores.get(column)) for column in columns)]
        for name, scores in (*_paper_rows().items(), *ours.items())
    ]
    details = [
        [
            record["dataset"],
            record["init_from"],
            f"{record['chosen']['learning_rate']:g}",
            f"{record['chosen']['weight_decay']:g}",
            f"{100 * record['chosen']['validation']:.2f}",
            f"{100 * record['test']['top1']:.2f}",
            f"{100 * record['test']['mean_per_class']:.2f}",
            f"{record['grid']['finished']} of {record['grid']['runs']}",
        ]
        for record in records
    ]
    header = ["set", "from", "lr", "wd x lr", "validation", "top-1", "mean per class", "grid"]
    return "\n".join(
        [
            "# Transfer",
            "",
            "Test accuracy, %: top-1, for Pets, Flowers, Aircraft and Caltech101 the mean per "
            "class. Named methods: ResNet-50 pre-trained on ImageNet, as arXiv 2308.10761 reports "
            "them (all but CoNe quoted there from others). The mean is over the paper's nine sets.",
            "",
            markdown_table(["method", *columns], rows),
            "",
            "What was chosen on validation, and both metrics of the test:",
            "",
            markdown_table(header, details),
            "",
        ]
    )


def _our_rows(records: Sequence[dict[str, Any]]) -> Rows:
    rows: Rows = {}
    for record in records:
        name = f"here: {record['network']}, {record['init_from']}"
        row = rows.setdefault(name, {})
        if record["dataset"] in row:
            raise UserError(f"--workdirs has {record['dataset']} twice for {record['init_from']}")
        row[record["dataset"]] = 100 * record["test"][record["metric"]]
    for row in rows.values():
        if all(column in row for column in COLUMNS):
            row[MEAN] = float(np.mean([row[column] for column in COLUMNS]))
    return rows


def _paper_rows() -> Rows:
    rows: Rows = {}
    for number in read_paper():
        if number.table == "transfer":
            column = number.dataset.removeprefix("transfer to ")
            place = MEAN if column == "transfer" else column
            rows.setdefault(number.method, {})[place] = float(number.value)
    return rows
