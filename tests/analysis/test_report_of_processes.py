"""What two processes that share a run leave to look at: a report and sheets, once."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import portpicker
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cone_jax.analysis.snapshot import Snapshot
from cone_jax.workdir.metrics import METRICS_FILE, latest_values
from tests import tiny_run

ROOT = Path(__file__).parent.parent.parent
TINY = (
    "--config.steps=3",
    "--config.schedule.warmup_epochs=0.0",
    "--config.objective.cone.start_epochs=0",
    "--config.objective.cone.wait_for_bank=False",
    "--config.evaluation.batch_size=120",
    *tiny_run.FLAGS,
)
ONE_DEVICE = {"JAX_NUM_CPU_DEVICES": "1"}


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory):
    """A directory, and what the two processes said."""
    directory = tmp_path_factory.mktemp("processes") / "run"
    command = [sys.executable, "main.py", f"--workdir={directory}", *TINY]
    command += [f"--coordinator=127.0.0.1:{portpicker.pick_unused_port()}", "--num_processes=2"]
    processes = [
        subprocess.Popen(
            [*command, f"--process_id={index}"],
            cwd=ROOT,
            env=os.environ | ONE_DEVICE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    outputs = [process.communicate(timeout=280) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return directory, [output for output, _ in outputs]


def test_the_first_process_writes_the_report(shared_run):
    directory, (first, second) = shared_run
    page = (directory / "report.html").read_text()
    for section in ("classes", "neighbours", "positives", "maps"):
        assert f'id="{section}"' in page
    assert "report.html" in first
    assert "warning" not in first
    assert "report" not in second


def test_its_network_is_the_one_that_both_processes_evaluated(shared_run):
    directory, _ = shared_run
    shown = Snapshot.load(directory, 3)
    assert shown.labels.size == 360
    measured = latest_values(directory / METRICS_FILE)["test/top1"]
    assert np.mean(shown.labels == shown.predictions) == pytest.approx(measured, abs=1 / 360)
    assert shown.versions["devices"] == "1 x cpu"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_its_sheets_once(shared_run):
    directory, _ = shared_run
    assert len(list(directory.glob("events.*"))) == 1
    events = EventAccumulator(str(directory)).Reload()
    for sheet in ("samples", "neighbours"):
        assert [image.step for image in events.Images(sheet)] == [3]
