"""SimCLR's protocol as sweeps: a grid compared on validation, then one run that is tested.

The section ``transfer`` of the config has the grid. In every run the weight decay is the grid's,
divided by the learning rate, and BatchNorm statistics follow the steps of an epoch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cone_jax.data import datasets
from cone_jax.errors import UserError
from cone_jax.sweeps.definition import Cell, Sweep
from cone_jax.sweeps.runner import CellRun, result
from cone_jax.workdir.metrics import BAD_BATCHES_FILE


class Choice(NamedTuple):
    """The cell of the grid that is best on validation."""

    learning_rate: float
    weight_decay: float  # of the grid, before the division
    validation: float  # its score, a fraction


def check(config: ConfigDict) -> None:
    """Refuses a config without a grid, or without something to fine-tune."""
    for field in ("learning_rates", "weight_decays", "train_split", "validation_split"):
        if not config.transfer[field]:
            raise UserError(
                f"transfer.{field} is empty; start from --config=configs/transfer.py, or set it"
            )
    if not config.init_from:
        raise UserError("init_from is empty; give the run, export or weights to fine-tune")


def grid(config: ConfigDict, recipe: str) -> Sweep:
    """Every learning rate with every weight decay, compared on validation. Opens the data."""
    transfer = config.transfer
    momentum = _bn_momentum(config, transfer.train_split)
    splits = {
        "data.train_split": transfer.train_split,
        "data.test_split": transfer.validation_split,
    }
    cells = tuple(
        Cell(
            row=f"{rate:g}",
            column=f"{decay:g}",
            settings={**_settings(rate, decay), **splits, **momentum},
        )
        for rate in transfer.learning_rates
        for decay in transfer.weight_decays
    )
    return Sweep(
        title=f"Fine-tuning on {target_name(config)}: validation",
        base=recipe,
        cells=cells,
        row_name="learning rate",
        column_name="weight decay x learning rate",
        metric=f"test/{transfer.metric}",
        unit=f"{transfer.metric.replace('_', ' ')} on {transfer.validation_split}, %",
    )


def final(config: ConfigDict, recipe: str, choice: Choice) -> Sweep:
    """The chosen settings on all training images, in a directory named after them.

    Opens the data.
    """
    settings = _settings(choice.learning_rate, choice.weight_decay)
    momentum = _bn_momentum(config, config.data.train_split)
    return Sweep(
        title=f"Fine-tuning on {target_name(config)}: test",
        base=recipe,
        cells=(
            Cell(
                row="final",
                column=f"{choice.learning_rate:g}_{choice.weight_decay:g}",
                settings={**settings, **momentum},
            ),
        ),
        row_name="run",
        metric=f"test/{config.transfer.metric}",
    )


def choose(config: ConfigDict, runs: Sequence[CellRun]) -> Choice:
    """The best of the finished runs of a grid, the first of equals."""
    transfer = config.transfer
    pairs = [(r, d) for r in transfer.learning_rates for d in transfer.weight_decays]
    scored = [
        Choice(*pair, metrics[f"test/{transfer.metric}"])
        for pair, run in zip(pairs, runs, strict=True)
        if (metrics := result(run)) is not None
    ]
    if not scored:
        raise UserError(
            f"transfer.learning_rates ({', '.join(map(str, transfer.learning_rates))}): every run "
            "of the grid diverged; use lower ones"
        )
    return max(scored, key=lambda choice: choice.validation)


def diverged(run: CellRun) -> bool:
    """Whether a run has ended because its loss was not finite: a result too, if no good one."""
    stops = run.config.nonfinite.policy == "stop"
    return stops and result(run) is None and (run.directory / BAD_BATCHES_FILE).exists()


def target_name(config: ConfigDict) -> str:
    """The name of the data set."""
    return config.transfer.name or config.data.name or config.data.path.rstrip("/").split("/")[-1]


def _settings(rate: float, decay: float) -> dict[str, Any]:
    return {
        "optimizer.learning_rate": float(rate),
        "optimizer.weight_decay": decay / rate,
        # A run does not depend on the grid it is part of: that may grow.
        "transfer.learning_rates": (),
        "transfer.weight_decays": (),
    }


def _bn_momentum(config: ConfigDict, split: str) -> dict[str, float]:
    """``max(1 - 10 / steps per epoch, 0.9)``, unless the user has set another."""
    if config.model.options.bn_momentum is not None:
        return {}
    images = len(datasets.open_split(config.data, split))
    return {"model.options.bn_momentum": max(1.0 - 10.0 * config.batch_size / images, 0.9)}
