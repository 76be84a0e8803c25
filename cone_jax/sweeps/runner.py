"""Carries out a sweep: each run in a process of its own, so that one that fails harms no other.

A run that was interrupted goes on where it stopped; one that is finished is not started again.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from ml_collections import ConfigDict

import cone_jax
from cone_jax import storage, workdir
from cone_jax.console import Report
from cone_jax.errors import TrainingFailed
from cone_jax.sweeps.definition import Cell, Sweep, cell_config, cell_name, overrides
from cone_jax.sweeps.train_cell import LOG_FILE, RESULT_FILE

TRAIN = (sys.executable, "-m", "cone_jax.sweeps.train_cell")


class CellRun(NamedTuple):
    """One run of one cell."""

    cell: Cell
    seed: int | None  # None: the recipe's own
    directory: Path
    config: ConfigDict

    @property
    def name(self) -> str:
        return str(self.directory.name if self.seed is None else Path(*self.directory.parts[-2:]))


def plan(sweep: Sweep, recipe: str, config: ConfigDict, directory: Path) -> list[CellRun]:
    """All runs of a sweep; `UserError` for the first whose config cannot work. Writes nothing.

    `config` is what `recipe` gives, with the user's changes.
    """
    changes = overrides(sweep, recipe, config)
    runs = []
    for cell in sweep.cells:
        for seed in sweep.seeds or (None,):
            place = directory / cell_name(cell)
            if seed is not None:
                place /= f"seed-{seed}"
            runs.append(CellRun(cell, seed, place, cell_config(sweep, cell, recipe, changes, seed)))
    return runs


def result(run: CellRun) -> dict[str, float] | None:
    """The final metrics of a finished run."""
    path = run.directory / RESULT_FILE
    return json.loads(path.read_text()) if path.exists() else None


def carry_out(
    runs: Sequence[CellRun],
    *,
    jobs: int,
    say: Report,
    finished: Callable[[], None],
    command: Sequence[str] = TRAIN,
) -> list[str]:
    """Starts what is not finished, `jobs` at a time; returns a line about each failure.

    `finished` is called after each run, so that tables can be read while others go on. `command`
    takes the directory of a run as its last argument, and leaves its result there. An interruption
    is a `TrainingFailed` that says how to go on, once the runs under way have saved and ended.
    """
    for run in runs:
        workdir.claim(run.directory, run.config)
    waiting = [run for run in runs if result(run) is None]
    if len(waiting) < len(runs):
        say(f"{len(runs) - len(waiting)} of {len(runs)} runs are finished already")
    failures: list[str] = []
    children = _Children(command)
    with _interruptions(), ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(children.train, run): run for run in waiting}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                run, problem = futures[future], future.result()
                outcome = "finished" if problem is None else f"failed: {problem}"
                say(f"[{done}/{len(waiting)}] {run.name} {outcome}")
                if problem is not None:
                    failures.append(f"{run.name}: {problem}")
                finished()
        except BaseException:
            children.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return failures


@contextlib.contextmanager
def _interruptions() -> Iterator[None]:
    """Makes SIGTERM end a sweep like Ctrl-C, with its children; both are failures to go on from."""
    try:
        with _termination_interrupts():
            yield
    except KeyboardInterrupt:
        raise TrainingFailed("interrupted; the same command continues with what is left") from None


@contextlib.contextmanager
def _termination_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class _Children:
    """The processes of a sweep, which end with it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._running: set[subprocess.Popen] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def train(self, run: CellRun) -> str | None:
        """Trains one run to its end; returns what went wrong, if anything did."""
        root = str(Path(cone_jax.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        log = run.directory / LOG_FILE
        with storage.streamed(log) as file:
            with self._lock:
                if self._stopped:
                    return "not started"
                child = subprocess.Popen(
                    [*self._command, str(run.directory)],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    # Ctrl-C is for this process, which then asks its children once: training
                    # takes a second signal as a wish to end at once, without saving.
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": path},
                )
                self._running.add(child)
            code = child.wait()
            with self._lock:
                self._running.discard(child)
        if code == 0 and result(run) is not None:
            return None
        lines = log.read_text().strip().splitlines()
        return f"{lines[-1] if lines else f'exit code {code}'} (see {log})"

    def stop(self) -> None:
        """Asks all of them to save and end, and lets no other begin."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                child.terminate()
