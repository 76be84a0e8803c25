"""A disk that fills up or becomes read-only: one line, nothing lost, and the run can go on."""

import contextlib
import errno
import gc
import resource
import subprocess
import time

import jax
import numpy as np
import pytest
from rich.console import Console

from cone_jax import training
from cone_jax.errors import TrainingFailed, UserError
from cone_jax.training import loop
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import Checkpoints
from cone_jax.workdir.metrics import METRICS_FILE

QUIET = Console(quiet=True)
# Orbax leaves behind writes that it did not wait for; what they say is not for a user.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
UNLIMITED = (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_FSIZE)[1])


@pytest.fixture
def config(separable_config):
    separable_config.steps = 9
    separable_config.log_every = 2
    separable_config.checkpoint.every_epochs = 3 / 8
    return separable_config


@pytest.fixture
def during_step(monkeypatch):
    """Does something to the disk while a step is taken, once an earlier one is saved."""
    real_step = loop.train_step

    def install(number, action, saved=None):
        def step(state, batch):
            if int(state.step) + 1 == number:
                deadline = time.monotonic() + 60
                while saved and not saved.is_dir() and time.monotonic() < deadline:
                    time.sleep(0.01)
                action()
            return real_step(state, batch)

        monkeypatch.setattr(loop, "train_step", step)

    yield install
    resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
    gc.collect()  # of tasks that Orbax has given up


@pytest.fixture
def small_disk(tmp_path):
    """A file system of three megabytes; only where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this process may not mount file systems")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def final(config, workdir):
    with Checkpoints(workdir, read_only=True) as checkpoints:
        state = checkpoints.restore(config.steps, Run.open(config).abstract_state()).state
    return jax.tree.leaves(state), (workdir / METRICS_FILE).read_bytes()


def assert_goes_on_as_if_nothing_had_happened(config, workdir, whole):
    training.train(config, workdir, QUIET)
    training.train(config, whole, QUIET)
    leaves, metrics = final(config, workdir)
    expected_leaves, expected_metrics = final(config, whole)
    assert metrics == expected_metrics
    for leaf, expected in zip(leaves, expected_leaves, strict=True):
        np.testing.assert_array_equal(leaf, expected)


# The logs are larger than two kilobytes, the arrays alone than sixty-four.
@pytest.mark.parametrize(("head_hidden", "limit"), [(16, 2**11), (4096, 2**16)])
def test_no_room_for_a_checkpoint(config, tmp_path, during_step, head_hidden, limit):
    """Simulated: the system is told to refuse files beyond a size."""
    config.model.head_hidden = head_hidden
    workdir = tmp_path / "run"
    limit = (limit, UNLIMITED[1])
    during_step(
        5,
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        saved=workdir / "checkpoints" / "3",
    )
    with pytest.raises(TrainingFailed) as failure:
        training.train(config, workdir, QUIET)
    resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
    assert "cannot be written: File too large; checkpoint 3 is intact" in str(failure.value)
    assert "\n" not in str(failure.value)
    during_step(0, print)  # from now on nothing happens
    assert_goes_on_as_if_nothing_had_happened(config, workdir, tmp_path / "whole")


def test_a_disk_that_is_really_full(config, tmp_path, small_disk, during_step):
    ballast = small_disk / "ballast"

    def fill():
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass

    during_step(5, fill, saved=small_disk / "run" / "checkpoints" / "3")
    with pytest.raises(TrainingFailed, match="No space left on device; checkpoint 3 is intact"):
        training.train(config, small_disk / "run", QUIET)
    ballast.unlink()
    during_step(0, print)
    assert_goes_on_as_if_nothing_had_happened(config, small_disk / "run", tmp_path / "whole")


def test_a_read_only_workdir(config, small_disk):
    config.steps = 3
    training.train(config, small_disk / "run", QUIET)
    before = {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}
    # Of the mount alone: files that are still open from earlier tests do not keep it busy.
    subprocess.run(["mount", "-o", "remount,bind,ro", str(small_disk)], check=True)
    with pytest.raises(UserError, match="cannot be written: Read-only file system"):
        training.train(config, small_disk / "other", QUIET)
    with pytest.raises(TrainingFailed, match="Read-only file system; checkpoint 3 is intact"):
        training.train(config, small_disk / "run", QUIET)
    after = {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}
    assert after == before


def test_other_errors_stay_what_they_are(config, tmp_path, during_step):
    def fail():
        raise OSError(errno.ENOENT, "No such file or directory")

    during_step(1, fail)
    with pytest.raises(FileNotFoundError):
        training.train(config, tmp_path, QUIET)
