"""Asks the compilers about a config: a process per program, a progress line, and a cache."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from cone_jax import storage
from cone_jax.compilation import environment, programs
from cone_jax.compilation.accelerators import Topology
from cone_jax.console import Report
from cone_jax.data import preparation
from cone_jax.data.datasets import open_dataset
from cone_jax.errors import Failure, UserError
from cone_jax.workdir import CONFIG_FILE

WORKER = "cone_jax.compilation.worker"
# Seconds between two looks at a compiler that is at work.
_LOOK = 1.0

Answer = dict[str, Any]
# Takes what is being compiled and for how many seconds.
Progress = Callable[[str, float], object]

# Training images of the sets that the recipes name, as their authors publish them.
TRAIN_IMAGES = {"imagenet2012": 1_281_167, "cifar10": 50_000, "cifar100": 50_000}


class DataShape(NamedTuple):
    """What a program's shapes and a run's length take from the data."""

    num_classes: int
    train_images: int  # 0: not known


def describe_data(config: ConfigDict, train_images: str) -> DataShape:
    """From the data where they are at hand, otherwise from the config and TFDS's description."""
    data = config.data
    if train_images and not (train_images.isdecimal() and int(train_images)):
        raise UserError(f"--train_images ({train_images!r}) must be a whole number from 1")
    try:
        dataset = open_dataset(data)
    except UserError as error:
        missing = error
    else:
        return DataShape(dataset.num_classes, int(train_images or len(dataset.train)))
    classes = data.num_classes
    if not classes and data.source == "tfds":
        classes = preparation.described_classes(data.name, data.label_key)
    if not classes:
        raise UserError(
            "data.num_classes (0) must be given for --mode=compile, since the data cannot be "
            f"opened: {missing}"
        )
    known = TRAIN_IMAGES.get(data.name, 0) if data.train_split == "train" else 0
    return DataShape(classes, int(train_images or known))


def ask(
    config: ConfigDict, program: str, topology: Topology, data: DataShape, progress: Progress
) -> Answer:
    """The compiler's answer for one program, fresh or from the cache."""
    progress(program, 0.0)
    with _worker(config, topology) as worker:
        keys = _identify(worker, program, topology, data)
        return {**_converse(worker, program, keys["key"], progress), "source": keys["program"]}


def identify(config: ConfigDict, program: str, topology: Topology, data: DataShape) -> str:
    """Equal for equal programs, which are traced and not compiled; an answer's ``source``."""
    with _worker(config, topology) as worker:
        return _identify(worker, program, topology, data)["program"]


@contextlib.contextmanager
def _worker(config: ConfigDict, topology: Topology) -> Iterator[subprocess.Popen[str]]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, CONFIG_FILE).write_text(config.to_json_best_effort())
        with subprocess.Popen(
            [sys.executable, "-m", WORKER, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment.process_environment(topology.accelerator.kind),
        ) as worker:
            try:
                yield worker
            finally:
                worker.kill()


def _identify(
    worker: subprocess.Popen[str], program: str, topology: Topology, data: DataShape
) -> dict[str, str]:
    """Hands the request over; the keys of the program."""
    assert worker.stdin is not None and worker.stdout is not None
    request = {
        "program": program,
        "topology": topology.text,
        "slices": str(topology.slices),
        **data._asdict(),
    }
    worker.stdin.write(json.dumps(request) + "\n")
    worker.stdin.flush()
    first = worker.stdout.readline()
    if not first:
        raise _failed(worker, program)
    keys: dict[str, str] = json.loads(first)
    return keys


def _converse(worker: subprocess.Popen[str], program: str, key: str, progress: Progress) -> Answer:
    cached = _cache_folder() / f"{key}.json"
    if cached.exists():
        answer: Answer = json.loads(cached.read_text())
        return answer
    began, sent = time.monotonic(), "compile\n"
    while True:
        try:
            said, errors = worker.communicate(sent, timeout=_LOOK)
            break
        except subprocess.TimeoutExpired:
            sent = ""
            progress(program, time.monotonic() - began)
    if worker.returncode:
        raise _explained(program, errors)
    answer = json.loads(said.splitlines()[-1])
    cached.parent.mkdir(parents=True, exist_ok=True)
    with storage.replacing(cached) as unfinished:
        unfinished.write_text(json.dumps(answer))
    return answer


def _failed(worker: subprocess.Popen[str], program: str) -> Exception:
    _, errors = worker.communicate()
    return _explained(program, errors)


def _explained(program: str, errors: str) -> Exception:
    """The error that ended a worker: the user's mistake where it was one."""
    lines = [line for line in errors.splitlines() if line.strip()] or ["no reason given"]
    for line in reversed(lines):
        kind, _, said = line.partition(": ")
        if kind == f"{UserError.__module__}.{UserError.__name__}":
            return UserError(said)
    return Failure(f"the {program} could not be compiled: {lines[-1]}")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cone_jax" / "compiled"


def ask_all(
    config: ConfigDict, topology: Topology, data: DataShape, say: Report, progress: Progress
) -> dict[str, Answer]:
    """The compiler's answers for the programs of a run, up to one that it cannot compile."""
    programs.check(config, topology.num_devices)
    environment.install(topology.accelerator.kind, say)
    answers = {}
    for program in programs.names(config):
        answers[program] = ask(config, program, topology, data, progress)
        if "exhausted" in answers[program]:
            break
    return answers
