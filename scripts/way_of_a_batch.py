"""Prints the files that a batch passes on its way from `main.py` to the first checkpoint.

    python scripts/way_of_a_batch.py                 # the list, in the order of first use
    python scripts/way_of_a_batch.py --mermaid       # the picture of docs/design.md: who calls whom

It trains `configs/digits.py` in a temporary directory, with a checkpoint after two steps, and
watches every call. A file is on the way when one of its functions runs before the checkpoint is
written; being imported is not enough.
"""

import argparse
import contextlib
import functools
import inspect
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
SAVE = ("cone_jax/workdir/checkpoints.py", "save")
# A small network, since every call is watched. The evaluation comes after the checkpoint.
SETTINGS = (
    "--config=configs/digits.py",
    "--config.steps=3",
    "--config.batch_size=479",  # three steps per epoch
    "--config.model.options.width=4",
    "--config.model.head_hidden=16",
    "--config.log_every=1",
    f"--config.checkpoint.every_epochs={2 / 3}",
    "--config.evaluation.every_epochs=0.0",
)


class Way:
    """The files of the project that have been called, and from which file each was first."""

    def __init__(self) -> None:
        self.calls = {"main.py": ("main", "")}  # file -> (function, calling file)
        self.finished = False

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """A profile function for `sys.setprofile`."""
        file = project_file(frame)
        # Bodies of modules and classes run when a file is imported; only functions are optimised.
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if file is None or self.finished or not is_function:
            return
        function = frame.f_code.co_name
        if event == "call":
            self.calls.setdefault(file, (function, calling_file(frame, file) or "main.py"))
        elif event == "return" and (file, function) == SAVE:
            self.finished = True


def project_file(frame: FrameType) -> str | None:
    """The file of a frame, relative to the project; None for other people's code."""
    return relative_to_project(frame.f_code.co_filename)


@functools.cache
def relative_to_project(name: str) -> str | None:
    """The path of a file below the project; asked for in every call."""
    path = Path(name)
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
    names = {file: f"f{index}" for index, file in enumerate(way.calls)}
    lines = ["flowchart LR"]
    for file, (_, caller) in way.calls.items():
        lines.append(f'    {names[file]}["{short_name(file)}"]')
        if caller in names:
            lines.append(f"    {names[caller]} --> {names[file]}")
    return "\n".join(lines)


def short_name(file: str) -> str:
    """The name of a file of the package within it, of another one its path."""
    inside = file.removeprefix("cone_jax/")
    return inside.removesuffix(".py") if inside != file else file


def listing(way: Way) -> str:
    """One line per file: the first function that ran, and the file it was called from."""
    lines = sum(len((ROOT / file).read_text().splitlines()) for file in way.calls)
    rows = [
        f"{number:3}  {file:44} {function:28} {caller}"
        for number, (file, (function, caller)) in enumerate(way.calls.items(), start=1)
    ]
    return "\n".join([f"the way of a batch: {len(way.calls)} files, {lines:,} lines", *rows])


def main_program() -> None:
    """Prints the way in the form that was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mermaid", action="store_true", help="print the picture, not the list")
    arguments = parser.parse_args()
    print((mermaid if arguments.mermaid else listing)(trace()))


if __name__ == "__main__":
    main_program()
