"""Runs in a bucket of Google's emulator: the same numbers as on a disk, whatever fails between."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from cone_jax import storage
from cone_jax.__main__ import main
from cone_jax.errors import UserError
from cone_jax.workdir.checkpoints import CHECKPOINTS_FOLDER, COMMIT_FILE
from cone_jax.workdir.metrics import METRICS_FILE, TIMING_FILE
from tests import bucket_servers, tiny_run

FLAGS = (
    *tiny_run.FLAGS,
    "--config.steps=24",
    "--config.log_every=5",
    "--config.evaluation.every_epochs=0.2",
    "--config.checkpoint.every_epochs=0.1",
)


@pytest.fixture(scope="module")
def server():
    with bucket_servers.running("gcs") as port:
        yield port


@pytest.fixture
def proxy(server):
    """A way to the server that can fail."""
    proxy = bucket_servers.FaultyProxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def url(proxy):
    with bucket_servers.reached("gcs", proxy.port) as url:
        yield url


def start(workdir, *flags):
    return subprocess.Popen(
        [sys.executable, "main.py", f"--workdir={workdir}", *FLAGS, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def checkpoints(directory):
    return storage.whole_directories(directory / CHECKPOINTS_FOLDER, COMMIT_FILE)


def wait_for_a_checkpoint(directory, process):
    while not checkpoints(directory):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.2)


def one_in_seven_fails(number):
    kinds = ("cut", "429 Too Many Requests", "503 Service Unavailable")
    return kinds[number // 7 % 3] if number % 7 == 3 else ""


def test_killed_and_with_connections_that_fail_a_run_equals_one_on_a_disk(url, proxy, tmp_path):
    directory = storage.path(f"{url}/run")
    process = start(directory)
    wait_for_a_checkpoint(directory, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    proxy.fault = one_in_seven_fails
    said, _ = start(directory).communicate()
    proxy.fault = lambda number: ""
    assert "finished at step 24" in said
    assert proxy.failed > 10
    assert "does not answer" in said
    whole = tmp_path / "whole"
    assert "finished" in start(whole).communicate()[0]
    assert (directory / METRICS_FILE).read_bytes() == (whole / METRICS_FILE).read_bytes()
    assert {path.name for path in checkpoints(directory)} == {
        path.name for path in checkpoints(whole)
    }
    for name in ("config.json", "classes.json", TIMING_FILE, "report.html"):
        assert (directory / name).exists(), name
    assert any(path.name.startswith("events.") for path in directory.iterdir())
    assert not (directory / "lock.json").exists()


def test_a_store_that_stays_away_ends_the_run_and_the_last_checkpoint_is_named(url, proxy):
    directory = storage.path(f"{url}/away")
    process = start(directory, "--config.checkpoint.store_timeout=2", "--config.steps=2000")
    wait_for_a_checkpoint(directory, process)
    seen = {path.name for path in checkpoints(directory)}
    while {path.name for path in checkpoints(directory)} <= seen:  # until one is known for sure
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.2)
    proxy.fault = lambda number: "cut"
    said, _ = process.communicate(timeout=120)
    proxy.fault = lambda number: ""
    assert process.returncode == 1
    assert "is out of reach" in said
    assert re.search(
        r"checkpoint \d+ is intact(, or else \d+)?; start again with the same flags", said
    )
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("workdir", "status", "words"),
    [
        ("gs://nobody/run", "", "the bucket nobody does not exist"),
        ("gs://bucket/run", "401 Unauthorized", "no credentials"),
        ("gs://bucket/run", "403 Forbidden", "permission denied"),
        ("gs://", "", "names no bucket"),
    ],
)
def test_what_a_user_can_mend_is_one_line_before_anything_is_compiled(
    url, proxy, workdir, status, words, capsys
):
    proxy.fault = lambda number: status
    assert main([f"--workdir={workdir}", *FLAGS]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert "compiling" not in said.out


@pytest.mark.parametrize(("scheme", "package", "extra"), [("gs", "gcsfs", "gcs"), ("s3",) * 3])
def test_a_missing_extra_is_named(scheme, package, extra, monkeypatch):
    package = {"s3": "s3fs"}.get(package, package)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf'{package} is not .* "cone-jax\[{extra}\]"'):
        storage.path(f"{scheme}://bucket/run")


def test_s3_holds_files_but_no_checkpoints(capsys):
    with bucket_servers.running("s3") as port, bucket_servers.reached("s3", port) as url:
        path = storage.path(f"{url}/exports/notes.txt")
        with storage.replacing(path) as unfinished:
            unfinished.write_text("kept")
        assert path.read_text() == "kept"
        assert main([f"--workdir={url}/run", *FLAGS]) == 2
    assert "cannot hold checkpoints" in capsys.readouterr().err
