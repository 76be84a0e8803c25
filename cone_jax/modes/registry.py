"""Modes by name, in the order in which ``--help`` lists them."""

from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from cone_jax.command_line import Arguments
from cone_jax.modes import evaluate, train


class Mode(NamedTuple):
    """A function of the parsed arguments, and its line in ``--help``."""

    run: Callable[[Arguments, Console], None]
    help: str


MODES = {
    "train": Mode(train.train, "train a recipe, or go on with an interrupted run (default)"),
    "evaluate": Mode(evaluate.evaluate, "score a checkpoint of --workdir on its test split"),
}
