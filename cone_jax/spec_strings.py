"""Names and calls that a config writes as strings, and what they stand for.

A call is written as in Python: `flip`, `random_crop(32, padding=4)`, `knn(k=20)`. It is read as a
Python expression but never evaluated: a name, and literals in brackets. What stands in the brackets
is checked by functions of this file. Each raises a ValueError that names the argument, the value
found and what would be right; `build` adds the call it stood in and makes a `UserError` of it.

What a name stands for is in a `Registry`: the package's own, and what others add. Code adds to a
registry for its own process::

    @OBJECTIVES.register("focal")
    class Focal: ...

An installed distribution adds to it for every process, also for those that sweeps and data loaders
start, by an entry point in the registry's group::

    [project.entry-points."cone_jax.objectives"]
    focal = "my_parts:Focal"

Entry points are read when a registry is first asked, and imported when their name is looked up. So
are the package's own things, which a registry may list by their address: ``package.module:Name``.
"""

import ast
import difflib
import functools
import inspect
import math
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from importlib import metadata
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple, TypeVar

from cone_jax.errors import UserError

T = TypeVar("T")


class CallSpec(NamedTuple):
    """What a string asks for."""

    name: str
    positional: list[Any]
    named: dict[str, Any]


def read(text: str) -> CallSpec:
    """The call that `text` describes; `ValueError` where it is not one. Lists become tuples.

    >>> read("random_crop(32, padding=[4, 4])")
    CallSpec(name='random_crop', positional=[32], named={'padding': (4, 4)})
    """
    try:
        return _from_node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, AttributeError) as error:  # or not even a string
        raise ValueError(f"{text!r} is not a name with literals in brackets") from error


def build(
    text: str, makers: Mapping[str, Callable[..., T]], *, where: str, noun: str, example: str
) -> T:
    """Calls the maker that `text` names with its arguments; `UserError` if that fails.

    Messages begin with `where`, which quotes the text, and call a maker a `noun`; `example` is a
    call as it should be.

    >>> build("range(2, 8)", {"range": range}, where="steps", noun="sequence", example="range(3)")
    range(2, 8)
    """
    listing = ", ".join(makers)
    try:
        name, positional, named = read(text)
    except ValueError as error:
        raise UserError(
            f"{where} must read like {example}: a name from {listing}, and numbers, strings or "
            "tuples in brackets"
        ) from error
    if name not in makers:
        near = difflib.get_close_matches(name, makers, n=1, cutoff=0.4)
        known = f"the closest is {signature(near[0], makers[near[0]])}" if near else ""
        raise UserError(f"{where}: no {noun} {name!r}; {known or f'there are {listing}'}")
    maker = makers[name]
    try:
        return maker(*positional, **named)
    except (TypeError, ValueError) as error:
        reason = str(error).removeprefix(f"{maker.__name__}.__init__() ")
        raise UserError(f"{where}: {reason}; use {signature(name, maker)}") from error


