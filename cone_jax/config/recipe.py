"""Recipes and sweeps are Python files with one function; this finds the file and calls it.

A recipe is named by its file (``my/recipe.py``), or by the file's name alone (``digits``). A name
alone means ``configs/NAME.py`` or ``NAME.py`` in the current directory before the recipe of the
package. The package's recipes also go by the file they are in the project, ``configs/digits.py``,
wherever the command is given.
"""

import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cone_jax.errors import UserError, closest

# In the project a link to its folder of that name, in an installed package a copy.
FOLDER = "configs"
PACKAGED = Path(__file__).parent.parent / "recipes"


def load_recipe(path: str, options: str = "") -> ConfigDict:
    """What ``get_config(options)`` of a recipe returns; `path` is its file or its name.

    >>> load_recipe("digits", "cross_entropy").objective.name
    'cross_entropy'
    """
    return call(path, options, flag="--config", function="get_config")


def call(path: str, options: str, *, flag: str, function: str, folder: str = "") -> Any:
    """What a function of the file returns; it may take no argument when there are no options.

    `folder` is the part of the folder of recipes that the file is looked for in.
    """
    file = find(path, folder)
    if file is None:
        raise UserError(f"{flag} ({path}) is not a file; {_cure(path, folder)}")
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{flag} ({file}) must be a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise UserError(f"{flag} ({file}) must define {function}(options)")
    get = getattr(module, function)
    if not options and not inspect.signature(get).parameters:
        return get()
    return get(options)


def find(path: str, folder: str = "") -> Path | None:
    """The file that `path` means, or None.

    >>> find("digits").name, find("configs/sweeps/momentum.py").name, find("digit")
    ('digits.py', 'momentum.py', None)
    """
    return next((file for file in _candidates(path, folder) if file.is_file()), None)


def _candidates(path: str, folder: str) -> Iterator[Path]:
    """What `path` may mean: the first of them that exists."""
    if _is_name(path):
        for place in (Path(FOLDER, folder), Path(), PACKAGED / folder):
            yield place / f"{path}.py"
    yield Path(path).expanduser()
    if Path(path).parts[:1] == (FOLDER,):
        yield PACKAGED.joinpath(*Path(path).parts[1:])


def _is_name(path: str) -> bool:
    return re.fullmatch(r"\w+", path) is not None


def _cure(path: str, folder: str) -> str:
    """The nearest of the recipes that there are, as the user has written theirs."""
    places = (Path(FOLDER, folder), PACKAGED / folder)
    names = {file.stem for place in places for file in place.glob("*.py")}
    if _is_name(path):
        return closest(path, names)
    return closest(path, [str(Path(FOLDER, folder, f"{name}.py")) for name in names])
