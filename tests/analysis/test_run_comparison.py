"""Runs side by side: grouped by what they compute, with the statistics of the standard library."""

import csv
import statistics

import numpy as np
import pytest
from scipy import stats

from cone_jax import config as config_lib
from cone_jax import workdir
from cone_jax.analysis import figure_style, figures, run_comparison
from cone_jax.analysis.figures import Line
from cone_jax.analysis.snapshot import Snapshot
from cone_jax.evaluation.accuracy import interval_text
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir.metrics import METRICS_FILE
from tests.tiny_run import write_run

A, B = [0.91, 0.93, 0.95], [0.88, 0.91, 0.91]
TOP1 = {"cone": [0.91, 0.93, 0.95], "cross_entropy": [0.88, 0.90]}


def make_run(directory, objective="cone", seed=0, top1=0.9, **fields):
    config = config_lib.default()
    config_lib.use_objective(config, objective)
    config.seed = seed
    config.update_from_flattened_dict(fields)
    records = [
        {"step": 10, "train/loss": 2.0 + seed},
        {"step": 20, "train/loss": 1.0 + seed, "test/top1": top1, "test/loss": 1 - top1},
    ]
    if seed == 1:
        records.insert(1, {"step": 15, "train/loss": 9.0})  # a step the others lack
    return write_run(directory, records, [{"step": 20, "time/seconds": 60.0}], config)


@pytest.fixture
def runs(tmp_path):
    return [
        make_run(tmp_path / f"{name}-{seed}", name, seed, top1)
        for name, values in TOP1.items()
        for seed, top1 in enumerate(values)
    ]


def test_seeds_are_one_group(runs):
    groups = run_comparison.group_runs(runs)
    assert [group.name for group in groups] == ["cone", "cross_entropy"]
    assert [len(group.runs) for group in groups] == [3, 2]


def test_mean_and_deviation(runs):
    for group in run_comparison.group_runs(runs):
        summary = run_comparison.summarise(group, "test/top1")
        assert summary.values == tuple(TOP1[group.name])
        assert summary.mean == pytest.approx(statistics.mean(TOP1[group.name]))
        assert summary.deviation == pytest.approx(statistics.stdev(TOP1[group.name]))
        assert run_comparison.summarise(group, "nothing") is None


def test_curves_average_over_common_steps(runs):
    line = run_comparison.mean_line(run_comparison.group_runs(runs)[0], "train/loss")
    assert line.steps.tolist() == [10, 20]
    np.testing.assert_allclose(line.values, [3.0, 2.0])
    np.testing.assert_allclose(line.deviation, [1.0, 1.0])


def test_a_single_run_has_no_deviation(runs):
    groups = run_comparison.group_runs([runs[0], runs[3]])
    assert run_comparison.summarise(groups[0], "test/top1").deviation is None
    assert run_comparison.mean_line(groups[0], "train/loss").deviation is None
    _, rows = run_comparison.table(groups)
    assert rows[0][:3] == ["cone", "1", "91.00%"]


def test_an_accuracy_of_a_single_run_has_its_interval(runs):
    """Where the number of test pictures is known: that of several seeds has its deviation."""
    for run in (*runs[:2], runs[4]):
        labels = np.zeros(360, np.int32)
        Snapshot(20, ("a", "b"), {}, labels, labels).save(run.path)
    cells = {}
    for chosen in (runs[:2], [runs[0]], [runs[3]]):
        _, rows = run_comparison.table(run_comparison.group_runs(chosen))
        cells[len(chosen), chosen[0].name] = rows[0]
    assert cells[1, "cone-0"][2:4] == [f"91.00% ({interval_text(0.91, 360)})", "0.0900"]
    assert cells[2, "cone-0"][2] == "92.00% ± 1.41%"
    assert cells[1, "cross_entropy-0"][2] == "88.00%", "nobody knows how many pictures"


def test_names_say_what_differs(tmp_path):
    def names(*fields):
        made = [make_run(tmp_path / str(i), **each) for i, each in enumerate(fields)]
        return [group.name for group in run_comparison.group_runs(made)]

    assert names({"bank.size": 512}, {"bank.size": 1024}) == ["size 512", "size 1024"]


def test_where_to_find_data_and_how_fast_to_read_it_make_no_group(tmp_path):
    made = [
        make_run(tmp_path / "a", **{"data.path": "here", "data.threads": 1}),
        make_run(tmp_path / "b", **{"data.path": "there", "data.threads": 8}),
    ]
    assert len(run_comparison.group_runs(made)) == 1


def test_runs_too_different_to_describe_have_the_names_of_their_directories(tmp_path):
    many = {"epochs": 7, "batch_size": 3, "bank.size": 5, "ema.momentum": 0.5}
    made = [make_run(tmp_path / "first"), make_run(tmp_path / "second", **many)]
    assert [g.name for g in run_comparison.group_runs(made)] == ["first", "second"]
    # The same name twice would not do.
    made = [make_run(tmp_path / "x" / "run"), make_run(tmp_path / "y" / "run", **many)]
    names = [g.name for g in run_comparison.group_runs(made)]
    assert names == [str(tmp_path / "x" / "run"), str(tmp_path / "y" / "run")]


