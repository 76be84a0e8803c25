"""Two processes over Gloo equal one, stop together, and one goes on where two stopped.

And one that is killed again and again equals one that is left alone.
"""

import importlib.machinery
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import jax
import numpy as np
import portpicker
import pytest

from cone_jax import distributed, storage
from cone_jax.errors import UserError
from cone_jax.training.run import Run
from cone_jax.workdir import load_config, lock
from cone_jax.workdir.checkpoints import Checkpoints
from cone_jax.workdir.metrics import METRICS_FILE, read_records
from tests import bucket_servers, processes

ROOT = Path(__file__).parent.parent.parent
DRIVER = Path(__file__).parent / "process_driver.py"


def start_processes(workdir, count, devices, stop=(0, 0)):
    return processes.start(DRIVER, workdir, count=count, devices=devices, after=stop)


def run_processes(*arguments, **options):
    return processes.outputs(start_processes(*arguments, **options))


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    """The directory of a run of one process."""
    workdir = tmp_path_factory.mktemp("one")
    run_processes(workdir, count=1, devices=4)
    return workdir


@pytest.fixture
def records(left_alone):
    return read_records(left_alone / METRICS_FILE)


def final_state(workdir):
    """Every array, and the number of the best checkpoint."""
    run = Run.open(load_config(workdir))
    with Checkpoints(workdir, best_metric="test/top1", read_only=True) as checkpoints:
        state = checkpoints.restore(12, run.abstract_state()).state
        return jax.tree.leaves(state), checkpoints.best_step()


def assert_equal_records(actual, expected):
    assert [record["step"] for record in actual] == list(range(1, 13))
    for one, other in zip(expected, actual, strict=True):
        assert other == pytest.approx(one, rel=1e-3, abs=1e-5)


def test_two_processes_equal_one_and_one_goes_on_after_two(tmp_path, records):
    # SIGTERM reaches the second process only; both stop after the same step.
    outputs = run_processes(tmp_path / "two", count=2, devices=2, stop=(0, 5))
    stops = [re.search(r"interrupted at (\d+)", output)[1] for output in outputs]
    assert stops[0] == stops[1]
    assert 5 <= int(stops[0]) < 12
    assert (tmp_path / "two" / "checkpoints" / stops[0]).is_dir()
    assert "images/s" not in outputs[1]

    run_processes(tmp_path / "two", count=1, devices=4)
    assert_equal_records(read_records(tmp_path / "two" / METRICS_FILE), records)


