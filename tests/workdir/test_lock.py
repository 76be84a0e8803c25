"""A workdir has one writer, on a disk and in a bucket."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from cone_jax import storage
from cone_jax.errors import TrainingFailed, UserError
from cone_jax.workdir import lock
from tests import bucket_servers

HOLDER = """
import sys, time
from cone_jax import storage
from cone_jax.workdir import lock
with lock.held(storage.path(sys.argv[1]), print, 600.0):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["disk", "gcs", "s3"])
def directory(request, tmp_path):
    if request.param == "disk":
        yield tmp_path / "run"
        return
    with (
        bucket_servers.running(request.param) as port,
        bucket_servers.reached(request.param, port) as url,
    ):
        yield storage.path(f"{url}/run")


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT", 0.05)


def someone_elsewhere(**fields):
    holder = {"token": "theirs", "pid": 7, "host": "elsewhere", "boot": "", "beat": 0}
    return {**holder, "since": "2026-11-18 09:00:00+00:00", **fields}


def test_a_second_start_is_refused_and_a_killed_run_taken_over_at_once(directory):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        refusal = f"in use by process {holder.pid} on {socket.gethostname()} since 20.*taken over"
        with pytest.raises(UserError, match=refusal), lock.held(directory, print, 600.0):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
    # It is not reaped yet: a dead process all the same.
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    said, began = [], time.monotonic()
    with lock.held(directory, said.append, 600.0):
        assert json.loads((directory / lock.LOCK_FILE).read_text())["pid"] == os.getpid()
    assert time.monotonic() - began < lock.LEASE
    assert len(said) == 1
    assert f"takes over from process {holder.pid}" in said[0]
    assert not (directory / lock.LOCK_FILE).exists()
    holder.communicate()


def test_one_process_cannot_hold_it_twice(tmp_path):
    held, again = lock.held(tmp_path, print, 600.0), lock.held(tmp_path, print, 600.0)
    with held, pytest.raises(UserError, match="in use"), again:
        pass
    with lock.held(tmp_path, print, 600.0):
        pass


def test_a_lock_whose_creation_was_not_confirmed_is_held(tmp_path, monkeypatch):
    """The answer of a store was lost, and the request, made again, found the file of the first."""
    create, said, answers = storage.create, [], iter([False])
    monkeypatch.setattr(
        lock.storage, "create", lambda *given: create(*given) and next(answers, True)
    )
    with lock.held(tmp_path, said.append, 600.0):
        assert [path.name for path in tmp_path.iterdir()] == [lock.LOCK_FILE]
    assert not said


def test_who_is_silent_on_another_machine_is_taken_over_whatever_its_clock_says(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(lock, "LEASE", 2.5)
    own_number = someone_elsewhere(pid=os.getpid(), since="2999-01-01 00:00:00+00:00")
    (tmp_path / lock.LOCK_FILE).write_text(json.dumps(own_number))
    said, began = [], time.monotonic()
    with lock.held(tmp_path, said.append, 600.0):
        assert time.monotonic() - began >= lock.LEASE
    assert "on elsewhere since 2999" in said[0]


def test_who_counts_on_another_machine_is_alive(tmp_path):
    done = threading.Event()

    def count():
        beat = 0
        while not done.wait(0.1):
            beat += 1
            with storage.replacing(tmp_path / lock.LOCK_FILE) as unfinished:
                unfinished.write_text(json.dumps(someone_elsewhere(pid=2**22 + 1, beat=beat)))

    thread = threading.Thread(target=count)
    thread.start()
    try:
        while not (tmp_path / lock.LOCK_FILE).exists():
            time.sleep(0.01)
        with pytest.raises(UserError, match="on elsewhere"), lock.held(tmp_path, print, 600.0):
            pass
    finally:
        done.set()
        thread.join()


def wait_for_failure(held, meanwhile=lambda: None):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        meanwhile()
        held.check()
        time.sleep(0.02)


def test_a_run_that_was_taken_over_ends_and_leaves_the_lock_to_the_other(tmp_path, hurried):
    def take_over():  # again, where a heartbeat was just being written
        with storage.replacing(tmp_path / lock.LOCK_FILE) as unfinished:
            unfinished.write_text(json.dumps(someone_elsewhere()))

    taken = pytest.raises(TrainingFailed, match="taken over by process 7 on elsewhere")
    with lock.held(tmp_path, print, 600.0) as held, taken:
        wait_for_failure(held, take_over)
    assert json.loads((tmp_path / lock.LOCK_FILE).read_text())["token"] == "theirs"


def test_a_run_that_was_stopped_asks_before_it_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT", 600.0)
    with lock.held(tmp_path, print, 600.0) as held:
        held.check()
        monkeypatch.setattr(lock, "LEASE", 0.0)
        held.check()
        (tmp_path / lock.LOCK_FILE).write_text(json.dumps(someone_elsewhere()))
        with pytest.raises(TrainingFailed, match="taken over by process 7 on elsewhere"):
            held.check()


def test_a_store_that_stays_away_ends_the_run(tmp_path, hurried, monkeypatch):
    def away(path):
        raise ConnectionError("503 Service Unavailable")

    with lock.held(tmp_path, print, 0.3) as held:
        monkeypatch.setattr(lock.storage, "replacing", away)
        with pytest.raises(TrainingFailed, match=r"0\.3 s \(503 .*no checkpoint yet; start again"):
            wait_for_failure(held)
