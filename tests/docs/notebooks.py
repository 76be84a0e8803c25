"""The notebooks as tests read and run them, without Jupyter.

A cell with the tag ``parameters`` holds what a reader may want to change; its ``tested_with`` says
what a test puts in its place, to be quick.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs.documents import ROOT

NOTEBOOKS = tuple(sorted((ROOT / "notebooks").glob("*.ipynb")))

# What stands before a notebook's own code: `!cone ...` runs in this process.
PREAMBLE = """
import matplotlib
matplotlib.use("agg")

def cone(*words):
    from cone_jax.__main__ import main
    code = main(words)
    assert code == 0, f"cone {' '.join(words)} ended with {code}"
"""


class Cell(NamedTuple):
    kind: str  # "code" or "markdown"
    source: str
    metadata: dict[str, Any]


def cells(path: Path) -> list[Cell]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return [
        Cell(each["cell_type"], "".join(each["source"]), each["metadata"])
        for each in content["cells"]
    ]


def commands(path: Path) -> list[tuple[str, ...]]:
    """The words of each command that a notebook gives to a shell."""
    text = "\n".join(cell.source for cell in cells(path) if cell.kind == "code")
    return [tuple(shlex.split(line)) for line in re.findall(r"^ *!(.*)$", text, re.MULTILINE)]


def program(path: Path) -> str:
    """A notebook as a Python program, with the parameters of tests."""
    parts = [PREAMBLE]
    for cell in cells(path):
        if cell.kind == "code":
            tested = cell.metadata.get("tested_with")
            parts.append("\n".join(tested) if tested else plain(cell.source))
    return "\n\n".join(parts)


def plain(source: str) -> str:
    """A cell without IPython's own syntax.

    >>> print(plain("!cone check --workdir='my runs'"))
    cone('check', '--workdir=my runs')
    """
    source = re.sub(r"^( *)%pip .*$", r'\1raise ImportError("not here")', source, flags=re.M)

    def call(match: re.Match[str]) -> str:
        name, *words = shlex.split(match[2])
        assert name == "cone", match[0]
        return f"{match[1]}cone({', '.join(map(repr, words))})"

    return re.sub(r"^( *)!(.*)$", call, source, flags=re.MULTILINE)


def run(path: Path, place: Path, afterwards: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a notebook in a process of its own, in `place`; `afterwards` sees its names."""
    file = place / f"{path.stem}.py"
    file.write_text(program(path) + "\n\n" + afterwards, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, str(file)], cwd=place, env=environment, capture_output=True, text=True
    )
