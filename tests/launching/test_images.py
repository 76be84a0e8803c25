"""The image and the manifests: what they hold is enough, and their checks find mistakes."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from cone_jax.modes import MODES, command_line

ROOT = Path(__file__).parent.parent.parent
JOB_SETS = sorted((ROOT / "scripts").glob("jobset_*.yaml"))


def load_checker():
    spec = importlib.util.spec_from_file_location(
        "check_manifests", ROOT / "scripts/check_manifests.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pod(job_set):
    return job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def copied():
    """Sources and targets of the Dockerfile's COPY lines."""
    lines = re.findall(r"^COPY (.+) (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(lines) > 3
    return [(source, target) for sources, target in lines for source in sources.split()]


def test_what_the_image_holds_is_enough_to_start(tmp_path):
    for source, target in copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, tmp_path / target, symlinks=True)
        else:
            (tmp_path / target).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / source, tmp_path / target)
    flags = ["--mode=preview", "--config=configs/digits.py", f"--workdir={tmp_path}/run"]
    result = subprocess.run(
        ["bash", "scripts/container.sh", *flags],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run/preview.png").exists()


def test_the_image_gets_what_it_copies_and_nothing_else():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {name for name, _ in copied()}


@pytest.mark.parametrize(("code", "expected"), [(0, 143), (1, 1)])
def test_a_container_that_was_stopped_has_not_finished(tmp_path, code, expected):
    """Or Kubernetes would take a preempted pod, which saves itself, for one that is done."""
    (tmp_path / "main.py").write_text(
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        ["bash", ROOT / "scripts/container.sh"],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable},
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == expected


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_container_ends_as_its_run_does(tmp_path, code):
    (tmp_path / "main.py").write_text(f"raise SystemExit({code})")
    result = subprocess.run(
        ["bash", ROOT / "scripts/container.sh"],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable},
    )
    assert result.returncode == code


@pytest.mark.parametrize("file", JOB_SETS, ids=lambda path: path.stem)
def test_the_flags_of_a_manifest_are_understood(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    [container] = pod(yaml.safe_load(file.read_text()))["containers"]
    flags = [flag.replace("$(PROCESS_ID)", "0") for flag in container["args"]]
    assert command_line.parse(flags, {name: mode.help for name, mode in MODES.items()})


@pytest.mark.parametrize("file", JOB_SETS, ids=lambda path: path.stem)
def test_the_data_of_a_manifest_have_a_volume_to_be_staged_to(file):
    """Or they go to the disk of a node, which need not have the room."""
    spec = pod(yaml.safe_load(file.read_text()))
    [container] = spec["containers"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "data"]
    assert f"--config.data.stage={mount['mountPath']}" in container["args"]
    [volume] = [each for each in spec["volumes"] if each["name"] == "data"]
    claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert int(claim["resources"]["requests"]["storage"].removesuffix("Gi")) * 2**30 > 144e9


@pytest.mark.parametrize("file", JOB_SETS, ids=lambda path: path.stem)
def test_every_host_of_a_manifest_is_counted_the_same(file):
    job_set = yaml.safe_load(file.read_text())
    job = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["parallelism"] == job["completions"]
    [container] = pod(job_set)["containers"]
    limits = container["resources"]["limits"]
    if "google.com/tpu" in limits:
        width, height = pod(job_set)["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
        assert int(width) * int(height) == job["completions"] * int(limits["google.com/tpu"])
    else:
        assert f"--num_processes={job['completions']}" in container["args"]
        name, first = job_set["metadata"]["name"], job_set["spec"]["replicatedJobs"][0]["name"]
        assert container["args"][0].startswith(f"--coordinator={name}-{first}-0-0.{name}:")


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("kind", "Job", "$.kind"),
        ("spec.replicatedJobs.0.replica", 1, "$.spec.replicatedJobs[0]"),
        ("spec.failurePolicy.rules.0.action", "Fail", "$.spec.failurePolicy.rules[0].action"),
        ("spec.replicatedJobs.0.template.spec.backoffLimits", 0, "spec: "),
        (
            "spec.replicatedJobs.0.template.spec.template.spec.containers.0.arg",
            [],
            "containers.0: ",
        ),
        ("spec.replicatedJobs.0.template.spec.parallelism", "two", "spec.parallelism: "),
    ],
)
def test_a_wrong_manifest_is_found(path, value, place):
    manifest = yaml.safe_load(JOB_SETS[0].read_text())
    checker = load_checker()
    assert not list(checker.problems(manifest))
    *way, last = path.split(".")
    inner = manifest
    for key in way:
        inner = inner[int(key) if key.isdecimal() else key]
    inner[last] = value
    [problem] = checker.problems(manifest)
    assert place in problem
