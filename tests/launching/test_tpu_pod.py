"""The scripts for Cloud TPU, carried out against a gcloud whose workers are local directories.

Everything is real but the machines: the tree is packed and copied, the pins are installed by pip
(they are there already, and nothing may be fetched), and processes train together over Gloo.
"""

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from importlib import metadata
from pathlib import Path

import portpicker
import pytest
from packaging.requirements import Requirement

from cone_jax.workdir.metrics import METRICS_FILE, read_records
from tests import tiny_run
from tests.launching import gcloud_stand_in
from tests.launching.gcloud_stand_in import Slice

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "tpu_pod.sh"
STEPS = 12
FLAGS = (
    "--config=configs/digits.py",
    *tiny_run.FLAGS,
    f"--config.steps={STEPS}",
    "--config.log_every=1",
    "--config.evaluation.every_epochs=0",
    "--config.checkpoint.every_epochs=0.0909091",  # four of 44 steps
)


def write_empty_libtpu(folder: Path) -> None:
    """A wheel by the name and version that `jax[tpu]` asks for, with nothing in it."""
    wanted = [Requirement(line) for line in metadata.requires("jax") or ()]
    pin = next(each for each in wanted if each.name == "libtpu" and "tpu" in str(each.marker))
    version = str(pin.specifier).removeprefix("==").replace("*", "0")
    info = f"libtpu-{version}.dist-info"
    contents = {
        "METADATA": f"Metadata-Version: 2.1\nName: libtpu\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "".join(f"{info}/{name},,\n" for name in ("METADATA", "WHEEL", "RECORD")),
    }
    with zipfile.ZipFile(folder / f"libtpu-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in contents.items():
            wheel.writestr(f"{info}/{name}", text)


class Laptop:
    """Starts scripts/tpu_pod.sh with the stand-in as gcloud, and the slice it speaks of."""

    def __init__(self, folder: Path, script: Path = SCRIPT) -> None:
        self.script = script
        self.cloud = folder / "cloud"
        programs = folder / "bin"
        for each in (self.cloud, programs):
            each.mkdir()
        write_empty_libtpu(folder)
        gcloud = programs / "gcloud"
        gcloud.write_text(
            f'#!/bin/sh\nexec {sys.executable} {gcloud_stand_in.__file__} "$@"\n', encoding="utf-8"
        )
        gcloud.chmod(0o755)
        kept = ("PATH", "JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")
        image = {name: os.environ[name] for name in kept if name in os.environ} | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
            # pip finds every pin here, and looks nowhere else.
            "PYTHONPATH": sysconfig.get_path("purelib"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(folder),
            "PIP_CONFIG_FILE": os.devnull,
            "port": free_port(),
        }
        (self.cloud / "environment.json").write_text(json.dumps(image))
        self.slice = Slice(self.cloud, "pod", "here")
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "STAND_IN_ROOT": str(self.cloud),
            "TPU": "pod",
            "ZONE": "here",
            "TYPE": "v4-16",
            "RETRY": "1",
        }

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen:
        return subprocess.Popen(
            [self.script, *arguments],
            env=self.environment | changes,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, **changes: str) -> tuple[int, str]:
        process = self.start(*arguments, **changes)
        output, _ = process.communicate(timeout=280)
        return process.returncode, output

    def calls(self) -> list[str]:
        file = self.cloud / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)[0] for line in lines]


def free_port() -> int:
    """One of those that JAX takes for a job of SLURM."""
    ports = random.sample(range(gcloud_stand_in.FIRST_PORT, 2**16), 100)
    return next(port for port in ports if portpicker.is_port_free(port))


@pytest.fixture
def laptop(tmp_path):
    made = Laptop(tmp_path)
    yield made
    if made.slice.state != "ABSENT":
        made.slice.delete()


# Ends at once with the code that its flag names; or loses worker 1 when it is first started, and is
# finished when it is started again.
MAIN = """
import os, pathlib, signal, sys, time
end, folder = sys.argv[1].removeprefix("--end="), pathlib.Path(sys.argv[2].split("=")[1])
if end != "lost":
    sys.exit(int(end))
process = os.environ["SLURM_PROCID"]
mark = folder / f"started-{process}"
if mark.exists():
    sys.exit(0)
mark.touch()
if process == "1":
    os.kill(os.getpid(), signal.SIGKILL)
while not (folder / "started-1").exists():
    time.sleep(0.05)
sys.exit("another process of the run has ended")
"""


