"""Prints the files that a batch passes on its way from `main.py` to the first checkpoint.

    python scripts/way_of_a_batch.py                 # the list, in the order of first use
    python scripts/way_of_a_batch.py --mermaid       # the picture of docs/design.md: who calls whom

It trains `configs/digits.py` for two steps in a temporary directory and watches every call. A file
counts when one of its functions runs; being imported is not enough.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
# The call with which the way ends.
LAST_FILE, LAST_FUNCTION = "cone_jax/workdir/checkpoints.py", "save"
SETTINGS = ("--config=configs/digits.py", "--config.steps=2", "--config.log_every=1")


class Way:
    """The files of the project that have been called, and from which file each was first."""

    def __init__(self) -> None:
        self.first_call: dict[str, tuple[str, str]] = {}  # file -> (function, calling file)
        self.finished = False

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """A profile function for `sys.setprofile`."""
        file = project_file(frame)
        if file is None or self.finished:
            return
        function = frame.f_code.co_name
        if event == "return" and (file, function) == (LAST_FILE, LAST_FUNCTION):
            self.finished = True
        if event == "call" and function != "<module>" and file not in self.first_call:
            self.first_call[file] = (function, calling_file(frame, file))


def project_file(frame: FrameType) -> str | None:
    """The file of a frame, relative to the project; None for other people's code."""
    path = Path(frame.f_code.co_filename)
    if not path.is_absolute() or not path.is_relative_to(ROOT):
        return None
    relative = path.relative_to(ROOT)
    return str(relative) if relative.parts[0] in ("cone_jax", "configs", "main.py") else None


def calling_file(frame: FrameType, file: str) -> str:
    """The nearest other file of the project that the call came through."""
    caller = frame.f_back
    while caller is not None:
        found = project_file(caller)
        if found not in (None, file):
            return str(found)
        caller = caller.f_back
    return ""


def trace() -> Way:
    """Trains for two steps and returns what was called on the way."""
    way = Way()
    import main

    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        threading.setprofile(way.watch)
        sys.setprofile(way.watch)
        try:
            code = main.main([*SETTINGS, f"--workdir={directory}/run"])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    if code != 0 or not way.finished:
        raise SystemExit(f"the run ended with code {code} and without a checkpoint")
    return way


def mermaid(way: Way) -> str:
    """The way as a graph: each file below the one that called it first."""
    names = {file: f"f{index}" for index, file in enumerate(way.first_call)}
    lines = ["flowchart LR"]
    for file, (_, caller) in way.first_call.items():
        lines.append(f'    {names[file]}["{file.removeprefix("cone_jax/").removesuffix(".py")}"]')
        if caller in names:
            lines.append(f"    {names[caller]} --> {names[file]}")
    return "\n".join(lines)


def main_program() -> None:
    """Prints the way in the form that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mermaid", action="store_true", help="print the picture, not the list")
    arguments = parser.parse_args()
    way = trace()
    if arguments.mermaid:
        print(mermaid(way))
        return
    for number, (file, (function, caller)) in enumerate(way.first_call.items(), start=1):
        print(f"{number:3}  {file:44} {function:28} {caller}")
    lines = sum(len((ROOT / file).read_text().splitlines()) for file in way.first_call)
    print(f"{len(way.first_call)} files, {lines:,} lines")


if __name__ == "__main__":
    main_program()
