"""Notebooks run from top to bottom, and come without results of somebody's machine."""

import json
import re

import pytest

from cone_jax.modes import MODES, command_line
from tests.docs import notebooks
from tests.docs.notebooks import NOTEBOOKS

HELP = {name: mode.help for name, mode in MODES.items()}
# What is true after the last cell, in the notebook's own names.
TRUE_AFTERWARDS = {
    "first_run": "assert metrics['train/loss_ce'] < 1.5 and result.path.name == 'zero.png'",
    "own_photographs": "assert len(worst) == 5 and result.classes[0] in shapes",
    "own_loop": "assert min(results.values()) > 0.8 and len(results) == 3, results",
    "compile_report": "assert report['fits'] and sum(parts.values()) == report['memory']['needed']",
    "detector": "assert len(drawn) == 32 and 'test/box_ap' in metrics",
}


def name(path):
    return path.stem


def test_there_is_a_fact_about_each_notebook():
    assert {path.stem for path in NOTEBOOKS} == TRUE_AFTERWARDS.keys()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_notebooks_run(path, tmp_path):
    result = notebooks.run(path, tmp_path, TRUE_AFTERWARDS[path.stem])
    assert result.returncode == 0, result.stdout[-1000:] + result.stderr[-3000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_notebooks_hold_no_results_and_begin_alike(path):
    """A title, a badge that opens this very notebook in Colab, and a cell that installs."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in content["cells"]:
        assert cell["cell_type"] == "markdown" or not cell["outputs"]
        assert cell.get("execution_count") is None
    first, second, *_ = notebooks.cells(path)
    assert re.match(r"# \w", first.source)
    assert f"/blob/main/notebooks/{path.name})" in first.source
    assert 'find_spec("cone_jax") is None:\n    %pip install' in second.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_commands_of_notebooks_are_understood(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in notebooks.commands(path):
        assert words[0] == "cone"
        command_line.parse(words[1:], HELP)
