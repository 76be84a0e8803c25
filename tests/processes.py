"""Processes of one run over Gloo, on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import portpicker

from tests.conftest import ROOT


def start(
    driver: Path, *before: str | Path, count: int, devices: int, after: Sequence[int] = ()
) -> list[subprocess.Popen]:
    """`count` processes of `driver`, with `devices` devices each.

    Their arguments: those `before`, index, count, port, and of `after` the one at the index.
    """
    port = portpicker.pick_unused_port()
    environment = os.environ | {
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",  # as in most tests, to save time
        "PYTHONPATH": str(ROOT),
    }
    return [
        subprocess.Popen(
            [
                *(sys.executable, driver, *before),
                *map(str, (index, count, port, *after[index : index + 1])),
            ],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]


def outputs(processes: Iterable[subprocess.Popen], timeout: float = 280) -> list[str]:
    """What processes print that come to a good end."""
    processes = list(processes)
    try:
        said = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in said]
