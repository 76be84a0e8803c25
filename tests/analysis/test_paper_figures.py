"""The paper's figures from real runs: all that can be drawn, and nothing that cannot."""

import dataclasses

import pytest

from cone_jax.analysis import paper_figures
from cone_jax.analysis.report_inputs import gather
from tests.tiny_run import write_run


@pytest.fixture(scope="module")
def cone(small_run):
    return gather(small_run.directory)


@pytest.fixture(scope="module")
def plain(cone, tmp_path_factory):
    """As a run of cross-entropy would be: no bank, no neighbours."""
    kept = [
        {name: value for name, value in record.items() if name in ("step", "train/loss")}
        for record in cone.run.records
    ]
    return dataclasses.replace(
        cone,
        run=write_run(tmp_path_factory.mktemp("plain"), kept),
        snapshot=dataclasses.replace(cone.snapshot, neighbours=None, pulls=None),
    )


def test_one_run_has_every_figure(cone):
    assert sorted(paper_figures.draw([cone], ["cone"])) == [
        "embedding_classes",
        "embedding_one_class",
        "gradient_coefficients",
        "log_sum_exp_errors",
        "neighbour_purity",
    ]


def test_runs_stand_side_by_side(cone, plain):
    names = ["CoNe", "cross/entropy"]
    figure = paper_figures.one_class_maps([cone, plain], names)
    assert [axes.get_title() for axes in figure.axes] == [
        f"{name}: class digit & 0" for name in names
    ]
    assert len(paper_figures.class_maps([cone, plain], names).axes) == 2
    assert sorted(paper_figures.draw([cone, plain], names)) == [
        "embedding_classes",
        "embedding_one_class",
        "gradient_coefficients_CoNe",
        "log_sum_exp_errors",
        "neighbour_purity",
    ]


def test_what_a_run_does_not_have_is_left_out(plain):
    drawn = paper_figures.draw([plain], ["ce"])
    assert sorted(drawn) == ["embedding_classes", "embedding_one_class"]


def test_errors_over_training_are_those_recorded(cone):
    (axes,) = paper_figures.log_sum_exp_errors([cone], ["cone"]).axes
    drawn = {line.get_label(): line.get_ydata().tolist() for line in axes.get_lines()}
    assert drawn == {
        "m_p": cone.run.series("train/m_p_times_tau").values.tolist(),
        "m_n": cone.run.series("train/m_n_times_tau").values.tolist(),
    }
    assert drawn["m_p"]


def test_coefficients_are_printed_times_a_thousand(cone):
    sheet = cone.snapshot.pulls
    figure = paper_figures.gradient_coefficients(cone)
    printed = [axes.get_title() for axes in figure.axes]
    first = sheet.alpha[0, 0] * 1000
    assert f"cos {sheet.similarity[0, 0]:.2f}\nα {first:.3g}" in printed
    assert "our reading" in figure.get_suptitle()
