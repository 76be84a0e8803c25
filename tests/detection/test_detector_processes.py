"""A detector trained by two processes over Gloo, a device each, equals that of one device."""

import json
from pathlib import Path

import pytest

from tests import processes
from tests.detection import shapes

DRIVER = Path(__file__).parent / "detector_process.py"


def test_two_processes_equal_one(tmp_path):
    """With SyncBN: each process sees half of every batch."""
    data = shapes.write(tmp_path, 16, standing=False)  # one shape, one compilation
    one, two = (
        processes.outputs(processes.start(DRIVER, data, count=count, devices=1)) for count in (1, 2)
    )
    expected = metrics(one[0])
    assert len(expected) == 2
    for printed in two:
        for step, found in zip(expected, metrics(printed), strict=True):
            assert found == pytest.approx(step, rel=1e-3, abs=1e-5)


def metrics(printed):
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
