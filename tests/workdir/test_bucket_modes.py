"""What is done with a run in a bucket gives what it gives with a copy of the run on a disk.

Another process holds the locks of both all the while: modes that only read do not look at them.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load as load_tensors

from cone_jax import storage
from cone_jax.data import sources
from cone_jax.workdir.checkpoints import CHECKPOINTS_FOLDER, COMMIT_FILE, DAMAGED_FOLDER
from cone_jax.workdir.integrity import MANIFESTS
from cone_jax.workdir.lock import LOCK_FILE
from cone_jax.workdir.metrics import METRICS_FILE, read_records
from tests import bucket_servers, tiny_run

FLAGS = (
    *tiny_run.FLAGS,
    "--config.steps=8",
    "--config.log_every=2",
    "--config.evaluation.every_epochs=0.1",
    f"--config.checkpoint.every_epochs={2 / 44}",
    "--config.checkpoint.keep=2",
)
HOLDER = """
import contextlib, sys
from cone_jax import storage
from cone_jax.workdir import lock
with contextlib.ExitStack() as stack:
    for directory in sys.argv[1:]:
        stack.enter_context(lock.held(storage.path(directory), print, 600.0))
    print("held", flush=True)
    sys.stdin.read()
"""
SWEEP = """
from cone_jax.sweeps.definition import Cell, Sweep

def get_sweep(options=""):
    cell = Cell("0", settings={"seed": 0})
    return Sweep("One cell", "configs/digits.py", (cell,), "seed")
