"""The ways in which a command ends early, each with a message of one line.

Everything a user can get wrong (a flag, a config field, a data set, a file) is a `UserError`: the
field or file, the value found, and the cure. What goes wrong all the same is a `Failure`. `main.py`
prints the line and exits with code 2 or 1; library callers may catch either.
"""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """A mistake in the user's input, explained in one line."""


def closest(name: str, valid: Iterable[str]) -> str:
    """The cure for a misspelt name.

    >>> closest("resnet81", ["resnet18", "resnet34"])
    "did you mean 'resnet18'? Valid: resnet18, resnet34"
    """
    options = sorted(valid)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    listing = f"Valid: {', '.join(options)}"
    return f"did you mean {near[0]!r}? {listing}" if near else listing


def optional_module(name: str, extra: str) -> Any:
    """A module of a package that only `extra` of this distribution installs.

    >>> optional_module("no_such_package.part", "detection")
    Traceback (most recent call last):
        ...
    cone_jax.errors.UserError: no_such_package is not installed; pip install "cone-jax[detection]"
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UserError(f'{package} is not installed; pip install "cone-jax[{extra}]"') from error


class Interrupted(Exception):  # noqa: N818 - a request that was met, no error
    """The run was asked to stop, and has saved itself at `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}; everything is saved")
        self.step = step


class Failure(RuntimeError):  # noqa: N818 - names what happened
    """A failure that is not a mistake in the input; exit code 1."""


class TrainingFailed(Failure):
    """The run cannot go on."""


class StoreAway(Failure):
    """An object store has not answered within the time allowed."""
