"""The worked examples of docs/extending.md, run as they are printed."""

import json
import sys
import types
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from cone_jax import training
from cone_jax.data.sources.registry import SOURCES
from cone_jax.models import EncoderOutput
from cone_jax.models.registry import BACKBONES
from cone_jax.modes import MODES, command_line
from cone_jax.objectives import StepInputs
from cone_jax.objectives.registry import OBJECTIVES
from tests.docs import documents
from tests.docs.documents import ROOT

DOCUMENT = ROOT / "docs/extending.md"
BLOCKS = documents.python_blocks(DOCUMENT)


@pytest.fixture
def my_parts(monkeypatch):
    """The module that the page tells its reader to write; registered for one test."""
    module = types.ModuleType("my_parts")
    monkeypatch.setitem(sys.modules, "my_parts", module)
    monkeypatch.chdir(ROOT)
    with mock.patch.dict(SOURCES), mock.patch.dict(BACKBONES), mock.patch.dict(OBJECTIVES):
        for block in BLOCKS:
            exec(compile(block, DOCUMENT.name, "exec"), vars(module))
        yield module


@pytest.fixture
def my_main(my_parts, monkeypatch):
    """Runs the program that the page tells its reader to write; returns its exit code."""
    lines = DOCUMENT.read_text().partition("# my_main.py")[2].partition("\n\n")[0].splitlines()
    program = "\n".join(line.removeprefix("    ") for line in lines[1:])

    def run(*flags: str) -> int:
        monkeypatch.setattr(sys, "argv", ["my_main.py", *flags])
        with pytest.raises(SystemExit) as exit_code:
            exec(program, {})
        return exit_code.value.code

    return run


def test_examples_are_short():
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        assert len(block.splitlines()) < 40


def test_commands_are_understood(my_parts):
    commands = [c.words for c in documents.commands(DOCUMENT) if c.words[1] == "my_main.py"]
    assert len(commands) > 3
    for words in commands:
        command_line.parse(documents.arguments(words[2:]), MODES)


def test_the_focal_loss_is_its_formula(my_parts):
    logits, labels = np.array([[2.0, 0.0, -1.0], [0.0, 0.5, 0.1]]), np.array([0, 2])
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    p = probs[np.arange(2), labels]
    query = EncoderOutput(features=None, embedding=None, logits=jnp.asarray(logits))
    inputs = StepInputs(query, jnp.asarray(labels), jnp.zeros((), int), jnp.zeros((), int))
    loss, _ = my_parts.Focal(gamma=1.5)(inputs)
    np.testing.assert_allclose(loss, np.mean(-np.log(p) * (1 - p) ** 1.5), rtol=1e-5)


def test_all_three_train_and_are_evaluated(my_main, tmp_path):
    rng = np.random.default_rng(0)
    rows = ["file,class,split"]
    for number in range(48):
        label = ("dark", "light")[number % 2]
        pixels = rng.integers(0, 60, (16, 16, 3)) + 190 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{label},{'test' if number >= 32 else 'train'}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    workdir = f"--workdir={tmp_path / 'run'}"
    flags = (
        "--config=configs/folder.py:focal",
        "--config.data.source=listed",
        f"--config.data.path={tmp_path / 'list.csv'}",
        "--config.data.image_size=16",
        "--config.data.train_transforms=()",
        "--config.data.test_transforms=()",
        "--config.model.name=plain_net",
        "--config.model.options.width=4",
        "--config.objective.focal.gamma=1.0",
        "--config.optimizer.reference_batch=0",
        "--config.schedule.warmup_epochs=0.0",
        "--config.evaluation.every_epochs=0.0",
        "--config.batch_size=16",
        "--config.steps=30",
    )
    training.train(command_line.parse(flags, MODES).config, tmp_path / "run")
    assert my_main("--mode=evaluate", workdir) == 0
    assert json.loads((tmp_path / "run/evaluation.json").read_text())["test/top1"] == 1.0