"""


@pytest.fixture(scope="module")
def url(store):
    with bucket_servers.reached(*store) as url:
        yield url


@pytest.fixture(scope="module")
def trained(url, main):
    """The run in the bucket, before anything else is done with it."""
    assert main([f"--workdir={url}/run", *FLAGS, "--config.profile_steps=(3, 4)"]) == 0
    return storage.path(f"{url}/run")


def copy(source, target):
    """Copies a run to another place, file by file."""
    for file in list(source.rglob("*")):
        place = target / file.relative_to(source).as_posix()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
    return target


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """The run in the bucket and its copy on a disk, while another process holds both."""
    here = copy(trained, tmp_path_factory.mktemp("copies") / "run")
    command = [sys.executable, "-c", HOLDER, str(trained), str(here)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    yield trained, here
    holder.kill()
    holder.communicate()


def contents(directory: Path, folder: str = "") -> dict[str, bytes]:
    below = directory / folder if folder else directory
    files = (file for file in below.rglob("*") if file.is_file())
    return {file.relative_to(below).as_posix(): file.read_bytes() for file in files}


def without_place(text: bytes, directory: Path) -> bytes:
    return text.replace(str(directory).encode(), b"RUN")


def test_the_locks_are_held(runs, main, capsys):
    for run in runs:
        assert main([f"--workdir={run}", *FLAGS]) == 2
        assert f"workdir ({run}) is in use by process" in capsys.readouterr().err


def test_evaluate(runs, main):
    for run in runs:
        assert main(["--mode=evaluate", f"--workdir={run}", "--step=best"]) == 0
    there, here = runs
    assert (there / "evaluation.json").read_bytes() == (here / "evaluation.json").read_bytes()
    assert json.loads((here / "evaluation.json").read_text())
    tables = contents(there, "evaluation"), contents(here, "evaluation")
    assert tables[0].keys() == tables[1].keys()
    for name in (name for name in tables[0] if name.endswith(".csv")):
        assert tables[0][name] == tables[1][name], name


def test_report(runs, main):
    pages = []
    for run in runs:
        (run / "report.html").unlink()
        assert main(["--mode=report", f"--workdir={run}"]) == 0
        pages.append(without_place((run / "report.html").read_bytes(), run))
    assert pages[0] == pages[1]


def test_predict(runs, main, tmp_path):
    source = sources.create("digits", "test")
    for index in range(3):
        Image.fromarray(source[index].image).convert("RGB").save(tmp_path / f"{index}.png")
    for run in runs:
        assert main(["--mode=predict", f"--workdir={run}", f"--images={tmp_path}"]) == 0
    there, here = (run / "predictions.csv" for run in runs)
    assert there.read_bytes() == here.read_bytes()
    assert there.read_text() == here.read_text()  # which changes the ends of lines
    assert len(here.read_text().splitlines()) == 4


def test_export(runs, main):
    for run in runs:
        assert main(["--mode=export", f"--workdir={run}", "--format=safetensors"]) == 0
    there, here = (contents(run, "exports/safetensors") for run in runs)
    assert there.keys() == here.keys()
    (file,) = (name for name in here if name.endswith(".safetensors"))
    tensors = load_tensors(there[file]), load_tensors(here[file])
    assert tensors[0].keys() == tensors[1].keys()
    for name, array in tensors[0].items():
        np.testing.assert_array_equal(array, tensors[1][name], err_msg=name)


def test_compare(runs, main, url, tmp_path):
    there, here = runs
    for runs_compared, output in (
        (f"{there},{here}", f"{url}/compared"),
        (f"{here},{here}", tmp_path),
    ):
        assert main(["--mode=compare", f"--workdirs={runs_compared}", f"--workdir={output}"]) == 0
    found = contents(storage.path(f"{url}/compared"))
    assert found.keys() == contents(tmp_path).keys()
    assert found["comparison.md"] == (tmp_path / "comparison.md").read_bytes()


def test_sweep(trained, main, url, tmp_path, capsys):
    file = tmp_path / "sweep.py"
    file.write_text(SWEEP)
    there = storage.path(f"{url}/swept")
    command = ["--mode=sweep", f"--sweep={file}", *FLAGS]
    assert main([*command, f"--workdir={there}"]) == 0
    (swept,) = (path for path in there.rglob("*") if path.name == METRICS_FILE)
    # On one device instead of the eight of this process.
    for one, other in zip(read_records(trained / METRICS_FILE), read_records(swept), strict=True):
        assert other == pytest.approx(one, rel=1e-3, abs=1e-5)
    here = copy(there, tmp_path / "swept")
    (here / "table.md").unlink()
    capsys.readouterr()
    for place in (there, here):
        assert main([*command, f"--workdir={place}"]) == 0
        assert "1 of 1 runs are finished already" in capsys.readouterr().out
    assert (there / "table.md").read_bytes() == (here / "table.md").read_bytes()


def test_a_trace_of_steps_is_there(trained):
    traces = {Path(name).name: content for name, content in contents(trained, "profile").items()}
    assert json.loads(gzip.decompress(traces["perfetto_trace.json.gz"]))["traceEvents"]
    assert any(name.endswith(".xplane.pb") and content for name, content in traces.items())


def test_only_the_checkpoints_that_are_kept_and_their_manifests_are_there(trained):
    files = contents(trained)
    written = {name.split("/")[1] for name in files if name.startswith(f"{CHECKPOINTS_FOLDER}/")}
    assert {"6", "8"} <= written < {"2", "4", "6", "8"}
    assert {f"{CHECKPOINTS_FOLDER}/{step}/{COMMIT_FILE}" for step in written} <= files.keys()
    manifests = {Path(name).stem for name in files if name.startswith(f"{MANIFESTS}/")}
    assert manifests == written


def test_a_damaged_checkpoint_is_set_aside_and_the_run_goes_on_from_the_older(
    trained, url, main, capsys
):
    run = copy(trained, storage.path(f"{url}/damaged_run"))
    (run / LOCK_FILE).unlink(missing_ok=True)
    before = contents(run, f"{CHECKPOINTS_FOLDER}/8")
    name = max(before, key=lambda name: len(before[name]))
    broken = bytearray(before[name])
    broken[len(broken) // 2] ^= 1
    (run / CHECKPOINTS_FOLDER / "8" / name).write_bytes(bytes(broken))
    (run / "report.html").write_text("of the time before")
    assert main([f"--workdir={run}", *FLAGS]) == 0
    assert "of the time before" not in (run / "report.html").read_text()
    said = " ".join(capsys.readouterr().out.split())
    assert f"checkpoint 8 is damaged ({name} has another checksum" in said
    assert "from step 6" in said, said
    aside = contents(run, f"{DAMAGED_FOLDER}/8")
    assert aside.keys() == before.keys()
    assert aside[name] == bytes(broken)
    assert (run / METRICS_FILE).read_bytes() == (trained / METRICS_FILE).read_bytes()
    assert storage.whole_directories(run / CHECKPOINTS_FOLDER, COMMIT_FILE) == [
        run / CHECKPOINTS_FOLDER / path.name
        for path in storage.whole_directories(trained / CHECKPOINTS_FOLDER, COMMIT_FILE)
    ]