@pytest.mark.parametrize("store", ["gcs", "s3"])
def test_two_processes_write_one_run_in_a_bucket_and_hold_its_lock_together(
    store, left_alone, records
):
    with bucket_servers.running(store) as port, bucket_servers.reached(store, port) as url:
        workdir = storage.path(f"{url}/two")
        processes = start_processes(str(workdir), count=2, devices=2)
        try:
            while not (workdir / lock.LOCK_FILE).exists():
                assert all(process.poll() is None for process in processes), processes
                time.sleep(0.05)
            refusal = rf"in use by process {processes[0].pid} on"
            with pytest.raises(UserError, match=refusal), lock.held(workdir, print, 60.0):
                pass
            for process in processes:
                _, errors = process.communicate(timeout=280)
                assert process.returncode == 0, errors
        finally:
            for process in processes:
                process.kill()
        assert not (workdir / lock.LOCK_FILE).exists()
        assert_equal_records(read_records(workdir / METRICS_FILE), records)
        arrays, best = final_state(workdir)
    expected_arrays, expected_best = final_state(left_alone)
    assert best == expected_best
    for actual, expected in zip(arrays, expected_arrays, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


# Process 0 is also the one that the others meet at; its loss makes JAX abort them.
@pytest.mark.parametrize(("killed", "count_after"), [(0, 1), (1, 2)])
def test_when_one_process_is_killed_the_other_ends_and_the_run_can_go_on(
    tmp_path, records, killed, count_after
):
    stop = (-6, 0) if killed == 0 else (0, -6)
    processes = start_processes(tmp_path, count=2, devices=2, stop=stop)
    other = processes[1 - killed]
    _, errors = processes[killed].communicate(timeout=280)
    assert processes[killed].returncode == -signal.SIGKILL, errors
    began = time.monotonic()
    _, errors = other.communicate(timeout=120)
    assert time.monotonic() - began < 60
    assert other.returncode == 1, errors
    assert "failed: another process of the run has ended" in errors

    assert (tmp_path / "checkpoints" / "4").is_dir()
    output, *_ = run_processes(tmp_path, count=count_after, devices=4 // count_after)
    assert "from step 4" in output
    assert_equal_records(read_records(tmp_path / METRICS_FILE), records)


def test_killed_again_and_again_equals_left_alone(tmp_path, left_alone):
    """By SIGKILL: before the first step is compiled, in a checkpoint write, in an evaluation."""
    kills = 0
    for moment in ("config.json", "checkpoints/*tmp*", "evaluating"):
        [process] = start_processes(tmp_path, count=1, devices=4)
        while process.poll() is None and not any(tmp_path.glob(moment)):
            time.sleep(0.002)
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    run_processes(tmp_path, count=1, devices=4)
    assert kills == 3
    assert (tmp_path / METRICS_FILE).read_bytes() == (left_alone / METRICS_FILE).read_bytes()
    leaves, best = final_state(tmp_path)
    expected_leaves, expected_best = final_state(left_alone)
    assert best == expected_best
    for leaf, expected in zip(leaves, expected_leaves, strict=True):
        np.testing.assert_array_equal(leaf, expected)
    assert not any(tmp_path.glob("checkpoints/*tmp*"))


def test_an_unexpected_error_in_one_process_ends_both():
    program = (
        "import runpy\n"
        "from cone_jax import distributed, modes\n"
        "def run(arguments, console):\n"
        "    if arguments.flags['process_id'] == '1':\n"
        "        raise RuntimeError('a bug')\n"
        "    distributed.barrier('where the other never comes')\n"
        "modes.MODES['train'] = modes.MODES['train']._replace(run=run)\n"
        "runpy.run_path('main.py', run_name='__main__')\n"
    )
    flags = [f"--coordinator=127.0.0.1:{portpicker.pick_unused_port()}", "--num_processes=2"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, *flags, f"--process_id={index}"],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    assert "failed: another process of the run has ended" in errors[0]
    assert "RuntimeError: a bug" in errors[1]


def test_an_abort_by_a_thread_of_jax_leaves_time_to_tell_the_error():
    program = (
        "import ctypes, os, threading, time\n"
        "from cone_jax import distributed\n"
        "distributed._delay_aborts()\n"
        "threading.Thread(target=ctypes.CDLL(None).abort).start()\n"
        "time.sleep(1)\n"
        "os._exit(1)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 1


@pytest.mark.parametrize(
    ("count", "process", "words"),
    [("", "0", "num_processes"), ("2", "", "process_id"), ("2", "2", "below --num_processes")],
)
def test_incomplete_flags_are_refused(count, process, words):
    with pytest.raises(UserError, match=words):
        distributed.initialize("127.0.0.1:1", count, process)


@pytest.mark.parametrize(
    ("environment", "several"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, False),  # one task with all GPUs
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"}, True),  # a slice on GKE
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, False),
        ({"TPU_PROCESS_ADDRESSES": "a:8476,b:8476"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),  # a pod by itself
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
        ({"TPU_ML_PLATFORM": "JAX"}, True),  # a Cloud TPU VM
        ({"TPU_ML_PLATFORM": "JAX", "TPU_SKIP_MDS_QUERY": "1"}, False),
    ],
)
def test_launchers_are_recognised_by_their_environment(environment, several, monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", types.ModuleType("kubernetes"))
    sys.modules["kubernetes"].__spec__ = importlib.machinery.ModuleSpec("kubernetes", None)
    monkeypatch.setattr(distributed, "_hosts_of_tpu_slice", lambda: "10.0.0.2,10.0.0.3")
    assert distributed.in_cluster(environment) is several


@pytest.mark.parametrize("tasks", ["1", "2"])
def test_tasks_of_slurm_join_each_other_without_flags(tasks, monkeypatch):
    joined = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **k: joined.append((a, k)))
    monkeypatch.setattr(distributed, "_delay_aborts", lambda: None)  # of this process
    monkeypatch.setenv("SLURM_NTASKS", tasks)
    distributed.initialize()
    # JAX finds the coordinator by itself; a death is noticed within the minute that is promised.
    expected = [((), {"heartbeat_timeout_seconds": distributed.HEARTBEAT_TIMEOUT})]
    assert joined == (expected if tasks == "2" else [])
    assert distributed.HEARTBEAT_TIMEOUT < 60


def test_a_pod_without_the_package_that_finds_the_others_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(UserError, match=r"jax\[k8s\]"):
        distributed.in_cluster({"KUBERNETES_SERVICE_HOST": "h", "JOB_COMPLETION_INDEX": "1"})
