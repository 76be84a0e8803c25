"""A run's records, and which chart shows what."""

import json
from pathlib import Path

import numpy as np
import pytest

from cone_jax import config as config_lib
from cone_jax import workdir
from cone_jax.analysis import training_curves
from cone_jax.analysis.recorded_run import RecordedRun
from cone_jax.errors import UserError
from cone_jax.workdir.metrics import METRICS_FILE, TIMING_FILE


def write_run(directory: Path, records, timing=(), config=None) -> RecordedRun:
    workdir.claim(directory, config or config_lib.default())
    for name, lines in ((METRICS_FILE, records), (TIMING_FILE, timing)):
        (directory / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RecordedRun.open(directory)


def test_series(tmp_path):
    run = write_run(
        tmp_path / "birds",
        [{"step": 5, "train/loss": 2.0}, {"step": 10, "train/loss": 1.0, "test/top1": 0.5}],
        [{"step": 10, "time/seconds": 7.0}],
    )
    assert run.name == "birds"
    assert run.last_step == 10
    assert run.metric_names() == ["train/loss", "test/top1", "time/seconds"]
    assert run.series("train/loss").steps.tolist() == [5, 10]
    assert run.series("train/loss").values.tolist() == [2.0, 1.0]
    assert run.last("test/top1") == 0.5
    assert run.last("time/seconds") == 7.0
    assert run.last("nothing") is None
    assert run.series("nothing").steps.size == 0


def test_a_run_without_records(tmp_path):
    run = write_run(tmp_path, [])
    assert run.last_step == 0
    assert run.metric_names() == []


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(UserError, match=r"config\.json"):
        RecordedRun.open(tmp_path)


def test_every_metric_is_in_one_chart():
    names = [
        "train/loss",
        "train/loss_ce",
        "train/loss_new_term",
        "test/loss",
        "train/purity",
        "train/something_else",
        "time/seconds",
        "time/images_per_second",
    ]
    charts = list(training_curves.charts_of(names))
    shown = [name for _, metrics in charts for name in metrics]
    assert sorted(shown) == sorted(set(names) - {"time/seconds"})
    by_key = {chart.key: metrics for chart, metrics in charts}
    assert by_key["loss"] == ["train/loss", "train/loss_ce", "train/loss_new_term"]
    assert by_key["train_something_else"] == ["train/something_else"]
    assert len(by_key) == len(charts)


def test_charts_show_the_values_in_their_unit(tmp_path):
    records = [{"step": s, "test/top1": s / 10, "train/top1": s / 20} for s in (1, 2, 3)]
    run = write_run(tmp_path, records)
    ((chart, names),) = training_curves.charts_of(run.metric_names())
    figure = training_curves.draw(run, chart, names)
    drawn = {line.get_label(): line for line in figure.axes[0].get_lines()}
    np.testing.assert_allclose(drawn["test top-1"].get_ydata(), [10, 20, 30])
    np.testing.assert_allclose(drawn["train top-1"].get_xdata(), [1, 2, 3])
    assert figure.axes[0].get_ylabel() == "accuracy, %"
