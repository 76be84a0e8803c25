"""Carrying out a sweep: nothing twice, nothing lost, one failure harms no other run."""

import json
import os
import signal
import sys
import threading
import time

import pytest

from cone_jax import sweeps, workdir
from cone_jax.errors import TrainingFailed, UserError
from cone_jax.sweeps import Cell, Sweep, runner, tables

# Stands for training: notes that it was started, and ends as the cell's seed says.
PROGRAM = """
import json, pathlib, sys
directory = pathlib.Path(sys.argv[1])
config = json.loads((directory / "config.json").read_text())
starts = directory / "starts"
count = int(starts.read_text()) + 1 if starts.exists() else 1
starts.write_text(str(count))
if config["epochs"] == 13 and count == 1:
    sys.exit("the loss is nan")
(directory / "checkpoints" / "1").mkdir(parents=True, exist_ok=True)
(directory / "result.json").write_text(json.dumps({"test/top1": config["epochs"] / 100}))
"""
COMMAND = (sys.executable, "-c", PROGRAM)


def make(epochs, seeds=()) -> Sweep:
    return Sweep(
        title="Epochs",
        base="configs/digits.py",
        cells=tuple(Cell(str(n), settings={"epochs": n}, paper=70.0 + n) for n in epochs),
        row_name="epochs",
        seeds=seeds,
    )


def carry_out(sweep, directory, jobs=1):
    runs = runner.plan(sweep, sweep.base, sweeps.base_config(sweep), directory)
    said, tables_written = [], []

    def finished():
        tables_written.append([e.mean for e in tables.entries(sweep, runs)])

    failures = runner.carry_out(
        runs, jobs=jobs, say=said.append, finished=finished, command=COMMAND
    )
    return runs, failures, said, tables_written


def starts(runs):
    return [int((run.directory / "starts").read_text()) for run in runs]


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_cell_runs_once_with_its_own_config(tmp_path, jobs):
    runs, failures, _, _ = carry_out(make([1, 2, 3]), tmp_path, jobs)
    assert failures == []
    assert starts(runs) == [1, 1, 1]
    assert [workdir.load_config(run.directory).epochs for run in runs] == [1, 2, 3]
    assert [runner.result(run)["test/top1"] for run in runs] == [0.01, 0.02, 0.03]


def test_a_finished_cell_is_not_run_again(tmp_path):
    carry_out(make([1, 2]), tmp_path)
    runs, _, said, _ = carry_out(make([1, 2, 3]), tmp_path)
    assert starts(runs) == [1, 1, 1]
    assert said[0] == "2 of 3 runs are finished already"


def test_a_failure_is_told_and_tried_again_next_time(tmp_path):
    runs, failures, said, written = carry_out(make([1, 13, 3]), tmp_path)
    log = runs[1].directory / "log.txt"
    assert failures == [f"13: the loss is nan (see {log})"]
    assert said[-1] == "[3/3] 3 finished"
    assert written[-1] == [pytest.approx(1.0), None, pytest.approx(3.0)]
    runs, failures, _, _ = carry_out(make([1, 13, 3]), tmp_path)
    assert failures == []
    assert starts(runs) == [1, 2, 1]


def test_tables_fill_while_it_runs(tmp_path):
    _, _, _, written = carry_out(make([1, 2]), tmp_path)
    assert written == [[1.0, None], [1.0, 2.0]]


def test_seeds_have_directories_of_their_own(tmp_path):
    sweep = make([4], seeds=(0, 1, 2))
    runs, _, _, _ = carry_out(sweep, tmp_path)
    assert [run.name for run in runs] == ["4/seed-0", "4/seed-1", "4/seed-2"]
    assert [workdir.load_config(run.directory).seed for run in runs] == [0, 1, 2]
    assert len(tables.entries(sweep, runs)[0].values) == 3


def test_a_cell_that_means_something_else_now_is_refused(tmp_path):
    carry_out(make([1]), tmp_path)
    config = json.loads((tmp_path / "1" / "config.json").read_text())
    (tmp_path / "1" / "config.json").write_text(json.dumps({**config, "batch_size": 32}))
    with pytest.raises(UserError, match="batch_size = 32"):
        carry_out(make([1]), tmp_path)


def test_an_interrupted_sweep_takes_its_runs_along(tmp_path):
    """SIGTERM while a run goes on: it is asked once to stop, and those waiting do not begin."""
    program = """
import os, pathlib, signal, sys, time
directory = pathlib.Path(sys.argv[1])
(directory / "session").write_text(str(os.getsid(0)))
def stop(number, frame):
    with (directory / "signals").open("a") as file:
        file.write(f"{number} ")
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
(directory / "ready").touch()
while not (directory / "signals").exists():
    time.sleep(0.01)
time.sleep(0.3)
"""
    sweep = make([1, 2])
    runs = runner.plan(sweep, sweep.base, sweeps.base_config(sweep), tmp_path)
    ready = tmp_path / "1" / "ready"

    def terminate():
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    before = signal.getsignal(signal.SIGTERM)
    command = (sys.executable, "-c", program)
    with pytest.raises(TrainingFailed, match="the same command continues"):
        runner.carry_out(runs, jobs=1, say=print, finished=lambda: None, command=command)
    assert (tmp_path / "1" / "signals").read_text().split() == [str(int(signal.SIGTERM))]
    assert not (tmp_path / "2" / "ready").exists()
    # A terminal's Ctrl-C would go to the whole session.
    assert int((tmp_path / "1" / "session").read_text()) != os.getsid(0)
    assert signal.getsignal(signal.SIGTERM) is before
