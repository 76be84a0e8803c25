"""From a run to an export to classes of pictures, as the command line does it."""

import io
import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from cone_jax import models, workdir
from cone_jax.errors import UserError
from cone_jax.interop import pushing
from cone_jax.modes import command_line
from cone_jax.modes.export import _command, export
from cone_jax.modes.predict import predict
from cone_jax.settings import Model, free_fields
from cone_jax.workdir.checkpoints import Checkpoints
from tests.models import random_variables


@pytest.fixture
def run(tiny_config, tmp_path):
    """A directory as training leaves it, with a network that knows nothing."""
    encoder = models.from_settings(Model.read(tiny_config.model), 10)
    workdir.claim(tmp_path / "run", tiny_config)
    with Checkpoints(tmp_path / "run") as checkpoints:
        state = jax.tree.map(jnp.asarray, random_variables.draw(encoder, 8))
        checkpoints.save(5, state, {}, {}, {"test/top1": 0.5})
    return tmp_path / "run"


def call(mode, directory, **flags):
    """What the mode prints."""
    output = io.StringIO()
    defaults = {name: default for name, (default, _) in command_line.FLAGS.items()}
    arguments = command_line.Arguments("", "", None, directory, defaults | flags)
    mode(arguments, Console(file=output, width=200))
    return output.getvalue()


