"""Checks of what a user wrote inside the brackets of a transform.

Each raises a ValueError that names the argument, the value found and what would be right;
`parsing` adds the spec it stood in and makes a `UserError` of it.
"""

import math
from collections.abc import Collection
from typing import Any


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
