"""The sweeps that ship: the paper's tables, and every cell a run that can start."""

from pathlib import Path

import pytest

from cone_jax import sweeps
from cone_jax.errors import UserError
from cone_jax.sweeps import runner, tables

FOLDER = Path("configs/sweeps")

# The paper's tables (arXiv 2308.10761), typed from the description of the method.
PAPER = {
    "sup_weight_temperature": {
        ("0.3", "0.05"): 77.5, ("0.3", "0.07"): 77.4, ("0.3", "0.1"): 77.6, ("0.3", "0.2"): 77.3,
        ("0.7", "0.05"): 77.6, ("0.7", "0.07"): 78.0, ("0.7", "0.1"): 78.1, ("0.7", "0.2"): 78.1,
        ("1.0", "0.05"): 77.7, ("1.0", "0.07"): 78.0, ("1.0", "0.1"): 78.1, ("1.0", "0.2"): 78.0,
    },
    "dc_weight_temperature": {
        ("0.2", "0.05"): 78.6, ("0.2", "0.07"): 78.4, ("0.2", "0.1"): 78.6, ("0.2", "0.2"): 78.5,
        ("0.4", "0.05"): 78.5, ("0.4", "0.07"): 78.7, ("0.4", "0.1"): 78.7, ("0.4", "0.2"): 78.4,
        ("0.6", "0.05"): 78.5, ("0.6", "0.07"): 78.7, ("0.6", "0.1"): 78.5, ("0.6", "0.2"): 78.4,
    },
    "momentum": {("0.98", ""): 78.5, ("0.99", ""): 78.6, ("0.996", ""): 78.7, ("0.999", ""): 78.5},
    "neighbours": {("128", ""): 78.7, ("256", ""): 78.7, ("512", ""): 78.7, ("1024", ""): 78.5},
    "bank_size": {
        ("16384", ""): 78.6, ("65536", ""): 78.7, ("131072", ""): 78.7, ("262144", ""): 78.6,
    },
    "components": {
        ("CE", ""): 76.9, ("CE + head", ""): 76.8, ("CE + head + L_sup_in", ""): 78.1,
        ("CE + head + L_sup_out", ""): 76.9, ("CE + head + L_sup_in + L_dc", ""): 78.7,
    },
    "contrastive_view": {
        ("with", "Standard"): 77.5, ("without", "Standard"): 78.1,
        ("with", "AutoAug"): 78.1, ("without", "AutoAug"): 78.3,
        ("with", "RandAug"): 77.9, ("without", "RandAug"): 78.1,
        ("with", "SimCLR"): 76.9, ("without", "SimCLR"): 77.2,
    },
    "neighbour_methods": {
        ("CE", ""): 76.9, ("CMSF", ""): 76.4, ("CMSF + CE", ""): 77.0, ("NNCLR + CE", ""): 77.5,
        ("CoNe, no L_dc", ""): 78.1,
    },
}  # fmt: skip


def configs(name, options=""):
    """The config of each cell."""
    sweep = sweeps.load_sweep(f"{FOLDER}/{name}.py{options}")
    runs = runner.plan(sweep, sweep.base, sweeps.base_config(sweep), Path("nowhere"))
    return {(run.cell.row, run.cell.column): run.config for run in runs}


def test_every_table_of_the_paper_has_a_sweep():
    assert {path.stem for path in FOLDER.glob("*.py")} == PAPER.keys() | {"folds"}


def test_folds_are_cells_of_any_recipe_with_their_mean_below():
    found = configs("folds", ":3")
    assert [(c.data.folds, c.data.fold) for c in found.values()] == [(3, 0), (3, 1), (3, 2)]
    with pytest.raises(UserError, match="must be a number of folds from 2"):
        sweeps.load_sweep(f"{FOLDER}/folds.py:one")
    sweep = sweeps.load_sweep(f"{FOLDER}/folds.py:3")
    runs = runner.plan(sweep, sweep.base, sweeps.base_config(sweep), Path("nowhere"))
    with pytest.MonkeyPatch.context() as patch:
        results = iter(({"test/top1": 0.5}, {"test/top1": 0.7}, None))
        patch.setattr(tables, "result", lambda run: next(results))
        *_, last = tables.entries(sweep, runs)
    assert (last.cell.row, last.values) == ("mean", (50.0, 70.0))
    assert last.mean == 60.0


