"""A signal lets the step finish, saves it, and tells how to go on; a second one exits at once."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from cone_jax import training
from cone_jax.errors import Interrupted
from cone_jax.evaluation.classification import Classification
from cone_jax.modes import MODES
from cone_jax.training import faults, loop
from cone_jax.training.faults import SAME_REQUEST, Interruption
from cone_jax.workdir.metrics import METRICS_FILE, read_records

ROOT = Path(__file__).parent.parent.parent
QUIET = Console(quiet=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_the_step_and_the_run_goes_on_exactly(
    quick_config, tmp_path, monkeypatch, number
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    final = training.train(quick_config, whole, QUIET)
    real_step, taken = loop.train_step, []

    def step(state, batch):
        taken.append(None)
        if len(taken) == 4:
            os.kill(os.getpid(), number)
        return real_step(state, batch)

    monkeypatch.setattr(loop, "train_step", step)
    with pytest.raises(Interrupted) as stopped:
        training.train(quick_config, parts, QUIET)
    assert stopped.value.step == 4
    assert (parts / "checkpoints" / "4").is_dir()
    monkeypatch.undo()
    assert training.train(quick_config, parts, QUIET) == final
    assert (parts / METRICS_FILE).read_bytes() == (whole / METRICS_FILE).read_bytes()


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interruption() as watch:
        assert not watch.requested(1)
        assert signal.getsignal(signal.SIGTERM) == watch._handle
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_second_signal_exits_at_once():
    """Also while Python waits for C, as it does for the compiler and for a device."""
    program = (
        "import hashlib\n"
        "from cone_jax.training.faults import Interruption\n"
        "with Interruption():\n"
        "    print('ready', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)  # many minutes\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=SAME_REQUEST + 1.0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_a_signal_that_comes_twice_at_the_same_time_is_one_request():
    """As `timeout` sends it: to the process, and to its group."""
    with Interruption() as watch:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        assert watch.requested(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_with_several_processes_jax_is_told_of_either_signal(monkeypatch, number):
    """What follows from that is seen with two processes in test_processes.py."""
    told = threading.Event()

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def service(heard):  # stands for the one that jax.distributed sets, in C
        assert heard == signal.SIGTERM
        told.set()

    address = ctypes.cast(service, ctypes.c_void_p).value
    original = faults._set_native_handler(signal.SIGTERM, address)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    try:
        with Interruption():
            os.kill(os.getpid(), number)
            assert told.wait(timeout=20)
    finally:
        assert faults._set_native_handler(signal.SIGTERM, original) == address


def test_a_signal_in_an_evaluation_waits_for_its_scores(quick_config, tmp_path, monkeypatch):
    quick_config.evaluation.every_epochs = 4 / 44
    real_evaluate = Classification.evaluate

    def evaluate(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return real_evaluate(*arguments)

    monkeypatch.setattr(Classification, "evaluate", evaluate)
    with pytest.raises(Interrupted) as stopped:
        training.train(quick_config, tmp_path, QUIET)
    assert stopped.value.step == 4
    [record] = [line for line in read_records(tmp_path / METRICS_FILE) if line["step"] == 4]
    assert "test/top1" in record


def test_ctrl_c_outside_of_training_is_one_line(main, monkeypatch, capsys):
    def run(arguments, console):
        raise KeyboardInterrupt

    monkeypatch.setitem(MODES, "evaluate", MODES["evaluate"]._replace(run=run))
    assert main(["--mode=evaluate"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "interrupted\n"


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
