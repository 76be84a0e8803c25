"""Prints the files that a batch passes on its way from `main.py` to the first checkpoint.

    python scripts/way_of_a_batch.py                 # the list, in the order of first use
    python scripts/way_of_a_batch.py --mermaid       # the picture of docs/design.md: who calls whom

It trains `configs/digits.py` in a temporary directory, with a checkpoint after two steps, and
watches every call. A file is on the way when one of its functions runs between the moment the loop
asks for its first batch and the moment the checkpoint is written, or when it is on the way from
`main.py` to the loop. What ran before the first batch, to set the run up, is listed apart. Being
imported is not enough for either list.
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
# The calls with which the way of batches begins and ends.
LOOP = ("cone_jax/training/loop.py", "_fit")
SAVE = ("cone_jax/workdir/checkpoints.py", "save")
# Eleven steps are an epoch; the evaluation comes at the end, after the first checkpoint.
SETTINGS = (
    "--config=configs/digits.py",
    "--config.steps=3",
    "--config.log_every=1",
    f"--config.checkpoint.every_epochs={2 / 11}",
    "--config.evaluation.every_epochs=0.0",
)


class Way:
    """The files of the project that have been called, and from which file each was first."""

    def __init__(self) -> None:
        self.set_up: dict[str, tuple[str, str]] = {}  # file -> (function, calling file)
        self.of_batches: dict[str, tuple[str, str]] = {}
        self._looping = self.finished = False

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """A profile function for `sys.setprofile`."""
        file = project_file(frame)
        function = frame.f_code.co_name
        if file is None or self.finished or function == "<module>":
            return
        if event == "return" and (file, function) == SAVE:
            self.finished = True
        if event != "call":
            return
        if (file, function) == LOOP:
            self._looping = True
            self._add_callers(frame)
        calls = self.of_batches if self._looping else self.set_up
        calls.setdefault(file, (function, calling_file(frame, file)))

    def _add_callers(self, frame: FrameType) -> None:
        """The way from the entry point to the loop."""
        callers = []
        caller: FrameType | None = frame
        while caller is not None:
            if (file := project_file(caller)) is not None:
                callers.append((file, caller.f_code.co_name, calling_file(caller, file)))
            caller = caller.f_back
        for file, function, calling in reversed(callers):
            self.of_batches.setdefault(file, (function, calling))


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
    names = {file: f"f{index}" for index, file in enumerate(way.of_batches)}
    lines = ["flowchart LR"]
    for file, (_, caller) in way.of_batches.items():
        lines.append(f'    {names[file]}["{file.removeprefix("cone_jax/").removesuffix(".py")}"]')
        if caller in names:
            lines.append(f"    {names[caller]} --> {names[file]}")
    return "\n".join(lines)


def listing(calls: dict[str, tuple[str, str]], title: str) -> str:
    """One line per file: the first function that ran, and the file it was called from."""
    lines = sum(len((ROOT / file).read_text().splitlines()) for file in calls)
    rows = [
        f"{number:3}  {file:44} {function:28} {caller}"
        for number, (file, (function, caller)) in enumerate(calls.items(), start=1)
    ]
    return "\n".join([f"{title}: {len(calls)} files, {lines:,} lines", *rows])


def main_program() -> None:
    """Prints the way in the form that was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mermaid", action="store_true", help="print the picture, not the list")
    arguments = parser.parse_args()
    way = trace()
    if arguments.mermaid:
        print(mermaid(way))
        return
    only_set_up = {file: call for file, call in way.set_up.items() if file not in way.of_batches}
    print(listing(way.of_batches, "the way of a batch"))
    print(listing(only_set_up, "only to set the run up"))


if __name__ == "__main__":
    main_program()