@pytest.mark.parametrize("name", PAPER)
def test_cells_and_numbers_are_the_papers(name):
    sweep = sweeps.load_sweep(f"{FOLDER}/{name}.py")
    assert {(cell.row, cell.column): cell.paper for cell in sweep.cells} == PAPER[name]
    digits = sweeps.load_sweep(f"{FOLDER}/{name}.py:digits")
    assert [cell.paper for cell in digits.cells] == [cell.paper for cell in sweep.cells]
    for each in (sweep, digits):
        assert "ImageNet" in each.paper_setting


@pytest.mark.parametrize("name", PAPER)
def test_the_full_size_is_the_papers_and_the_small_one_is_small(name):
    full, small = configs(name), configs(name, ":digits")
    assert len(full) == len(small) == len(PAPER[name])
    for cell, config in full.items():
        assert (config.model.name, config.data.name) == ("resnet50", "imagenet2012")
        assert config.epochs == (200 if cell[0] == "CMSF" else 100)
        assert config.batch_size == 1024
    for config in small.values():
        assert config.data.source == "digits"
        assert config.epochs <= 16
        assert config.model.options.width <= 16
    seeds = configs(name, ":digits,3seeds")
    assert len(seeds) == len(small)


def test_fields_take_the_values_of_the_table():
    for (row, column), config in configs("sup_weight_temperature").items():
        cone = config.objective.cone
        assert (cone.sup_weight, cone.sup_temperature) == (float(row), float(column))
        assert cone.dc_weight == 0.0
    for (row, column), config in configs("dc_weight_temperature").items():
        cone = config.objective.cone
        assert (cone.dc_weight, cone.dc_temperature) == (float(row), float(column))
        assert (cone.sup_weight, cone.sup_temperature) == (0.7, 0.1)
    for (row, _), config in configs("momentum").items():
        assert config.ema.momentum == float(row)
        assert config.ema.schedule == "official_auto"
    for (row, _), config in configs("neighbours").items():
        assert (config.objective.cone.neighbours, config.bank.size) == (int(row), 65536)
    for (row, _), config in configs("bank_size").items():
        assert (config.objective.cone.neighbours, config.bank.size) == (512, int(row))


def test_components_add_up():
    parts = {
        row: (
            config.objective.name,
            config.model.projection,
            config.objective.cone.contrast,
            config.objective.cone.dc_weight,
        )
        for (row, _), config in configs("components").items()
    }
    assert parts["CE"][:2] == ("cross_entropy", False)
    assert parts["CE + head"][:2] == ("cross_entropy", True)
    assert parts["CE + head + L_sup_in"] == ("cone", True, "sup_in", 0.0)
    assert parts["CE + head + L_sup_out"] == ("cone", True, "sup_out", 0.0)
    assert parts["CE + head + L_sup_in + L_dc"] == ("cone", True, "sup_in", 0.4)


def test_contrastive_views_differ_in_the_anchor_alone():
    cells = configs("contrastive_view")
    specs = {column: config.data.train_transforms for (_, column), config in cells.items()}
    assert len(set(specs.values())) == 4
    for (row, column), config in cells.items():
        assert config.objective.cone.contrastive_view == ("key" if row == "with" else "none")
        assert config.objective.cone.dc_weight == 0.0
        assert config.data.views == 2
        assert config.data.train_transforms == specs[column]


def test_other_methods_with_and_without_cross_entropy():
    cells = {row: config for (row, _), config in configs("neighbour_methods").items()}
    assert cells["CMSF"].objective.cmsf.ce_weight == 0.0
    assert cells["CMSF + CE"].objective.cmsf.ce_weight == 1.0
    assert cells["NNCLR + CE"].objective.nnclr.ce_weight == 1.0
    names = {row: config.objective.name for row, config in cells.items()}
    assert names == {
        "CE": "cross_entropy",
        "CMSF": "cmsf",
        "CMSF + CE": "cmsf",
        "NNCLR + CE": "nnclr",
        "CoNe, no L_dc": "cone",
    }
