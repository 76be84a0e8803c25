"""Examples of docstrings, as the site shows them: a paragraph that begins with ``>>>`` is code."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


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
