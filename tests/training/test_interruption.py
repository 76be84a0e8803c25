"""A signal lets the step finish, saves it, and tells how to go on; a second one exits at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cone_jax import training
from cone_jax.errors import Interrupted
from cone_jax.metric_writers import METRICS_FILE
from cone_jax.training import loop
from cone_jax.training.interruption import Interruption

ROOT = Path(__file__).parent.parent.parent
QUIET = Console(quiet=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_the_step_and_the_run_goes_on_exactly(
    tiny_config, tmp_path, monkeypatch, number
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    final = training.train(tiny_config, whole, QUIET)
    real_step, taken = loop.train_step, []

    def step(state, batch):
        taken.append(None)
        if len(taken) == 4:
            os.kill(os.getpid(), number)
        return real_step(state, batch)

    monkeypatch.setattr(loop, "train_step", step)
    with pytest.raises(Interrupted) as stopped:
        training.train(tiny_config, parts, QUIET)
    assert stopped.value.step == 4
    assert (parts / "checkpoints" / "4").is_dir()
    monkeypatch.undo()
    assert training.train(tiny_config, parts, QUIET) == final
    assert (parts / METRICS_FILE).read_bytes() == (whole / METRICS_FILE).read_bytes()


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interruption() as watch:
        assert not watch.requested(1)
        assert signal.getsignal(signal.SIGTERM) == watch._handle
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_second_signal_exits_at_once():
    program = (
        "import os, signal, time\n"
        "from cone_jax.training.interruption import Interruption\n"
        "with Interruption():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    began = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert result.stdout == "still here\n"
    assert result.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - began < 45


def test_main_says_how_to_continue(tmp_path):
    arguments = [
        f"--workdir={tmp_path / 'my run'}",
        "--config.epochs=4000",
        "--config.model.options.width=4",
        "--config.model.head_hidden=16",
        "--config.log_every=1",
    ]
    process = subprocess.Popen(
        [sys.executable, "main.py", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:  # until training is under way
        if line.startswith("step "):
            break
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "everything is saved; continue with: python main.py" in errors
    assert f"'--workdir={tmp_path / 'my run'}'" in errors
    saved = [int(path.name) for path in (tmp_path / "my run" / "checkpoints").iterdir()]
    assert len(saved) == 1
    assert np.isfinite(saved[0])
