"""Docstrings as the site shows them: examples are code, and comments beside fields are their text.

A paragraph that begins with ``>>>`` is an example. A field of a class, or a constant, is described
by the comment on its line or by those directly above it.
"""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.is_attribute and not obj.docstring and obj.lineno and obj.name.strip("_"):
            text = comment(obj.lines_collection[obj.filepath], obj.lineno, obj.endlineno)
            # What has no comment is shown with its type alone.
            obj.docstring = griffe.Docstring(text or "\u200b", parent=obj)
        elif obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def comment(lines: list[str], first: int, last: int | None) -> str:
    """What the source says of the statement in lines `first` to `last`, counted from 1.

    >>> comment(["# One", "# two.", "x = 1", "y = 2  # three"], 3, 3)
    'One two.'
    >>> comment(["x = 1", "y = 2  # three"], 2, 2)
    'three'
    """
    beside = re.search(r"\s{2}# (.*)$", lines[(last or first) - 1])
    if beside:
        return beside[1]
    above: list[str] = []
    for line in reversed(lines[: first - 1]):
        match = re.match(r"\s*# (.*)$", line)
        if not match:
            break
        above.insert(0, match[1])
    return " ".join(above)


def fenced(text: str) -> str:
    """The text with a fence around each example.

    >>> print(fenced("One.\\n\\n>>> 1 + 1\\n2\\n\\nTwo."))
    One.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    Two.
    """
    return re.sub(r"^>>> .*?(?=\n\n(?!>>>)|\Z)", r"```pycon\n\g<0>\n```", text, flags=re.M | re.S)
