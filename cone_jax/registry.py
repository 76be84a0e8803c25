"""What a config names, by name: the package's own, and what others add.

Code adds to a registry for its own process::

    @OBJECTIVES.register("focal")
    class Focal: ...

An installed distribution adds to it for every process, also for those that sweeps and data loaders
start, by an entry point in the registry's group::

    [project.entry-points."cone_jax.objectives"]
    focal = "my_parts:Focal"

Entry points are read when a registry is first asked, and imported when their name is looked up.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import metadata
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from cone_jax.errors import UserError

T = TypeVar("T")
Thing = TypeVar("Thing")


class Registry(MutableMapping[str, T]):
    """Things of one kind by name. Assignment replaces; `register` refuses a name that is taken."""

    def __init__(
        self,
        noun: str,
        group: str,
        own: Mapping[str, T],
        *,
        form: str = "a function",
        accepts: Callable[[Any], bool] = callable,
    ) -> None:
        """`own` is the package's; `accepts` tells whether something is of the right `form`."""
        self._noun, self._group = noun, group
        self._form, self._accepts = form, accepts
        self._things = dict(own)

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
            taken = self._things.get(name)
            # A cell of a notebook that runs again defines the same thing anew.
            if taken is not None and _address(taken) != _address(thing):
                raise self._clash(name, _address(taken), _address(thing))
            self._things[name] = thing  # type: ignore[assignment]
            return thing

        return add

    def __getitem__(self, name: str) -> T:
        plugins = self._plugins.get(name, [])
        if len(plugins) > 1:
            raise self._clash(name, *map(_describe, plugins))
        if plugins:
            thing = self._load(name, plugins[0])
            taken = self._things.setdefault(name, thing)
            if taken is not thing:
                raise self._clash(name, _address(taken), _describe(plugins[0]))
            del self._plugins[name]
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
