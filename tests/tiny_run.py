"""A run that is small enough to compile and train in seconds, as flags and as a config."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

if TYPE_CHECKING:
    from cone_jax.training.run_directory import RunDirectory

Record = dict[str, float]

FLAGS = (
    "--config.batch_size=32",
    "--config.model.options.width=4",
    "--config.model.head_hidden=16",
    "--config.model.embedding_dim=8",
    "--config.bank.size=64",
    "--config.objective.cone.neighbours=8",
)


def config() -> ConfigDict:
    """CoNe on digits: eight steps, records of three, one evaluation and one checkpoint."""
    from cone_jax.config.run_config import load_recipe

    config = load_recipe("configs/digits.py").unlock()
    config.batch_size = 32
    config.steps = 8
    config.model.options.width = 4
    config.model.head_hidden = 16
    config.model.embedding_dim = 8
    config.bank.size = 72  # no multiple of the batch
    config.objective.cone.neighbours = 8
    config.objective.cone.start_epochs = 0
    config.log_every = 3
    config.evaluation.batch_size = 64
    config.evaluation.every_epochs = 0.0
    config.checkpoint.every_epochs = 0.0
    return config


def write_run(
    directory: Path,
    records: Sequence[Record],
    timing: Sequence[Record] = (),
    config: ConfigDict | None = None,
) -> "RunDirectory":
    """A directory with these records, and neither data nor checkpoints."""
    from cone_jax import config as config_lib
    from cone_jax import workdir
    from cone_jax.training.run_directory import RunDirectory
    from cone_jax.workdir.metrics import METRICS_FILE, TIMING_FILE

    workdir.claim(directory, config or config_lib.default())
    for name, lines in ((METRICS_FILE, records), (TIMING_FILE, timing)):
        (directory / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunDirectory.open(directory)
