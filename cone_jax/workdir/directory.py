"""The directory of a run: its config, whether it may go on with another one, its classes."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import storage
from cone_jax.errors import UserError, closest
from cone_jax.settings import free_fields
from cone_jax.workdir.checkpoints import CHECKPOINTS_FOLDER

CONFIG_FILE = "config.json"
CLASSES_FILE = "classes.json"
ACCOUNT_FILE = "init_from.txt"


def claim(workdir: Path, config: ConfigDict) -> None:
    """Creates the directory and writes the config, or checks that it is the same run's.

    A run that has not reached its first checkpoint has nothing to lose: it may start again with
    another config.
    """
    path = workdir / CONFIG_FILE
    with unwritable_refused(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        if not (path.exists() and has_checkpoints(workdir)):
            with storage.replacing(path) as unfinished:
                unfinished.write_text(config.to_json_best_effort(indent=2, sort_keys=True) + "\n")
            return
    earlier, now = flatten(load_config(workdir)), flatten(config)
    # What a recipe leaves open was settled when the run began.
    settled = free_fields().union(config_lib.open_fields(config))
    for field in sorted(earlier.keys() | now.keys()):
        if field not in settled and earlier.get(field) != now.get(field):
            raise UserError(
                f"workdir ({workdir}) holds a run with {field} = {earlier.get(field)!r}, but the "
                f"config says {now.get(field)!r}; choose another --workdir or the run's own config"
            )


@contextlib.contextmanager
def unwritable_refused(workdir: Path) -> Iterator[None]:
    """`UserError` where a directory cannot be made or written, or its bucket not reached."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        said = storage.refusal(workdir, error)
        # A full or read-only disk under a run that has got somewhere is not the user's mistake.
        if said is None or (storage.write_failure(error) and has_checkpoints(workdir)):
            raise
        raise UserError(
            f"workdir ({workdir}) cannot be written: {said}; choose another --workdir"
        ) from error


def has_checkpoints(workdir: Path) -> bool:
    """Whether there is a checkpoint to continue from, even a damaged one."""
    checkpoints = workdir / CHECKPOINTS_FOLDER
    return checkpoints.is_dir() and any(checkpoints.iterdir())


def keep_class_names(workdir: Path, class_names: Sequence[str]) -> None:
    """Writes the names of the classes, for use when the training data are gone."""
    with storage.replacing(workdir / CLASSES_FILE) as unfinished:
        listing = json.dumps(list(class_names), indent=2, ensure_ascii=False)
        unfinished.write_text(listing + "\n", encoding="utf-8")


def keep_account(workdir: Path, table: str) -> None:
    """Writes the account of the weights that a run started from."""
    with storage.replacing(workdir / ACCOUNT_FILE) as unfinished:
        unfinished.write_text(table + "\n", encoding="utf-8")


def class_names(workdir: Path) -> tuple[str, ...] | None:
    """The names of the classes, in the order of labels; None where the file is gone."""
    path = workdir / CLASSES_FILE
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; delete it, or write it again") from error
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise UserError(f"{path} must hold a list of names; delete it, or write it again")
    return tuple(names)


def load_config(workdir: Path | str) -> ConfigDict:
    """The config a run was started with."""
    path = storage.path(workdir, "workdir") / CONFIG_FILE
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(
            f"workdir ({workdir}) has no {CONFIG_FILE}; is it the directory of a run?"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: {error}; restore it, or choose another --workdir"
        ) from error
    if not isinstance(stored, dict):
        raise UserError(
            f"{path} cannot be read: it holds no config; restore it, or choose another --workdir"
        )
    config = config_lib.default()
    _leave_out_unused_methods(stored, config)
    _check_kinds(path, _tuples(stored), config)
    with config.ignore_type():
        config.update(_tuples(stored))
    return config.lock()


def _leave_out_unused_methods(stored: dict[str, Any], default: ConfigDict) -> None:
    """A method that is no longer installed does not matter to runs that did not use it."""
    sections = stored.get("objective")
    if isinstance(sections, dict):
        for name in sections.keys() - default.objective.keys() - {sections.get("name")}:
            del sections[name]


def _check_kinds(path: Path, stored: dict[str, Any], default: ConfigDict, prefix: str = "") -> None:
    """Refuses values that are not a number, text, list or section where the default is one."""
    for name, value in stored.items():
        if name not in default and prefix.startswith("objective."):
            nearest = closest(name, default.keys())
            raise UserError(f"{path}: {prefix}{name} is not a field; {nearest}")
        if name not in default or default[name] is None:  # None: an option without a value
            continue
        expected = default[name]
        if isinstance(expected, ConfigDict) and isinstance(value, dict):
            _check_kinds(path, value, expected, f"{prefix}{name}.")
        elif _kind(value) != _kind(expected):
            raise UserError(
                f"{path}: {prefix}{name} ({value!r}) must be a {_kind(expected)}; fix the file, "
                "or choose another --workdir"
            )


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false value"
    if isinstance(value, int | float):
        return "number"
    kinds = {str: "text", tuple: "list", dict: "section", ConfigDict: "section"}
    return kinds.get(type(value), "value")


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
