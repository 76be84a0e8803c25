"""The numbers of a run in Weights & Biases too, where it is installed and asked for.

``--config.wandb_project=NAME`` turns it on. A run that is interrupted goes on under the same id.
"""

import importlib.util
import secrets
from collections.abc import Mapping
from pathlib import Path

from ml_collections import ConfigDict

from cone_jax import atomic_file
from cone_jax.errors import UserError

ID_FILE = "wandb_id.txt"


def check(config: ConfigDict) -> None:
    """Refuses a project where the package is not installed."""
    project = config.wandb_project
    if project and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"wandb_project ({project!r}) needs the package wandb: pip install wandb, or leave the "
            "field empty"
        )


class WandbMirror:
    """One run in Weights & Biases."""

    def __init__(self, config: ConfigDict, directory: Path) -> None:
        import wandb

        path = directory / ID_FILE
        if not path.exists():
            with atomic_file.replacing(path) as unfinished:
                unfinished.write_text(secrets.token_hex(8))
        self._run = wandb.init(
            project=config.wandb_project,
            name=directory.name,
            id=path.read_text(),
            resume="allow",
            dir=str(directory),
            config=config.to_dict(),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