@pytest.fixture
def other_program(tmp_path):
    """A laptop with a tree in which the program above is main.py."""
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    for name in ("tpu_pod.sh", "tpu_worker.sh"):
        shutil.copy(ROOT / "scripts" / name, tree / "scripts")
    (tree / "main.py").write_text(MAIN)
    (tree / "requirements.txt").write_text(f"jax=={metadata.version('jax')}\n")
    (tree / "requirements-buckets.txt").touch()
    subprocess.run(["git", "init", "--quiet", tree], check=True)
    made = Laptop(tmp_path, tree / "scripts/tpu_pod.sh")
    yield made
    if made.slice.state != "ABSENT":
        made.slice.delete()


def wait_for(process: subprocess.Popen, path: Path) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def test_a_run_goes_on_after_a_preemption_and_ends(laptop, tmp_path):
    workdir = tmp_path / "run"
    process = laptop.start("run", *FLAGS, f"--workdir={workdir}", SPOT="1")
    wait_for(process, workdir / "checkpoints" / "4")
    (laptop.cloud / "no_capacity").touch()  # the zone is empty for a while
    laptop.slice.preempt()
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    records = read_records(workdir / METRICS_FILE)
    assert [record["step"] for record in records if "train/loss" in record] == [
        *range(1, STEPS + 1)
    ]
    assert output.count("batch 32 on 2 x cpu") == 2  # both workers, before and after
    assert f"{STEPS} steps from step " in output
    assert "trying again in 1 s" in output
    assert f"finished at step {STEPS}" in output
    assert laptop.calls().count("create") == 3  # the first, in vain, and after the preemption
    assert laptop.slice.state == "READY"  # deleting it is for the user to decide

    code, output = laptop.run("status")
    assert code == 0
    assert output.count(": finished: ") == 2

    assert laptop.run("delete")[0] == 0
    assert laptop.slice.state == "ABSENT"


def test_a_run_that_fails_by_itself_is_not_started_again(other_program, tmp_path):
    flags = ("--end=1", f"--workdir={tmp_path}", "--config=configs/digits.py")
    code, output = other_program.run("run", *flags, TYPE="v4-8")
    assert code == 1, output
    assert output.count("started on ") == 1


def test_a_run_that_lost_a_worker_is_started_again_on_the_same_slice(other_program, tmp_path):
    flags = ("--end=lost", f"--workdir={tmp_path}", "--config=configs/digits.py")
    code, output = other_program.run("run", *flags)
    assert code == 0, output
    assert output.count("started on ") == 4
    assert "the run was cut off; continuing" in output
    assert other_program.calls().count("create") == 1


GOOD = ("--config=configs/digits.py", "--workdir=gs://bucket/run")


def test_a_dry_run_prints_every_command_and_gives_none(laptop):
    code, output = laptop.run(
        "--dry-run", "run", *GOOD, "--config.data.x=a b", SPOT="1", CREATE="--network=n"
    )
    assert code == 0
    assert not laptop.calls()
    lines = [shlex.split(line) for line in output.splitlines() if line.startswith("gcloud")]
    assert [line[4] for line in lines] == ["describe", "create", "scp", "ssh", "ssh", "ssh", "ssh"]
    assert {"--spot", "--network=n", "--version=tpu-ubuntu2204-base"} <= set(lines[1])
    # On the worker the flags are what they were here.
    [command] = [word for word in lines[5] if word.startswith("--command=")]
    assert shlex.split(command.removeprefix("--command="))[3:] == [*GOOD, "--config.data.x=a b"]


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        (("fly",), {}, "'fly' is not a command"),
        ((), {}, "'' is not a command"),
        (("status",), {"TPU": ""}, "TPU is not set"),
        (("status",), {"ZONE": ""}, "ZONE is not set"),
        (("create",), {"TYPE": ""}, "to make it set TYPE"),
        (("create",), {"TYPE": "v9-8"}, "TYPE (v9-8) has no runtime version"),
        (("start", "--config=x.py"), {}, "--workdir ('') must be a bucket"),
        (("run", "--config=x.py", "--workdir=runs/a"), {}, "--workdir ('runs/a') must be"),
        (("run", "--workdir=gs://b/run"), {}, "--config is missing"),
        (("run", "--workdir=gs://b/run", "--config=/my.py"), {}, "--config (/my.py) must be"),
    ],
)
def test_wrong_input_is_one_line(laptop, arguments, changes, words):
    code, output = laptop.run(*arguments, **changes)
    assert code == 2
    [line] = output.splitlines()
    assert line.startswith("error: ")
    assert words in line
    assert set(laptop.calls()) <= {"describe"}


def test_a_slice_that_cannot_be_made_ends_the_first_attempt(laptop):
    (laptop.cloud / "no_capacity").touch()
    code, output = laptop.run("run", *GOOD)
    assert code == 1
    assert "RESOURCE_EXHAUSTED" in output
    assert laptop.calls() == ["describe", "create"]
