"""Calls written as strings in a config: `flip`, `random_crop(32, padding=4)`, `knn(k=20)`.

They are read as Python expressions but never evaluated: a name, and literals in brackets.
"""

import ast
import difflib
import inspect
from collections.abc import Callable, Mapping
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
    """What the maker that `text` names gives for its arguments; `UserError` where it gives nothing.

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
