"""Which chart shows what."""

import numpy as np

from cone_jax.analysis import training_curves
from cone_jax.training import train_log
from tests.tiny_run import write_run


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
    charts = training_curves.charts_of(names, train_log.declared_metrics())
    shown = [name for _, metrics in charts for name in metrics]
    assert sorted(shown) == sorted(set(names) - {"time/seconds"})
    by_key = {chart.key: metrics for chart, metrics in charts}
    assert by_key["loss"] == ["train/loss", "train/loss_ce", "train/loss_new_term"]
    assert by_key["train_something_else"] == ["train/something_else"]
    assert len(by_key) == len(charts)


def test_charts_show_the_values_in_their_unit(tmp_path):
    records = [{"step": s, "test/top1": s / 10, "train/top1": s / 20} for s in (1, 2, 3)]
    run = write_run(tmp_path, records)
    ((chart, names),) = training_curves.charts_of(run.metric_names(), run.declared_metrics)
    figure = training_curves.draw(run, chart, names)
    drawn = {line.get_label(): line for line in figure.axes[0].get_lines()}
    np.testing.assert_allclose(drawn["test top-1"].get_ydata(), [10, 20, 30])
    np.testing.assert_allclose(drawn["train top-1"].get_xdata(), [1, 2, 3])
    assert figure.axes[0].get_ylabel() == "accuracy, %"