def test_a_group_looks_the_same_in_every_chart(tmp_path):
    """Also in a chart of a metric that another group did not record."""
    made = [make_run(tmp_path / "a"), make_run(tmp_path / "b", "cross_entropy")]
    (tmp_path / "b" / METRICS_FILE).write_text('{"step": 3, "train/loss": 1.0, "train/new": 2.0}\n')
    groups = run_comparison.group_runs([made[0], RunDirectory.open(tmp_path / "b")])
    looks = {
        overlay.metric: {line.label: line.look for line in overlay.lines}
        for overlay in run_comparison.overlays(groups)
    }
    assert looks["train/loss"] == {"cone": 0, "cross_entropy": 1}
    assert looks["train/new"] == {"cross_entropy": 1}
    line = figures.curves([Line("x", np.arange(3), np.arange(3), look=1)], y_label="y").axes[0]
    assert line.get_lines()[0].get_color() == figure_style.SERIES[1]


def test_a_difference_is_judged_by_paired_seeds(tmp_path):
    cone = [make_run(tmp_path / f"a{seed}", "cone", seed, top1) for seed, top1 in enumerate(A)]
    plain = [
        make_run(tmp_path / f"b{seed}", "cross_entropy", seed, top1) for seed, top1 in enumerate(B)
    ]
    groups = run_comparison.group_runs([*plain, *cone])
    theirs = stats.ttest_rel(A, B).confidence_interval(0.95)
    found = run_comparison.verdict(*groups, "test/top1")
    assert found.seeds == 3
    assert found.mean - found.half == pytest.approx(theirs.low)
    assert found.mean + found.half == pytest.approx(theirs.high)
    said = run_comparison.verdicts(groups)
    assert said == [
        "cone against cross_entropy: +3.00 points of test/top1 over 3 paired seeds, 95% interval "
        "+0.52 to +5.48: more than noise."
    ]
    one = run_comparison.group_runs([plain[0], cone[0]])
    assert (
        "a single seed, which cannot show whether that is more than noise"
        in (run_comparison.verdicts(one)[0])
    )
    apart = run_comparison.group_runs([plain[0], cone[1]])
    assert "no seed in common" in run_comparison.verdicts(apart)[0]
    close = [make_run(tmp_path / f"c{s}", "paco", s, t) for s, t in enumerate((0.9, 0.95, 0.91))]
    noise = run_comparison.verdicts(run_comparison.group_runs([*cone, *close]))
    assert noise[0].endswith("within noise.")
    alike = [make_run(tmp_path / f"d{s}", "paco", s, t - 0.02) for s, t in enumerate(A[:2])]
    same = run_comparison.verdicts(run_comparison.group_runs([*cone, *alike]))
    assert "-2.00 points of test/top1, the same in all of 2 paired seeds" in same[0]
    assert "more seeds will show" in same[0]


def test_parameters_tell_networks_with_and_without_a_head_apart(tmp_path):
    made = [make_run(tmp_path / name, name) for name in ("cone", "cross_entropy")]
    for run in made:
        workdir.keep_class_names(run.path, list("abc"))
    header, rows = run_comparison.table(run_comparison.group_runs(made))
    counts = [int(row[header.index("parameters")].replace(",", "")) for row in rows]
    d, hidden, e = 2048, 4096, 256  # of a ResNet-50: features, head, embedding
    head = d * hidden + 3 * hidden + hidden * e + e  # bias and BatchNorm of the hidden layer
    assert counts[0] - counts[1] == head + (e * 3 + 3) - (d * 3 + 3)


def test_a_budget_makes_no_group_of_its_own(tmp_path):
    """Each seed's own measurement gives it another number of epochs."""
    made = []
    for seed in (0, 1):
        fields = {"budget": "5min", "derive": (("epochs", 100),), "epochs": 40 + seed}
        made.append(make_run(tmp_path / str(seed), seed=seed, **fields))
    assert len(run_comparison.group_runs(made)) == 1


def test_everything_is_written(runs, tmp_path):
    page = run_comparison.write(runs, tmp_path / "out")
    text = page.read_text()
    assert text.count("<svg") == 3  # two losses and accuracy; seconds are no curve
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert "| cone | 3 | 93.00% ± 2.00% |" in table
    with (tmp_path / "out" / "comparison.csv").open() as file:
        rows = {(row["run"], row["metric"]): row for row in csv.DictReader(file)}
    row = rows["cross_entropy", "test/top1"]
    assert float(row["mean"]) == pytest.approx(0.89)
    assert float(row["deviation"]) == pytest.approx(statistics.stdev(TOP1["cross_entropy"]))
    assert [float(value) for value in row["values"].split()] == TOP1["cross_entropy"]
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"test_top1.png", "test_top1.svg", "train_loss.png"} <= figures
