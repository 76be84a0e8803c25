"""The directory of a run: its config, and whether it may go on with another one."""

import json
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cone_jax import atomic_file, checkpointing
from cone_jax import config as config_lib
from cone_jax.errors import UserError

CONFIG_FILE = "config.json"

# Fields that change how a run is carried out or watched, but not what it computes.
FREE_FIELDS = (
    "data.path",
    "data.threads",
    "data.prefetch",
    "data.workers",
    "checkpoint.keep",
    "wandb_project",
)


def claim(workdir: Path, config: ConfigDict) -> None:
    """Creates the directory and writes the config, or checks that it is the same run's.

    A run that has not reached its first checkpoint has nothing to lose: it may start again with
    another config.
    """
    path = workdir / CONFIG_FILE
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        checkpoints = workdir / checkpointing.DIRECTORY
        if not (path.exists() and checkpoints.is_dir() and any(checkpoints.iterdir())):
            with atomic_file.replacing(path) as unfinished:
                unfinished.write_text(config.to_json_best_effort(indent=2, sort_keys=True) + "\n")
            return
    except OSError as error:
        raise UserError(f"workdir ({workdir}) cannot be written: {error.strerror}") from error
    earlier, now = flatten(load_config(workdir)), flatten(config)
    for field in sorted(earlier.keys() | now.keys()):
        if field not in FREE_FIELDS and earlier.get(field) != now.get(field):
            raise UserError(
                f"workdir ({workdir}) holds a run with {field} = {earlier.get(field)!r}, but the "
                f"config says {now.get(field)!r}; choose another --workdir or the run's own config"
            )


def load_config(workdir: Path | str) -> ConfigDict:
    """The config a run was started with."""
    path = Path(workdir) / CONFIG_FILE
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(
            f"workdir ({workdir}) has no {CONFIG_FILE}; is it the directory of a run?"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    config = config_lib.default()
    with config.ignore_type():
        config.update(_tuples(stored))
    return config.lock()


def flatten(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    """The fields of a config by their full names, such as ``bank.size``."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _tuples(value: Any) -> Any:
    """JSON has no tuples; configs have no lists."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return value
