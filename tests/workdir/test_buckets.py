"""Runs in buckets of GCS and S3: the same numbers as on a disk, whatever fails between."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks import kill_test
from cone_jax import storage
from cone_jax.__main__ import main
from cone_jax.errors import UserError
from cone_jax.interop import files
from cone_jax.workdir.checkpoints import CHECKPOINTS_FOLDER, COMMIT_FILE
from cone_jax.workdir.lock import LOCK_FILE
from cone_jax.workdir.metrics import TIMING_FILE
from tests import bucket_servers, tiny_run

FLAGS = (
    *tiny_run.FLAGS,
    "--config.steps=24",
    "--config.log_every=5",
    "--config.evaluation.every_epochs=0.2",
    "--config.checkpoint.every_epochs=0.1",
)


@pytest.fixture
def proxy(store):
    """A way to the store that can fail."""
    proxy = bucket_servers.FaultyProxy(store[1])
    yield proxy
    proxy.close()


@pytest.fixture
def url(store, proxy):
    with bucket_servers.reached(store[0], proxy.port) as url:
        yield url


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run on a disk, left alone."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    assert "finished" in start(directory).communicate()[0]
    return directory


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


def one_in_twenty_fails(number):
    kinds = ("cut", "429 Too Many Requests", "503 Service Unavailable")
    return kinds[number // 20 % 3] if number % 20 == 3 else ""


def kill(moment, directory, said):
    """Starts the run, and kills it in the first such moment."""
    earlier = lock_of(directory)
    said.write_text("")
    process = subprocess.Popen(
        [sys.executable, kill_test.__file__, "--announce", said, f"--workdir={directory}", *FLAGS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def has_come():
        if moment == "starting":
            return lock_of(directory) != earlier
        if moment == "writing":  # the first files of the first checkpoint
            return any((directory / CHECKPOINTS_FOLDER).rglob("*"))
        return moment in said.read_text()

    while not has_come():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def lock_of(directory):
    path = directory / LOCK_FILE
    return json.loads(path.read_text())["token"] if path.exists() else ""


def test_killed_and_with_connections_that_fail_a_run_equals_one_on_a_disk(
    url, proxy, whole, tmp_path
):
    directory = storage.path(f"{url}/run")
    for moment in ("starting", "compiling", "writing", "evaluating"):
        kill(moment, directory, tmp_path / "said")
    proxy.fault = one_in_twenty_fails
    said, _ = start(directory).communicate()
    proxy.fault = lambda number: ""
    assert "finished at step 24" in said
    assert said.count("takes over from") == 1
    assert proxy.failed > 3
    assert said.count("does not answer") in (1, 2)  # 2: of a minute without any on a slow machine
    assert not kill_test.differences(whole, directory, 24)
    assert {path.name for path in checkpoints(directory)} == {
        path.name for path in checkpoints(whole)
    }
    for name in ("config.json", "classes.json", TIMING_FILE):
        assert (directory / name).exists(), name
    assert any(path.name.startswith("events.") for path in directory.iterdir())
    assert not (directory / "lock.json").exists()


def test_a_store_that_stays_away_ends_the_run_which_names_a_checkpoint_and_goes_on_later(
    url, proxy
):
    directory = storage.path(f"{url}/away")
    flags = ("--config.checkpoint.store_timeout=2", "--config.steps=2000")
    process = start(directory, *flags)
    wait_for_a_checkpoint(directory, process)
    seen = {path.name for path in checkpoints(directory)}
    while {path.name for path in checkpoints(directory)} <= seen:  # until one is known for sure
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.2)
    proxy.fault = lambda number: "cut"
    said, _ = process.communicate(timeout=300)
    proxy.fault = lambda number: ""
    assert process.returncode == 1
    assert "is out of reach" in said
    named = re.search(r"checkpoint (\d+) is intact(?:, or else (\d+))?; start again with", said)
    assert "Traceback" not in said
    process = start(directory, *flags)
    try:
        gone_on = next((line for line in process.stdout if "steps from step " in line), "")
    finally:
        process.kill()
        process.communicate()
    assert int(gone_on.rpartition(" ")[2].replace(",", "")) >= min(
        map(int, filter(None, named.groups()))
    )


@pytest.mark.parametrize(
    ("place", "status", "words"),
    [
        ("nobody/run", "", "the bucket nobody does not exist"),
        ("bucket/run", "401 Unauthorized", "no credentials"),
        ("bucket/run", "403 Forbidden", "permission denied"),
        ("", "", "names no bucket"),
    ],
)
def test_what_a_user_can_mend_is_one_line_before_anything_is_compiled(
    url, proxy, place, status, words, capsys, tmp_path
):
    proxy.fault = lambda number: status
    place = url.partition("bucket")[0] + place
    for flags in (
        (f"--workdir={place}", *FLAGS),
        ("--mode=evaluate", f"--workdir={place}"),
        ("--mode=export", f"--workdir={tmp_path}", f"--output={place}"),
        (f"--workdir={tmp_path}", *FLAGS, f"--config.init_from={place}"),
    ):
        assert main(flags) == 2
        said = capsys.readouterr()
        assert words in said.err
        assert f"({place})" in said.err
        assert said.err.count("\n") == 1
        assert "compiling" not in said.out


@pytest.mark.parametrize(("scheme", "package", "extra"), [("gs", "gcsfs", "gcs"), ("s3",) * 3])
def test_a_missing_extra_is_named(scheme, package, extra, monkeypatch):
    package = {"s3": "s3fs"}.get(package, package)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf'{package} is not .* "cone-jax\[{extra}\]"'):
        storage.path(f"{scheme}://bucket/run")


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_without_credentials_a_run_is_refused_in_one_line(url, capsys, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert main([f"--workdir={url}/run", *FLAGS]) == 2
    said = capsys.readouterr().err
    assert "there are no credentials for it" in said
    assert said.count("\n") == 1


def test_of_a_checkpoint_only_the_network_is_fetched(url, proxy):
    place = storage.path(f"{url}/state")
    params = {"kernel": np.arange(1000.0, dtype=np.float32)}
    bank = {"embeddings": np.random.default_rng(0).random(2**21, np.float32)}
    files.write_orbax(place, {"params": params, "bank": bank})
    before = proxy.fetched
    found = files.read_orbax(place)
    assert found.keys() == {"params"}
    np.testing.assert_array_equal(found["params"]["kernel"], params["kernel"])
    assert proxy.fetched - before < 2**20
