"""Two processes over Gloo equal one, stop together, and one goes on where two stopped."""

import os
import re
import subprocess
import sys
from pathlib import Path

import portpicker
import pytest

from cone_jax import distributed
from cone_jax.errors import UserError
from cone_jax.metric_writers import METRICS_FILE, read_records

ROOT = Path(__file__).parent.parent.parent
DRIVER = Path(__file__).parent / "process_driver.py"


def run_processes(workdir, count, devices, stop=(0, 0)):
    """The outputs of `count` processes with `devices` devices each."""
    port = portpicker.pick_unused_port()
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, DRIVER, workdir, *map(str, (index, count, port, stop[index]))],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    outputs = [process.communicate(timeout=280) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in outputs]


def test_two_processes_equal_one_and_one_goes_on_after_two(tmp_path):
    run_processes(tmp_path / "one", count=1, devices=4)
    # SIGTERM reaches the second process only; both stop after the same step.
    outputs = run_processes(tmp_path / "two", count=2, devices=2, stop=(0, 5))
    stops = [re.search(r"interrupted at (\d+)", output)[1] for output in outputs]
    assert stops[0] == stops[1]
    assert 5 <= int(stops[0]) < 12
    assert (tmp_path / "two" / "checkpoints" / stops[0]).is_dir()
    assert "images/s" not in outputs[1]

    run_processes(tmp_path / "two", count=1, devices=4)
    one, two = (read_records(tmp_path / name / METRICS_FILE) for name in ("one", "two"))
    assert [record["step"] for record in two] == list(range(1, 13))
    for expected, actual in zip(one, two, strict=True):
        assert actual == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("count", "process", "words"),
    [("", "0", "num_processes"), ("2", "", "process_id"), ("2", "2", "below --num_processes")],
)
def test_incomplete_flags_are_refused(count, process, words):
    with pytest.raises(UserError, match=words):
        distributed.initialize("127.0.0.1:1", count, process)
