"""Sections of a config: frozen dataclasses whose fields are declared once and check themselves.

    @dataclasses.dataclass(frozen=True)
    class Bank(Section, path="bank"):
        size: int = field(65536, "how many rows it has", low=1)
        init: Literal["masked", "official"] = field("masked", "what rows hold before ...")

A declaration holds the default, the meaning and the limits of a field; the choices are those of
its `Literal` type. A section cannot be made with a value that it refuses, and the `UserError` says
which field, which value, and what would be right. A recipe changes the section's form as a
`ConfigDict` (`to_config`); everything that uses it gets the section itself (`read`).
"""

import dataclasses
import math
import types
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cone_jax.errors import UserError, closest

_DECLARATION = "cone_jax.settings"


class Declaration(NamedTuple):
    """What a field declares besides its name, type and default."""

    meaning: str
    above: float | None = None
    low: float | None = None
    high: float | None = None
    free: bool = False

    def refuses(self, value: Any) -> bool:
        """Whether a number is outside the limits; what is not a number always is."""
        number = isinstance(value, int | float) and not math.isnan(value)
        return not number or bool(
            (self.above is not None and value <= self.above)
            or (self.low is not None and value < self.low)
            or (self.high is not None and value > self.high)
        )

    @property
    def limits(self) -> str:
        """The limits in words; empty where there are none.

        >>> Declaration("", low=0, high=1).limits, Declaration("", above=0).limits
        ('between 0 and 1', 'positive')
        """
        if self.low is not None and self.high is not None:
            return f"between {self.low} and {self.high}"
        bounds = []
        if self.above is not None:
            bounds.append("positive" if self.above == 0 else f"above {self.above}")
        if self.low is not None:
            bounds.append(f"at least {self.low}")
        if self.high is not None:
            bounds.append(f"at most {self.high}")
        return " and ".join(bounds)


class FieldEntry(NamedTuple):
    """A field in a list of all fields."""

    name: str  # such as ``bank.size``
    default: Any
    declaration: Declaration
    choices: tuple[Any, ...]


def field(
    default: Any,
    meaning: str,
    *,
    above: float | None = None,
    low: float | None = None,
    high: float | None = None,
    free: bool = False,
) -> Any:
    """A field of a section. Limits hold for a number, and for each number of a tuple.

    A `free` field changes how a run is carried out or watched, but not what it computes: it may
    change while the run goes on. A field whose type is ``X | None`` is optional: None leaves the
    choice to whoever uses it.
    """
    declaration = Declaration(meaning, above, low, high, free)
    return dataclasses.field(default=default, metadata={_DECLARATION: declaration})


class Section:
    """Derive a frozen dataclass from it, with `path`: its name in the section that holds it."""

    _path: ClassVar[str] = ""

    def __init_subclass__(cls, *, path: str | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if path is not None:
            cls._path = path

    def __post_init__(self) -> None:
        for name, (hint, declaration) in _declared(type(self)).items():
            _check(self.field_path(name), getattr(self, name), hint, declaration)
        self.check()

    def check(self) -> None:
        """Raises `UserError` if fields that are right by themselves do not fit together."""

    @classmethod
    def field_path(cls, name: str) -> str:
        """The name of a field in messages: ``bank.size``."""
        return f"{cls._path}.{name}" if cls._path else name

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """The fields, nested sections included."""
        return tuple(_declared(cls))

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """The section that a config holds. What is left out has its default.

        Names that the section does not know are ignored: they may come from an older version.
        """
        found: dict[str, Any] = {}
        for name, (hint, _) in _declared(cls).items():
            if name not in values:
                continue
            found[name] = _tupled(values[name])
            if _is_section(hint):
                found[name] = _read_nested(hint, values[name], cls._path)
        return cls(**found)

    def to_config(self) -> ConfigDict:
        """The section as recipes and flags change it."""
        config = ConfigDict()
        for name, (hint, _) in _declared(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, Section):
                value = value.to_config()
            config[name] = placeholder(_optional(hint)) if value is None else value
        return config

    def entries(self, inside: str = "") -> Iterator[FieldEntry]:
        """Every field of this section and those in it, its value here as the default."""
        for name, (hint, declaration) in _declared(type(self)).items():
            value, path = getattr(self, name), inside + self.field_path(name)
            if isinstance(value, Section):
                yield from value.entries(inside + (f"{self._path}." if self._path else ""))
            else:
                yield FieldEntry(path, value, declaration, _choices(hint))


_declarations: dict[type, dict[str, tuple[Any, Declaration]]] = {}


def _declared(section: type[Any]) -> dict[str, tuple[Any, Declaration]]:
    """Type and declaration of each field, by name. Resolving types takes time: done once."""
    if section not in _declarations:
        hints = get_type_hints(section)
        _declarations[section] = {
            each.name: (hints[each.name], each.metadata[_DECLARATION])
            for each in dataclasses.fields(section)
            if _DECLARATION in each.metadata
        }
    return _declarations[section]


def _check(path: str, value: Any, hint: Any, declaration: Declaration) -> None:
    if _is_section(hint) or (value is None and _optional(hint) is not None):
        return
    choices, several = _choices(hint), get_origin(hint) is tuple
    if choices:
        for item in (value or (None,)) if several else (value,):
            if item not in choices:
                cure = closest(str(item), map(str, choices))
                raise UserError(f"{path} ({value!r}) is unknown; {cure}")
    for item in value if several else (value,):
        if declaration.limits and declaration.refuses(item):
            raise UserError(f"{path} ({item}) must be {declaration.limits}")
        if isinstance(item, float) and math.isnan(item):
            raise UserError(f"{path} ({item}) must be a number")


def _choices(hint: Any) -> tuple[Any, ...]:
    """What a field, or each item of a tuple, may be; empty: anything of its type."""
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) is Literal else ()


def _optional(hint: Any) -> Any:
    """X of ``X | None``; None for other types."""
    if get_origin(hint) is not types.UnionType or types.NoneType not in get_args(hint):
        return None
    return next(each for each in get_args(hint) if each is not types.NoneType)


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


def _read_nested(section: type[Section], values: Mapping[str, Any], holder: str) -> Section:
    """A section does not know who holds it, so the holder completes the name in a message."""
    try:
        return section.read(values)
    except UserError as error:
        raise UserError(f"{holder}.{error}" if holder else str(error)) from None


def _tupled(value: Any) -> Any:
    """Lists as tuples, so that sections can be compared and hashed."""
    return tuple(map(_tupled, value)) if isinstance(value, list | tuple) else value
