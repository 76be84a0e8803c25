"""Names from outside, however hostile, never lead a file out of the workdir.

They are names of classes, pictures, evaluators, metrics, sweep cells and data sets, what a foreign
export says of itself, and links in a workdir. Damaged checkpoints are in test_checkpoints.py.
"""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cone_jax.analysis import run_comparison
from cone_jax.data.sources import tfds
from cone_jax.errors import UserError
from cone_jax.models import registry
from cone_jax.modes import command_line
from cone_jax.sweeps.definition import Cell, Sweep, cell_name
from cone_jax.training.run_directory import RunDirectory
from tests.analysis.conftest import one_layer

ROOT = Path(__file__).parents[2]
HOSTILE = ("../../x", "/tmp/x", "a/b", "a\0b", "..", ".")
CLASSES = (
    "<script>alert(1)",
    "[",
    "[bold]x",
    "$x^$",
    "a\nb\a",
    "-rf",
    "%s{}",
    "~",
    "é" * 100,
    "=1+1",
)
# What a run writes again and again; a link of that name must be replaced, not followed.
LINKS = ("config.json", "classes.json", "metrics.jsonl", "timing.jsonl", "evaluation.json")
LINKS += ("report.html", "predictions.csv")


@pytest.fixture(scope="module")
def main():
    spec = importlib.util.spec_from_file_location("main", ROOT / "main.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setitem(registry.BACKBONES, "one_layer", one_layer)
        yield module.main


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Pictures in folders with hostile names, and a workdir full of links to one file."""
    root = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 2)):
        for name in CLASSES:
            folder = root / "data" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"<b>{index}\n.png")
        # Reported by its path, which has [/y] in it: the end of a style in Rich's markup.
        (root / "data" / split / "[" / "y].png").write_bytes(b"damaged")
    (root / "outside").touch()
    (root / "runs" / "run").mkdir(parents=True)
    for name in LINKS:
        (root / "runs" / "run" / name).symlink_to(root / "outside")
    return root


def contents(root, without):
    """What there is below `root`, except below `without`."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if not path.is_relative_to(without)
    }


@pytest.fixture(scope="module")
def run(main, world):
    """The directory of a run that was trained (which reports), evaluated, exported and used."""
    directory = world / "runs" / "run"
    before = contents(world, directory)
    recipe = {
        "data.path": world / "data",
        "data.image_size": 8,
        "data.train_transforms": "('flip',)",
        "data.test_transforms": "('resize(8)','centre_crop(8)')",
        "data.damaged_limit": 0.5,
        "steps": 2,
        "batch_size": 16,
        "model.name": "one_layer",
        "model.options.width": 8,
        "model.head_hidden": 16,
        "model.embedding_dim": 8,
        "bank.size": 32,
        "objective.cone.neighbours": 4,
        "evaluation.batch_size": 16,
    }
    fields = [f"--config.{name}={value}" for name, value in recipe.items()]
    for arguments in (
        ["--config=configs/folder.py", *fields],
        ["--mode=evaluate"],
        ["--mode=export", "--format=orbax"],
        ["--mode=predict", f"--images={world / 'data' / 'test'}"],
    ):
        assert main([f"--workdir={directory}", *arguments]) == 0
    assert contents(world, directory) == before
    return directory


def test_hostile_names_and_links_leave_nothing_outside(run):
    assert not any((run / name).is_symlink() for name in LINKS)
    assert json.loads((run / "classes.json").read_text()) == sorted(CLASSES)
    assert "<script>alert" not in (run / "report.html").read_text()


@pytest.mark.parametrize("flag", ["--step", "--format", "--evaluators"])
def test_flags_are_no_paths(main, run, capsys, flag):
    mode = "export" if flag == "--format" else "evaluate"
    for name in HOSTILE:
        before = contents(run.parent.parent, run / "none")
        value = f"classification(name={name!r})" if flag == "--evaluators" else name
        assert main([f"--workdir={run}", f"--mode={mode}", f"{flag}={value}"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert contents(run.parent.parent, run / "none") == before


@pytest.mark.parametrize("name", [*HOSTILE, "", 7])
def test_an_export_names_no_file_outside_of_it(main, run, tmp_path, capsys, name):
    shutil.copytree(run / "exports" / "orbax", tmp_path / "export")
    about = tmp_path / "export" / "export.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"file": name}))
    picture = next((run.parent.parent / "data").rglob("*.png"))
    shutil.copy(picture, tmp_path / "a.png")
    command = [f"--workdir={tmp_path / 'export'}", "--mode=predict", f"--images={tmp_path}/a.png"]
    assert main(command) == 2
    assert "export.json is damaged" in capsys.readouterr().err
    assert not (tmp_path / "export" / "predictions.csv").exists()


def test_metrics_with_hostile_names_are_compared_inside(run, tmp_path):
    names = ("../../x", "test/../../x", "/x", "a\0b", "..", "n" * 300)
    record = {"step": 1} | dict.fromkeys(names, 0.5)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        shutil.copy(run / "config.json", tmp_path / name)
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    before = contents(tmp_path, tmp_path / "table")
    runs = [RunDirectory.open(tmp_path / name) for name in ("one", "two")]
    run_comparison.write(runs, tmp_path / "table")
    assert contents(tmp_path, tmp_path / "table") == before
    assert len(list((tmp_path / "table" / "figures").glob("*.svg"))) == len(names)


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a\0b", "..", "a/..", "a/../b", "a/.b"])
def test_names_of_tfds_sets_are_no_paths(name, tmp_path):
    with pytest.raises(UserError, match="must be a TFDS name"):
        tfds.find(name, str(tmp_path))


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "a\0b", "<script>"])
def test_cells_of_a_sweep_are_directories_of_it(name):
    assert set(cell_name(Cell(name, name))).isdisjoint("/\0<>")
    assert Path("sweep", cell_name(Cell(name, name))).resolve().parent == Path("sweep").resolve()


@pytest.mark.parametrize("row", ["..", ".", "", "/", "../"])
def test_a_cell_that_is_no_directory_of_its_own_is_refused(row):
    with pytest.raises(UserError, match="without letters or digits"):
        Sweep("t", "configs/digits.py", (Cell(row),), "row")


def test_the_default_workdir_is_below_runs():
    for recipe in ("configs/digits.py:../../x", "../../digits.py:/x", "/a/b/digits.py"):
        made = Path(command_line._default_workdir("train", recipe, None, ""))
        assert made.parent == Path("runs")
        assert made.name not in (".", "..")
