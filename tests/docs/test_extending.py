"""The worked examples of docs/extending.md, run as they are printed."""

import csv
import json
import re
import sys
import tomllib
import types
from pathlib import Path
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from cone_jax.data.sources.registry import SOURCES
from cone_jax.evaluation.registry import KINDS
from cone_jax.models import EncoderOutput
from cone_jax.models.registry import BACKBONES
from cone_jax.modes import MODES, command_line
from cone_jax.objectives import StepInputs
from cone_jax.objectives.objective import OBJECTIVES
from tests.docs import documents
from tests.docs.documents import ROOT

DOCUMENT = ROOT / "docs/extending.md"
BLOCKS = documents.python_blocks(DOCUMENT)
REGISTRIES = {
    "cone_jax.models": BACKBONES,
    "cone_jax.objectives": OBJECTIVES,
    "cone_jax.sources": SOURCES,
    "cone_jax.evaluators": KINDS,
}


@pytest.fixture(scope="module")
def my_parts():
    """The module that the page tells its reader to write; registered for these tests."""
    module = types.ModuleType("my_parts")
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(OBJECTIVES):
        patch.setitem(sys.modules, "my_parts", module)
        with mock.patch.dict(SOURCES), mock.patch.dict(BACKBONES), mock.patch.dict(KINDS):
            for block in BLOCKS:
                exec(compile(block, DOCUMENT.name, "exec"), vars(module))
            yield module


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Dark and light pictures, and the list of them."""
    place = tmp_path_factory.mktemp("extending")
    rng = np.random.default_rng(0)
    rows = ["file,class,split"]
    for number in range(48):
        label = ("dark", "light")[number % 2]
        pixels = rng.integers(0, 60, (16, 16, 3)) + 190 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
        rows.append(f"{number}.png,{label},{'test' if number >= 32 else 'train'}")
    (place / "list.csv").write_text("\n".join(rows))
    return place


@pytest.fixture(scope="module")
def run(my_parts, main, place) -> Path:
    """A run of everything on the page, trained by the command."""
    directory = place / "run"
    flags = (
        "--config=folder:focal",
        f"--workdir={directory}",
        "--config.data.source=listed",
        f"--config.data.path={place / 'list.csv'}",
        "--config.data.image_size=16",
        "--config.data.train_transforms=()",
        "--config.data.test_transforms=()",
        "--config.model.name=plain_net",
        "--config.model.options.width=4",
        "--config.objective.focal.gamma=1.0",
        "--config.optimizer.reference_batch=0",
        "--config.schedule.warmup_epochs=0.0",
        "--config.evaluation.evaluators=('classification', 'worst_classes')",
        "--config.evaluation.every_epochs=0.0",
        "--config.checkpoint.best_metric=worst/accuracy",
        "--config.batch_size=16",
        "--config.steps=30",
    )
    assert main(["train", *flags]) == 0
    return directory


def test_examples_are_short():
    assert len(BLOCKS) == 4
    for block in BLOCKS:
        assert len(block.splitlines()) < 40


def test_commands_are_understood(my_parts):
    commands = [c.words for c in documents.commands(DOCUMENT) if c.words[0] == "cone"]
    commands = [words for words in commands if "mine" not in " ".join(words)]
    assert len(commands) > 3
    for words in commands:
        if not words[1].endswith("recipe.py"):
            command_line.parse(documents.arguments(words[1:]), MODES)


def test_entry_points_name_what_the_code_registers(my_parts):
    text = DOCUMENT.read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    project = tomllib.loads(block)
    groups = project["project"]["entry-points"]
    assert groups.keys() == REGISTRIES.keys()
    for group, entries in groups.items():
        assert len(entries) == 1
        for name, value in entries.items():
            module, _, attribute = value.partition(":")
            assert [module] == project["tool"]["setuptools"]["py-modules"]
            assert REGISTRIES[group][name] is getattr(my_parts, attribute)


def test_the_focal_loss_is_its_formula(my_parts):
    logits, labels = np.array([[2.0, 0.0, -1.0], [0.0, 0.5, 0.1]]), np.array([0, 2])
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    p = probs[np.arange(2), labels]
    query = EncoderOutput(features=None, embedding=None, logits=jnp.asarray(logits))
    inputs = StepInputs(query, jnp.asarray(labels), jnp.zeros((), int), jnp.zeros((), int))
    loss, _ = my_parts.Focal(gamma=1.5)(inputs)
    np.testing.assert_allclose(loss, np.mean(-np.log(p) * (1 - p) ** 1.5), rtol=1e-5)


def test_all_of_them_train_and_are_evaluated(run, main):
    trained = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert trained["test/top1"] == trained["worst/accuracy"] == 1.0
    assert 0.0 <= trained["train/easy"] <= 1.0
    assert main(["evaluate", f"--workdir={run}", "--step=best"]) == 0
    scores = json.loads((run / "evaluation.json").read_text())
    assert scores["test/top1"] == scores["worst/accuracy"] == 1.0


@pytest.mark.parametrize("export_format", ["safetensors", "stablehlo"])
def test_the_network_is_exported_and_classifies_pictures(run, main, place, export_format):
    """As a run and as an export the network says the same."""
    assert main(["export", f"--workdir={run}", f"--format={export_format}"]) == 0
    told = []
    for model in (run, run / "exports" / export_format):
        output = place / f"{model.name}.csv"
        images = ",".join(str(place / f"{number}.png") for number in (40, 41))
        flags = (f"--workdir={model}", f"--images={images}", f"--output={output}")
        assert main(["predict", *flags]) == 0
        told.append(list(csv.reader(output.read_text().splitlines())))
    assert [row[1] for row in told[0][1:]] == ["dark", "light"]
    assert [row[:2] for row in told[0]] == [row[:2] for row in told[1]]


def test_the_report_shows_them(run, main):
    assert main(["report", f"--workdir={run}"]) == 0
    page = (run / "report.html").read_text()
    for text in ("plain_net", "focal", "worst/accuracy", "listed", "Easy samples"):
        assert text in page
