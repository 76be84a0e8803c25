"""A detector trained by two processes over Gloo, a device each, equals that of one device."""

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
    port = portpicker.pick_unused_port()
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)}
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
    try:
        for process in processes:
            _, errors = process.communicate(timeout=560)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return read_records(workdir / METRICS_FILE)


def test_two_processes_equal_one(tmp_path):
    """Losses of both steps, with SyncBN: each process sees half of every batch.

    The evaluation runs to its end; after two steps every AP is 0, which says nothing more.
    """
    data = shapes.write(tmp_path / "data", 16)
    one, two = (run(data, tmp_path / str(count), count) for count in (1, 2))
    assert [record["step"] for record in one] == [1, 2]
    assert "test/box_ap" in one[-1]
    for expected, record in zip(one, two, strict=True):
        assert record == pytest.approx(expected, rel=1e-3, abs=1e-5)
