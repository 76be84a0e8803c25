"""A detector trained by two processes over Gloo equals one trained by one."""

import os
import subprocess
import sys
from pathlib import Path

import portpicker
import pytest

from cone_jax.workdir.metrics import METRICS_FILE, read_records
from tests.conftest import ROOT
from tests.detection import shapes

DRIVER = Path(__file__).parent / "detector_process.py"


def run(data, workdir, count):
    port, flags = portpicker.pick_unused_port(), os.environ.get("XLA_FLAGS", "")
    environment = os.environ | {
        "JAX_NUM_CPU_DEVICES": str(4 // count),
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": flags,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, DRIVER, data, workdir, *map(str, (index, count, port))],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors
    return read_records(workdir / METRICS_FILE)


def test_two_processes_equal_one(tmp_path):
    """Losses of both steps and every AP: each process sees its own rows, all of them count."""
    data = shapes.write(tmp_path / "data", 16)
    one, two = (run(data, tmp_path / str(count), count) for count in (1, 2))
    assert [record["step"] for record in one] == [1, 2]
    assert "test/box_ap" in one[-1]
    for expected, record in zip(one, two, strict=True):
        assert record == pytest.approx(expected, rel=1e-3, abs=1e-5)
