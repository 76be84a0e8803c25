"""Wrong data sets, runs, checkpoints, pictures and exports: one line, exit code 2, nothing touched.

Wrong configs and flags are in modes/test_command_line.py.
"""

import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cone_jax import training
from cone_jax.modes import command_line
from tests import tiny_run

ROOT = Path(__file__).parent.parent
TINY = ("--config.steps=1", *tiny_run.FLAGS)
FOLDER = ("--config.data.source=image_folder", "--config.data.path={}/")
ARRAY = ("--config.data.source=array", "--config.data.path={}/")
PACKED = ("--config.data.source=packed", "--config.data.path={}/")
TFDS = ("--config.data.source=tfds", "--config.data.path={}/empty")


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (1, 2, 3)).save(path)


def arrays(path, images=None, labels=None, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = np.zeros((64, 8, 8, 3), np.uint8) if images is None else images
    labels = np.arange(64) % 4 if labels is None else labels
    np.savez(path, images=images, labels=labels, **more)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Everything that the rows below refer to."""
    root = tmp_path_factory.mktemp("world")
    config = command_line.parse([f"--workdir={root / 'run'}", *TINY], {"train": ""}).config
    training.train(config, root / "run")  # without the report that main makes
    (root / "empty").mkdir()
    (root / "configs").symlink_to(ROOT / "configs")
    (root / "file").write_text("not an image, not a folder\n")
    for name in ("good.png", "notes.txt"):
        (root / "mixed").mkdir(exist_ok=True)
        picture(root / "mixed" / name) if name.endswith("png") else None
    picture(root / "one_each" / "owl" / "a.png")
    picture(root / "one_each" / "tit" / "a.png")
    picture(root / "hollow" / "owl" / "a.png")
    (root / "hollow" / "tit").mkdir()
    for split, classes in (("train", ("owl",)), ("test", ("owl", "tit"))):
        for name in classes:
            picture(root / "strange" / split / name / "a.png")
    for name in ("owl", "tit"):
        for index in range(20):
            damaged = root / "damaged" / name / f"{index}.png"
            damaged.parent.mkdir(parents=True, exist_ok=True)
            damaged.write_bytes(b"no picture")
    # By its header a picture of 30,000 x 30,000 pixels.
    picture(root / "bomb.png")
    data = bytearray((root / "bomb.png").read_bytes())
    data[16:24] = struct.pack(">II", 30_000, 30_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    (root / "bomb.png").write_bytes(data)
    for name in (b"owl", b"\xff"):
        for index in range(20):
            picture(root / "latin" / os.fsdecode(name) / f"{index}.png")
    arrays(root / "float.npz", images=np.zeros((64, 8, 8, 3)))
    arrays(root / "negative.npz", labels=np.arange(64) % 4 - 1)
    arrays(root / "short.npz", labels=np.arange(63) % 4)
    arrays(root / "gap.npz", labels=np.arange(64) % 4 * 2)
    np.savez(root / "other.npz", pictures=np.zeros(3))
    np.savez(root / "objects.npz", images=np.array([{"a": 1}], object), labels=np.zeros(1, int))
    (root / "broken.npz").write_bytes(b"PK\x03\x04 not really")
    (root / "weights.safetensors").write_bytes(b"\xff" * 64)
    (root / "weights.pth").write_bytes(b"no weights")
    (root / "weights.dat").write_bytes(b"")
    for name, text in (("broken_config", "{"), ("list_config", "[1, 2]")):
        (root / name).mkdir()
        (root / name / "config.json").write_text(text)
    shutil.copytree(root / "run", root / "no_checkpoint")
    shutil.rmtree(root / "no_checkpoint" / "checkpoints")
    shutil.copytree(root / "run", root / "other_bank")
    config = json.loads((root / "other_bank" / "config.json").read_text())
    config["bank"]["size"] = 96
    (root / "other_bank" / "config.json").write_text(json.dumps(config))
    return root


def contents(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} | {
        path: None for path in root.rglob("*") if path.is_dir()
    }


# What is asked for, {} being the folder of the fixture, and what the answer must name.
ROWS = [
    # Data sets
    ([FOLDER[0]], ["data.path is empty"]),
    ([FOLDER[0], FOLDER[1] + "missing"], ["data.path", "missing", "not a folder; give"]),
    ([FOLDER[0], FOLDER[1] + "file"], ["data.path", "/file)", "not a folder; give"]),
    ([FOLDER[0], FOLDER[1] + "empty"], ["data.path", "holds no class folders; expected"]),
    ([FOLDER[0], FOLDER[1] + "one_each"], ["one_each", "nothing is left to test on"]),
    ([FOLDER[0], FOLDER[1] + "hollow"], ["hollow/tit", "holds no image", "add images or remove"]),
    ([FOLDER[0], FOLDER[1] + "strange"], ["test/tit", "train lacks", "add it to train"]),
    ([FOLDER[0], FOLDER[1] + "latin"], ["'\\udcff'", "not UTF-8", "rename it"]),
    ([*TINY, FOLDER[0], FOLDER[1] + "damaged"], ["data: none of 36", "can be read; give JPEG"]),
    ([ARRAY[0]], ["data.path is empty"]),
    (
        [ARRAY[0], ARRAY[1] + "missing.npz"],
        ["data.path", "missing.npz", "neither an .npz file", "give one"],
    ),
    ([ARRAY[0], ARRAY[1] + "float.npz"], ["float64", "must be uint8"]),
    ([ARRAY[0], ARRAY[1] + "negative.npz"], ["negative.npz", "label -1", "0..2"]),
    ([ARRAY[0], ARRAY[1] + "short.npz"], ["short.npz", "[63]", "one for each of the 64 images"]),
    ([ARRAY[0], ARRAY[1] + "gap.npz"], ["gap.npz", "class 1", "without gaps"]),
    (
        [ARRAY[0], ARRAY[1] + "other.npz"],
        ["other.npz", "no array 'labels'", "must hold images and labels"],
    ),
    ([ARRAY[0], ARRAY[1] + "objects.npz"], ["objects.npz", "plain arrays; write it with np.savez"]),
    ([ARRAY[0], ARRAY[1] + "broken.npz"], ["broken.npz", "plain arrays; write it with np.savez"]),
    ([PACKED[0]], ["data.path is empty"]),
    ([PACKED[0], PACKED[1] + "empty"], ["data.path", "not a completely packed folder", "pack it"]),
    ([*TFDS, "--config.data.name=no_such_set"], ["data.name ('no_such_set')", "not prepared"]),
    ([*TFDS, "--config.data.name=../x"], ["data.name ('../x')", "TFDS name"]),
    (["--config.data.train_split=trian"], ["data.train_split", "'trian'", "known names: train"]),
    (
        ["--config.data.holdout=1.5", *ARRAY[:1], ARRAY[1] + "gap.npz"],
        ["data.holdout (1.5)", "less than 1"],
    ),
    # Weights to start from
    (["--config.init_from={}/missing.pth"], ["init_from", "missing.pth", "does not exist; give"]),
    (["--config.init_from={}/weights.dat"], ["init_from", "weights.dat", ".safetensors or .pth"]),
    (["--config.init_from={}/weights.safetensors"], ["init_from", "weights.safetensors", "again"]),
    (
        ["--config.init_from={}/weights.pth"],
        ["init_from", "weights.pth", "(UnpicklingError); save its state dict"],
    ),
    (
        ["--config.init_from={}/empty"],
        ["init_from", "neither the directory of a run nor an export; give"],
    ),
    # Runs and checkpoints
    (["--mode=evaluate", "--workdir={}/empty"], ["empty", "config.json"]),
    (
        ["--mode=evaluate", "--workdir={}/broken_config"],
        ["broken_config/config.json", "restore it"],
    ),
    (["--mode=evaluate", "--workdir={}/list_config"], ["list_config/config.json", "restore it"]),
    (["--mode=evaluate", "--workdir={}/no_checkpoint"], ["no checkpoint", "--mode=train"]),
    (["--mode=evaluate", "--workdir={}/run", "--step=7"], ["--step (7)", "there are: 1"]),
    (["--mode=evaluate", "--workdir={}/run", "--step=newest"], ["--step ('newest')", "latest"]),
    (["--mode=evaluate", "--workdir={}/run", "--evaluators=knnn"], ["evaluators (knnn)", "knn(k"]),
    (["--mode=report", "--workdir={}/empty"], ["empty"]),
    (["--mode=analyze", "--workdir={}/empty"], ["empty"]),
    (["--mode=compare", "--workdirs={}/run"], ["--workdirs ('", "/run')", "two runs"]),
    (["--mode=compare", "--workdirs={}/run,{}/empty"], ["empty"]),
    (["--mode=preview", "--workdir={}/run", "--step=2"], ["--step ('2')", "1 to 1"]),
    ([*TINY, "--workdir={}/run", "--config.seed=5"], ["seed = 0", "says 5"]),
    ([*TINY, "--workdir={}/file"], ["workdir", "/file)", "cannot be written", "choose another"]),
    (
        [*TINY, "--workdir={}/other_bank", "--config.bank.size=96"],
        ["checkpoint 1", "[64", "[96", "bank.size"],
    ),
    # Pictures and exports
    (["--mode=predict", "--workdir={}/run"], ["--images is empty"]),
    (
        ["--mode=predict", "--workdir={}/run", "--images={}/no.png"],
        ["--images", "no.png", "does not exist; give"],
    ),
    (["--mode=predict", "--workdir={}/run", "--images={}/empty"], ["empty", "holds no .jpg"]),
    (
        ["--mode=predict", "--workdir={}/run", "--images={}/damaged"],
        ["--images", "none of the pictures", "tit/9.png (not a JPEG, PNG", "give JPEG"],
    ),
    (
        ["--mode=predict", "--workdir={}/run", "--images={}/bomb.png"],
        ["bomb.png", "30000 x 30000 pixels, the limit is 178956970"],
    ),
    (
        ["--mode=predict", "--workdir={}/run", "--images={}/mixed", "--output={}/x.txt"],
        ["x.txt", ".csv or .jsonl"],
    ),
    (
        ["--mode=predict", "--workdir={}/empty", "--images={}/mixed"],
        ["empty", "nor an export", "--workdir"],
    ),
    (["--mode=export", "--workdir={}/run", "--format=onxx"], ["--format ('onxx')", "onnx"]),
    (["--mode=export", "--workdir={}/run", "--step=3"], ["--step (3)"]),
    (["--mode=export", "--workdir={}/no_checkpoint"], ["no checkpoint"]),
    # Modes that need something else
    (["--mode=pack"], ["--mode=pack", "data.source ('digits')", "'image_folder'"]),
    (["--mode=pack", FOLDER[0], FOLDER[1] + "one_each"], ["--mode=pack needs --output"]),
    (["--mode=prepare"], ["--mode=prepare", "data.source ('digits')", "'tfds'"]),
    (["--mode=sweep"], ["--sweep is not given", "configs/sweeps/"]),
    (
        ["--mode=sweep", "--sweep=configs/sweeps/nothing.py"],
        ["--sweep (configs/sweeps/nothing.py)", "not a file", "configs/sweeps/bank_size.py"],
    ),
    (["--mode=sweep", "--sweep=configs/sweeps/bank_size.py", "--jobs=0"], ["--jobs (0)", "from 1"]),
    (["--coordinator=localhost:1"], ["--num_processes"]),
]


@pytest.mark.parametrize(("arguments", "parts"), ROWS, ids=lambda value: " ".join(value)[:60])
def test_wrong_input_is_one_line_and_nothing_is_touched(
    refusal, world, monkeypatch, arguments, parts
):
    monkeypatch.chdir(world)  # where a default of the program would lead to
    before = contents(world)
    arguments = [argument.replace("{}", str(world)) for argument in arguments]
    if not any(argument.startswith(("--workdir=", "--workdirs=")) for argument in arguments):
        arguments = [f"--workdir={world / 'new'}", *arguments]
    captured = refusal(arguments)
    for part in parts:
        assert part in captured.err
    assert contents(world) == before


def test_there_are_enough_of_them():
    import ast

    tree = ast.parse((ROOT / "tests/modes/test_command_line.py").read_text())
    rows = max(len(node.elts) for node in ast.walk(tree) if isinstance(node, ast.List))
    assert rows + len(ROWS) >= 60
