"""Docstrings as the site shows them: examples are code, and comments beside fields are their text.

A paragraph that begins with ``>>>`` is an example. A field of a class, or a constant, is described
by the comment on its line or by those directly above it.
"""

import re
from typing import Any

import griffe

# What has no comment is shown with its type or value alone, for which it needs a text.
NOTHING = "\u200b"


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
        if obj.is_class and obj.docstring:
            fields = [each for each in obj.members.values() if _is_field(each)]
            if fields:
                lines = "".join(f"    {each.name}: {_text(each) or NOTHING}\n" for each in fields)
                obj.docstring.value += f"\n\nAttributes:\n{lines}"
        elif obj.is_attribute and not obj.docstring and _is_constant(obj):
            obj.docstring = griffe.Docstring(_text(obj) or NOTHING, parent=obj)


def _is_constant(attribute: Any) -> bool:
    """Whether it is a public value of a module."""
    own = attribute.parent and attribute.parent.is_module and attribute.lineno
    return bool(own) and not attribute.name.startswith("_")


def _is_field(member: Any) -> bool:
    """Whether it is a field of a class that its own lines declare."""
    own = not member.is_alias and member.is_attribute and not member.docstring
    return own and bool(member.lineno) and not member.name.startswith("_")


def _text(attribute: Any) -> str:
    lines = attribute.lines_collection[attribute.filepath]
    text = comment(lines, attribute.lineno, attribute.endlineno)
    return text[:1].upper() + text[1:]


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

    >>> fenced("One.\\n\\n>>> 1 + 1\\n2\\n\\nTwo.")
    'One.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nTwo.'
    """
    return re.sub(r"^>>> .*?(?=\n\n(?!>>>)|\Z)", r"```pycon\n\g<0>\n```", text, flags=re.M | re.S)
