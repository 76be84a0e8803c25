"""Recipes and sweeps are Python files with one function; this calls it."""

import importlib.util
import inspect
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cone_jax.errors import UserError, closest


def load_recipe(path: str, options: str = "") -> ConfigDict:
    """What ``get_config(options)`` of the Python file `path` returns."""
    return call(path, options, flag="--config", function="get_config", folder="configs/")


def call(path: str, options: str, *, flag: str, function: str, folder: str) -> Any:
    """What a function of the file returns; it may take no argument when there are no options."""
    if not Path(path).is_file():
        there = [str(file) for file in Path(folder).glob("*.py")]
        cure = closest(path, there) if there else f"see {folder} of the project"
        raise UserError(f"{flag} ({path}) is not a file; {cure}")
    spec = importlib.util.spec_from_file_location(f"recipe_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{flag} ({path}) must be a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise UserError(f"{flag} ({path}) must define {function}(options)")
    get = getattr(module, function)
    if not options and not inspect.signature(get).parameters:
        return get()
    return get(options)