def separate(text: str) -> tuple[str, ...]:
    """The calls of a list that is joined by commas, each as a string again.

    >>> separate("classification, knn(k=20, every_epochs=5)")
    ('classification', 'knn(k=20, every_epochs=5)')
    """
    try:
        listing = ast.parse(f"[{text.strip()}]", mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not a list of calls joined by commas") from error
    if not isinstance(listing, ast.List):  # "a] + [b" is one, but no list
        raise ValueError(f"{text!r} is not a list of calls joined by commas")
    return tuple(ast.unparse(item) for item in listing.elts)


def signature(name: str, called: Callable[..., Any]) -> str:
    """A call as its documentation would write it, with the defaults of `called`."""
    parameters = inspect.signature(called).parameters.values()
    return f"{name}({', '.join(_parameter(parameter) for parameter in parameters)})"


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


def _from_node(node: ast.expr) -> CallSpec:
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if not isinstance(call.func, ast.Name):
        raise ValueError("not a call of a plain name")
    if any(keyword.arg is None for keyword in call.keywords):
        raise ValueError("arguments from elsewhere")
    positional = [_literal(argument) for argument in call.args]
    named = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
    return CallSpec(call.func.id, positional, named)


def _literal(node: ast.expr) -> Any:
    value = ast.literal_eval(node)
    return tuple(value) if isinstance(value, list) else value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(name: str, value: Any, low: float, high: float = float("inf")) -> None:
    if not is_number(value) or not low <= value <= high:
        bounds = f"from {low} to {high}" if high < float("inf") else f"of at least {low}"
        raise ValueError(f"{name} must be a number {bounds}, not {value!r}")


def integer(name: str, value: Any, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, not {value!r}")


def interval(name: str, value: Any, low: float, high: float = float("inf")) -> None:
    """A pair in ascending order inside [low, high], its upper end above zero."""
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(is_number(v) for v in value)
    if not is_pair or not low <= value[0] <= value[1] <= high or value[1] <= 0:
        bounds = f"between {low} and {high}" if high < float("inf") else f"of at least {low}"
        raise ValueError(f"{name} must be two ascending numbers {bounds}, not {value!r}")


def choice(name: str, value: Any, valid: Collection[str]) -> None:
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(valid)}, not {value!r}")


def height_and_width(name: str, value: Any) -> tuple[int, int]:
    """An int (a square) or a (height, width) pair, as a pair."""
    pair = value if isinstance(value, tuple) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{name} must be a number or (height, width), not {value!r}")
    for side in pair:
        integer(name, side, low=1)
    return pair


def colour(name: str, value: Any) -> tuple[int, int, int]:
    """A grey level or a (red, green, blue) triple in 0..255, as a triple."""
    triple = value if isinstance(value, tuple) else (value, value, value)
    is_level = [isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= 255 for v in triple]
    if len(triple) != 3 or not all(is_level):
        raise ValueError(f"{name} must be 0..255 or three of them, not {value!r}")
    return triple


def unit_triple(name: str, value: Any) -> None:
    """Three numbers in 0..1, one a channel."""
    if not isinstance(value, tuple) or len(value) != 3:
        raise ValueError(f"{name} must be three numbers from 0 to 1, not {value!r}")
    for channel in value:
        number(name, channel, 0, 1)


Thing = TypeVar("Thing")


class Registry(MutableMapping[str, T]):
    """Things of one kind by name. Assignment replaces; `register` refuses a name that is taken."""

    def __init__(
        self,
        noun: str,
        group: str,
        own: Mapping[str, T | str],
        *,
        form: str = "a function",
        accepts: Callable[[Any], bool] = callable,
    ) -> None:
        """`own` are the package's things or their addresses; `accepts` tells the right `form`."""
        self._noun, self._group = noun, group
        self._form, self._accepts = form, accepts
        self._things: dict[str, Any] = dict(own)

    def register(self, name: str) -> Callable[[Thing], Thing]:
        """A decorator that adds a class or function by `name`, for this process.

        >>> greetings = Registry("greeting", "example.greetings", {"hello": str.upper})
        >>> greetings.register("bye")(str.lower) is str.lower
        True
        >>> list(greetings)
        ['hello', 'bye']
        """

        def add(thing: Thing) -> Thing:
            self._check(name, thing, _address(thing))
            taken = self._own(name) if name in self._things else None
            # A cell of a notebook that runs again defines the same thing anew.
            if taken is not None and _address(taken) != _address(thing):
                raise self._clash(name, _address(taken), _address(thing))
            self._things[name] = thing
            return thing

        return add

    def __getitem__(self, name: str) -> T:
        plugins = self._plugins.get(name, [])
        if len(plugins) > 1:
            raise self._clash(name, *map(_describe, plugins))
        if plugins:
            thing = self._load(name, plugins[0])
            self._things.setdefault(name, thing)
            taken = self._own(name)
            if taken is not thing:
                raise self._clash(name, _address(taken), _describe(plugins[0]))
            del self._plugins[name]
        return self._own(name)

    def _own(self, name: str) -> T:
        """What is registered here; an address becomes what it names."""
        if isinstance(self._things[name], str):
            self._things[name] = pkgutil.resolve_name(self._things[name])
        return self._things[name]

    def __setitem__(self, name: str, thing: T) -> None:
        self._plugins.pop(name, None)
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        if self._plugins.pop(name, None) is None:
            del self._things[name]
        else:
            self._things.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._plugins

    def __iter__(self) -> Iterator[str]:
        return iter({**self._things, **self._plugins})

    def __len__(self) -> int:
        return len({**self._things, **self._plugins})

    @functools.cached_property
    def _plugins(self) -> dict[str, list[EntryPoint]]:
        """Entry points that are not loaded yet; more than one of a name is a mistake."""
        found: dict[str, list[EntryPoint]] = {}
        for entry in installed().select(group=self._group):
            found.setdefault(entry.name, []).append(entry)
        return found

    def _load(self, name: str, entry: EntryPoint) -> T:
        try:
            thing = entry.load()
        except Exception as error:  # whatever the code of others raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"{self._noun} {name!r} of {_describe(entry)} cannot be loaded: {reason}; "
                "repair that distribution or uninstall it"
            ) from error
        self._check(name, thing, _describe(entry))
        return thing

    def _check(self, name: str, thing: Any, giver: str) -> None:
        if not name.isidentifier():  # it becomes a section or a word of a config
            raise UserError(f"{self._noun} {name!r} of {giver} must be named by one plain word")
        if not self._accepts(thing):
            raise UserError(f"{self._noun} {name!r} of {giver} must be {self._form}")

    def _clash(self, name: str, first: str, second: str, *more: str) -> UserError:
        givers = ", by ".join((first, second, *more))
        return UserError(
            f"{self._noun} {name!r} is given twice: by {givers}; rename one, or uninstall it"
        )


@functools.cache
def installed() -> Any:  # Python 3.11 and 3.12 differ in the type
    """The entry points of everything that is installed."""
    return metadata.entry_points()


def _describe(entry: EntryPoint) -> str:
    giver = "an unknown distribution"
    if entry.dist is not None:
        giver = f"{entry.dist.name} {entry.dist.version}"
    return f"{giver} ({entry.value})"


def _address(thing: Any) -> str:
    """Where a class or function is defined."""
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"{getattr(thing, '__module__', None) or 'builtins'}.{name}"
