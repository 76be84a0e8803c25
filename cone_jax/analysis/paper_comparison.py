"""Compares a run with the paper's numbers for its config.

    python -m cone_jax.analysis.paper_comparison runs/cifar100

A row of the paper (docs/results/paper.csv) matches when data set, method, network, augmentation
and epochs are the run's, and for CoNe also the hyper-parameters that the paper varies. What a
row leaves open matches anything. When no row matches, the nearest are shown with what differs,
and no comparison is made.
"""

import argparse
import csv
import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from cone_jax import workdir
from cone_jax.config import get_field
from cone_jax.errors import UserError
from cone_jax.workdir.metrics import METRICS_FILE, read_records

# A link to docs/results/paper.csv, so that the installed package has it too.
PAPER = Path(__file__).with_name("paper.csv")

DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet2012": "ImageNet"}
NETWORKS = {
    **{f"resnet{depth}": f"ResNet-{depth}" for depth in (18, 34, 50, 101, 152, 200)},
    "regnetx_400mf": "RegNetX-400MF",
    "mobilenet_v2": "MobileNetV2",
    "shufflenet_v2": "ShuffleNetV2-1.0x",
    "deit_tiny": "DeiT-Tiny",
}
METHODS = {
    "simclr": "SimCLR",
    "supcon": "SupCon",
    "supcon_bank": "SupCon (memory buffer)",
    "paco": "PaCo",
    "joint_supcon": "Cross-Entropy+L_sup_out",
    "l_softmax": "Max-Margin",
    "binary_cross_entropy": "Binary-Cross-Entropy",
}
# The names under which the tables list CoNe; the settings of a row say which variant it is.
CONE_NAMES = frozenset(
    {
        "CoNe",
        "CoNe (no L_dc)",
        "CE+Proj+L_sup_in",
        "CE+Proj+L_sup_out",
        "CE+Proj+L_sup_in+L_dc",
        "with contrastive view",
        "without contrastive view",
    }
)
# What a row of CoNe means where its `setting` is silent. Bank and neighbours depend on the data.
CONE_SETTINGS: dict[str, Any] = {
    "objective.cone.sup_weight": 0.7,
    "objective.cone.sup_temperature": 0.1,
    "objective.cone.dc_weight": 0.4,
    "objective.cone.dc_temperature": 0.07,
    "objective.cone.contrast": "sup_in",
    "objective.cone.contrastive_view": "none",
    "objective.cone.views": "query_key",
    "data.views": 1,
    "ema.momentum": 0.996,
}
CONE_SIZES = {
    "ImageNet": {"bank.size": 65536, "objective.cone.neighbours": 512},
    "CIFAR-10": {"bank.size": 4096, "objective.cone.neighbours": 32},
    "CIFAR-100": {"bank.size": 4096, "objective.cone.neighbours": 32},
}