def test_a_run_and_its_export_print_and_write_the_same(run, tmp_path):
    (tmp_path / "photos").mkdir()
    for index in range(2):
        pixels = np.random.default_rng(index).integers(0, 256, (9, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{index}.png")
    (tmp_path / "broken.jpg").write_bytes(b"")
    images = f"{tmp_path / 'photos'},{tmp_path / 'broken.jpg'}"
    assert "step 5; read back, same logits" in call(export, run, format="orbax")
    texts = []
    for directory in (run, run / "exports" / "orbax"):
        texts.append(call(predict, directory, images=images, output=str(tmp_path / "out.jsonl")))
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [len(row["classes"]) for row in rows] == [5, 5, 0]
        first = (
            f"{rows[0]['classes'][0]} {rows[0]['probabilities'][0]:.1%}, {rows[0]['classes'][1]}"
        )
        assert f"photos/0.png: {first}" in texts[-1]
        assert "broken.jpg: cannot be read" in texts[-1]
    assert texts[0] == texts[1]
    call(predict, run, images=str(tmp_path / "photos"))
    assert (run / "predictions.csv").read_text().startswith("path,class_1,probability_1")


def test_mistakes_are_named_before_anything_is_computed(run, tmp_path):
    picture = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(picture)
    for flags, message in (
        ({}, "--images is empty"),
        ({"images": "nowhere.png"}, r"--images \(nowhere.png\) does not exist"),
        ({"images": str(picture), "output": "x.txt"}, r"--output \(x.txt\) must end in .csv or"),
    ):
        with pytest.raises(UserError, match=message):
            call(predict, run, **flags)
    with pytest.raises(UserError, match=r"--format \('tflite'\) is unknown"):
        call(export, run, format="tflite")


def test_the_examples_of_the_documentation_do_the_same(run, tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    predicting, exporting = re.findall(r"```python\n(.*?)```", text.partition("## Use it")[2], re.S)
    assert len(predicting.splitlines()) <= 20
    run.parent.joinpath("runs").mkdir()
    run.rename(tmp_path / "runs" / "birds")
    (tmp_path / "photos").mkdir()
    for name in ("photos/a.png", "photos/b.png", "one.jpg"):
        pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "photos" / "c.png").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    flags = {"images": "photos/,one.jpg", "output": "expected.csv", "step": "best"}
    call(predict, Path("runs/birds"), **flags)
    Path("predicting.py").write_text(predicting)
    runpy.run_path("predicting.py")
    assert Path("birds.csv").read_text() == Path("expected.csv").read_text()
    printed = capsys.readouterr().out
    assert printed.count("%") == 3 * 5
    assert "photos/c.png cannot be read" in printed
    Path("exporting.py").write_text(exporting)
    found = runpy.run_path("exporting.py")
    assert found["logits"].shape == (3, 10)
    assert Path("runs/birds/exports/stablehlo/export.json").exists()


def test_a_run_is_pushed_with_its_story_and_not_without_an_answer(run, monkeypatch):
    pushed = {}

    def keep(folder, reference):
        pushed.update({path.name: path.read_bytes() for path in folder.iterdir()})
        return "https://hub/me/digits"

    monkeypatch.setattr(pushing, "push", keep)
    with pytest.raises(UserError, match="--push asks before it sends anything; add --yes"):
        call(export, run, push="hf://me/digits")
    assert not pushed
    printed = call(export, run, push="hf://me/digits", yes="true")
    assert "pushed: https://hub/me/digits" in printed
    assert "to hf://me/digits, licence unknown: README.md" in printed
    card, config = pushed["README.md"].decode(), json.loads(pushed["config.json"])
    # Its projection head is not in timm.
    assert "architecture" not in config
    assert config["cone_jax"]["name"] == "resnet8"
    assert config["label_names"] == [str(digit) for digit in range(10)]
    assert "The network has parts that timm does not have" in card
    command = next(line.strip() for line in card.splitlines() if "cone --config=digits" in line)
    modes = {"train": ""}
    again = command_line.parse(shlex.split(command)[1:], modes).config
    changed, stored = workdir.flatten(again), workdir.flatten(workdir.load_config(run))
    free = free_fields()
    assert {k: v for k, v in changed.items() if k not in free} == {
        k: v for k, v in stored.items() if k not in free
    }
    with pytest.raises(UserError, match="takes no revision"):
        call(export, run, push="hf://me/digits@v1", yes="true")


def test_the_command_of_a_card_has_no_paths_of_this_machine(tiny_config):
    tiny_config.init_from = "/home/me/secret/weights.pth"
    tiny_config.data.corrections = "/home/me/secret/corrections.csv"
    command = _command(SimpleNamespace(config=tiny_config))
    assert "secret" not in command
    assert "--config.init_from=weights.pth" in command
    assert "--config.data.corrections=corrections.csv" in command


@pytest.mark.parametrize(("answer", "goes"), [("y", True), ("", False), ("n", False)])
def test_a_push_asks_who_sits_at_the_terminal(run, monkeypatch, answer, goes):
    pushed = []
    monkeypatch.setattr(pushing, "push", lambda _, reference: pushed.append(reference))
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    # Of Python's own prompt, not the console's.
    monkeypatch.setattr("builtins.input", sys.stdin.readline)
    printed = call(export, run, push="hf://me/digits")
    said, asked, rest = printed.partition("push? [y/N] ")
    assert asked
    assert "model.safetensors" in said
    assert ("nothing was pushed" in rest) != goes
    assert pushed == ["hf://me/digits"] * goes


def test_the_card_has_the_results_of_the_checkpoint_that_is_pushed(run, monkeypatch):
    cards = []
    monkeypatch.setattr(
        pushing, "push", lambda folder, _: cards.append((folder / "README.md").read_text())
    )
    records = [{"step": 5, "test/top1": 0.625, "train/loss": 1.0}, {"step": 9, "test/top1": 0.25}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    scores = {"step": 5, "robustness/error": 0.375, "robustness/clean_error": None}
    for step, has_scores in ((5, True), (4, False)):
        (run / "evaluation.json").write_text(json.dumps({**scores, "step": step}))
        call(export, run, push="hf://me/digits", yes="true", step="best")
        rows = re.findall(r"^\| (\w+/\w+) \| ([\d.]+) \|$", cards[-1], re.MULTILINE)
        other = [("robustness/error", "0.3750")] if has_scores else []
        assert rows == [("test/top1", "0.6250"), *other]
