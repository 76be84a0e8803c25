"""The program that trains one cell: here as a function, and as the process it is."""

import json

from cone_jax import workdir
from cone_jax.models import registry
from cone_jax.sweeps import Cell, runner, train_cell
from cone_jax.sweeps.runner import CellRun
from cone_jax.workdir.metrics import METRICS_FILE, latest_values
from tests.analysis.conftest import one_layer, small_config, write_digits


def test_a_cell_is_trained_and_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(registry.BACKBONES, "one_layer", one_layer)
    config = small_config(write_digits(tmp_path / "data"))
    directory = tmp_path / "cell"
    workdir.claim(directory, config)
    assert train_cell.main(directory) == 0
    result = json.loads((directory / train_cell.RESULT_FILE).read_text())
    assert result == latest_values(directory / METRICS_FILE)
    assert result["step"] == 8
    assert "<h1>cell</h1>" in (directory / "report.html").read_text()


def test_a_process_that_cannot_train_says_why(tmp_path):
    """The real command; its data are not there."""
    config = small_config(tmp_path / "nowhere")
    config.model.name = "resnet8"
    run = CellRun(Cell("x"), None, tmp_path / "x", config)
    failures = runner.carry_out([run], jobs=1, say=print, finished=lambda: None)
    log = tmp_path / "x" / train_cell.LOG_FILE
    assert failures == [f"x: {log.read_text().strip()} (see {log})"]
    assert f"data.path ({tmp_path / 'nowhere'})" in failures[0]
    assert not (tmp_path / "x" / train_cell.RESULT_FILE).exists()