# What differs: (the run's, the paper's).
Differences = dict[str, tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """One number of the paper. Empty strings stand for what the paper does not state."""

    table: str
    dataset: str
    method: str
    arch: str
    aug: str
    epochs: str
    metric: str
    value: str
    std: str
    origin: str
    setting: str  # fields of our config that tell the row from its neighbours

    @property
    def settings(self) -> dict[str, str]:
        pairs = (part.partition("=")[::2] for part in self.setting.split(";") if part)
        return dict(pairs)


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """The properties by which the paper's tables tell runs apart."""

    dataset: str
    methods: frozenset[str]  # all names under which tables list it
    arch: str
    aug: str
    epochs: str  # or "30000 steps"
    config: ConfigDict


def read_paper(path: Path = PAPER) -> list[PaperRow]:
    """All numbers of the paper."""
    try:
        with path.open(newline="") as file:
            return [PaperRow(**row) for row in csv.DictReader(file)]
    except FileNotFoundError:
        raise UserError(f"--paper ({path}) does not exist; it is part of the repository") from None


def facts(config: ConfigDict) -> RunFacts:
    """A config in the terms of the paper."""
    return RunFacts(
        dataset=dataset_name(config.data),
        methods=method_names(config),
        arch=NETWORKS.get(config.model.name, config.model.name),
        aug=augmentation(config),
        epochs=f"{config.steps} steps" if config.steps else f"{config.epochs:g}",
        config=config,
    )


def dataset_name(data: ConfigDict) -> str:
    """The paper's name for the data set, if it is the whole of it with its own labels."""
    name = re.split(r"[/:]", data.name)[0]
    if data.source != "tfds" or data.label_key != "label":
        return f"{data.source} {name}".strip()
    paper = DATASETS.get(name, name)
    # The labels of ImageNet's test part are not public: everyone tests on validation.
    whole = ("train", "validation" if paper == "ImageNet" else "test")
    parts = (data.train_split, data.test_split)
    return paper if parts == whole else f"{paper} ({parts[0]}, tested on {parts[1]})"


def method_names(config: ConfigDict) -> frozenset[str]:
    """The names that the paper's tables have for the config's method."""
    name = config.objective.name
    if name == "cone":
        return CONE_NAMES
    if name == "cross_entropy":
        if config.model.projection:
            return frozenset({"CE+Proj"})
        return frozenset({"Cross-Entropy", "CE", "baseline (CE)"})
    if name == "cmsf":
        return frozenset({"CMSF+CE" if config.objective.cmsf.ce_weight > 0 else "CMSF (no CE)"})
    if name == "nnclr":
        return frozenset({"NNCLR+CE" if config.objective.nnclr.ce_weight > 0 else "NNCLR"})
    return frozenset({METHODS.get(name, name)})


def augmentation(config: ConfigDict) -> str:
    """The paper's name for the augmentation, from the operations that it consists of."""
    used = {re.split(r"\W", spec, maxsplit=1)[0] for spec in config.data.train_transforms}
    mixup, cutmix = config.mixing.mixup_alpha > 0, config.mixing.cutmix_alpha > 0
    if mixup and cutmix and config.objective.name == "binary_cross_entropy":
        return "Timm A1" if config.epochs == 600 else "Timm"
    if mixup or cutmix:
        return "+".join(("MixUp",) * mixup + ("CutMix",) * cutmix)
    if {"auto_augment", "cutout"} <= used:
        return "PaCo"
    if "auto_augment" in used:
        return "AutoAug"
    if {"rand_augment", "grey"} <= used:
        return "StackedAug"
    if "rand_augment" in used:
        return "RandAug"
    if {"colour_jitter", "grey"} <= used:
        return "SimCLR"
    return "Standard" if used == {"random_resized_crop", "flip"} else "other"


def differences(run: RunFacts, row: PaperRow) -> Differences:
    """Where run and row disagree."""
    found: Differences = {}
    for name in ("dataset", "arch", "aug", "epochs"):
        stated, own = getattr(row, name), getattr(run, name)
        if stated and stated != own:
            found[name] = (own, stated)
    if row.method not in run.methods:
        found["method"] = (run.config.objective.name, row.method)
    elif row.method in CONE_NAMES:
        expected = CONE_SETTINGS | CONE_SIZES.get(row.dataset, {}) | row.settings
        for field, value in expected.items():
            own = get_field(run.config, field)
            if type(own)(value) != own:
                found[field] = (str(own), str(value))
    return found


def matching_rows(
    run: RunFacts, rows: Sequence[PaperRow], nearest: int = 5
) -> tuple[list[PaperRow], list[tuple[PaperRow, Differences]]]:
    """The rows for this config or, if there are none, the nearest ones of its data set."""
    accuracies = [row for row in rows if row.metric == "top1"]
    compared = [(row, differences(run, row)) for row in accuracies]
    exact = [row for row, different in compared if not different]
    near = [pair for pair in compared if "dataset" not in pair[1]]
    near.sort(key=lambda pair: ("method" in pair[1], len(pair[1])))
    return exact, [] if exact else near[:nearest]


def print_comparison(directory: Path, paper: Path, console: Console) -> None:
    """The run's accuracy beside the paper's."""
    run = facts(workdir.load_config(directory))
    path = directory / METRICS_FILE
    records = read_records(path) if path.exists() else []
    scores = [record["test/top1"] for record in records if "test/top1" in record]
    console.print(
        f"{directory}: {run.config.objective.name}, {run.dataset}, {run.arch}, {run.aug} "
        f"augmentation, epochs: {run.epochs}",
        soft_wrap=True,
    )
    if scores:
        console.print(f"test top-1: last {scores[-1]:.2%}, best {max(scores):.2%}")
    else:
        console.print("no evaluation yet")
    exact, near = matching_rows(run, read_paper(paper))
    if exact:
        console.print(_exact_table(exact, scores))
        console.print(
            "Matched by data set, method, network, augmentation and epochs; other settings, such "
            "as batch or learning rate, are not compared. The paper does not say whether it "
            "reports the last or the best epoch.",
            soft_wrap=True,
        )
        return
    console.print("The paper has no number for this config.", style="bold")
    if near:
        console.print(_near_table(near))
    else:
        console.print(f"It has none for this data set ({run.dataset}) at all.", soft_wrap=True)


def _exact_table(rows: Sequence[PaperRow], scores: Sequence[float]) -> Table:
    table = Table(box=box.SIMPLE)
    for column in ("table", "method", "paper, %", "this run, %", "difference", "origin"):
        right = column in ("paper, %", "this run, %", "difference")
        table.add_column(column, justify="right" if right else "left")
    for row in rows:
        value = f"{row.value} ± {row.std}" if row.std else row.value
        own = f"{100 * scores[-1]:.2f}" if scores else "-"
        difference = f"{100 * scores[-1] - float(row.value):+.2f}" if scores else "-"
        table.add_row(row.table, row.method, value, own, difference, row.origin)
    return table


def _near_table(near: Sequence[tuple[PaperRow, Differences]]) -> Table:
    table = Table(title="nearest rows, not comparable", box=box.SIMPLE, title_justify="left")
    for column in ("table", "method", "paper, %", "differs in (run | paper)"):
        table.add_column(column)
    for row, different in near:
        text = ", ".join(f"{name} ({own} | {stated})" for name, (own, stated) in different.items())
        table.add_row(row.table, row.method, row.value, text)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m cone_jax.analysis.paper_comparison",
        description="A run beside the numbers of the CoNe paper that belong to its config.",
    )
    parser.add_argument("run", type=Path, help="the directory of a run (--workdir of main.py)")
    parser.add_argument("--paper", type=Path, default=PAPER, help="the paper's numbers, as CSV")
    arguments = parser.parse_args(argv)
    try:
        print_comparison(arguments.run, arguments.paper, Console(highlight=False, markup=False))
    except UserError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {error}", markup=False)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
