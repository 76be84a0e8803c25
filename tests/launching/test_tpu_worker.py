"""What scripts/tpu_worker.sh makes of the ends that a run can come to."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# Ends as its flag says: with that code, or when a signal comes.
MAIN = """
import signal, sys, time
print("step 1", flush=True)
if sys.argv[1].isdecimal():
    sys.exit(int(sys.argv[1]))
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print("ready", flush=True)
while not stopped:
    time.sleep(0.02)
if sys.argv[1] == "as_main_does":
    from cone_jax import __main__ as program, errors, modes
    def run(*_):
        raise errors.Interrupted(3)
    modes.MODES["train"] = modes.MODES["train"]._replace(run=run)
    sys.exit(program.main(["--config=configs/digits.py", "--workdir=x"]))
"""


@pytest.fixture
def worker(tmp_path):
    """Starts the script in a tree whose main.py is the one above."""
    tree = tmp_path / "cone_jax"
    (tree / ".venv/bin").mkdir(parents=True)
    (tree / ".venv/bin/python").symlink_to(sys.executable)
    (tree / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/tpu_worker.sh", tree / "scripts")
    (tree / "main.py").write_text(MAIN)
    (tree / "configs").symlink_to(ROOT / "configs")
    packages = sysconfig.get_path("purelib")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{packages}"}
    started = []

    def call(*arguments):
        result = subprocess.run(
            ["bash", tree / "scripts/tpu_worker.sh", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if arguments[0] == "start" and result.returncode == 0:
            started.append(int((tmp_path / "cone_jax_run/pid").read_text()))
        return result

    call.record = tmp_path / "cone_jax_run"
    yield call
    for process in started:
        if Path(f"/proc/{process}").exists():
            os.killpg(process, signal.SIGKILL)


def wait_until_ready(worker):
    while "ready" not in (worker.record / "log").read_text():
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("code", "state"), [(0, "finished"), (1, "failed 1"), (2, "failed 2"), (134, "failed 134")]
)
def test_following_ends_with_the_code_of_the_run(worker, code, state):
    worker("start", str(code))
    followed = worker("follow")
    assert followed.returncode == code
    assert followed.stdout == "step 1\n"
    assert f": {state}: step 1" in worker("status").stdout
    assert worker("check").returncode == 0  # it ended by itself


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_was_ended_from_outside_is_to_go_on(worker, number):
    """By the machine going down: SIGTERM to all of it, or nothing but the end."""
    worker("start", "as_main_does")
    wait_until_ready(worker)
    os.killpg(int((worker.record / "pid").read_text()), number)
    followed = worker("follow")
    assert followed.returncode == 75
    assert worker("check").returncode == 75
    if number == signal.SIGTERM:
        assert "everything is saved" in followed.stdout
        assert ": interrupted: " in worker("status").stdout


def test_a_run_that_was_stopped_on_request_is_not(worker):
    worker("start", "as_main_does")
    wait_until_ready(worker)
    assert ": running since " in worker("status").stdout
    stopped = worker("stop")
    assert ": stopped: " in stopped.stdout
    assert worker("follow").returncode == 0
    assert worker("check").returncode == 0
    assert "nothing runs" in worker("stop").stdout


def test_a_start_may_be_repeated_but_not_with_other_flags(worker):
    assert "started" in worker("start", "forever").stdout
    assert "runs already" in worker("start", "forever").stdout
    other = worker("start", "2")
    assert other.returncode == 2
    assert other.stderr.startswith("error: a run with other flags is on this slice: forever;")


def test_the_log_of_an_earlier_start_is_kept_and_not_followed(worker):
    worker("start", "0")
    assert worker("follow").stdout == "step 1\n"
    worker("start", "0")
    assert worker("follow").stdout == "step 1\n"
    assert (worker.record / "log").read_text() == "step 1\n" * 2


def test_nothing_started_is_said(worker):
    for command in ("follow", "check"):
        result = worker(command)
        assert result.returncode == 2
        assert "nothing was started" in result.stderr
