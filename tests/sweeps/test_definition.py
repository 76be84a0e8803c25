"""What a sweep's cells become: settings in the right order, mistakes named."""

import pytest

from cone_jax import sweeps
from cone_jax.errors import UserError
from cone_jax.sweeps import Axis, Cell, Sweep, definition, grid, load_sweep, tables

DIGITS = "configs/digits.py"


def make(**fields) -> Sweep:
    cells = fields.pop("cells", (Cell("only"),))
    return Sweep(title="t", base=DIGITS, cells=cells, row_name="r", **fields)


def configure(sweep, recipe=DIGITS, seed=None, **changes):
    """The config of the first cell after the user's changes."""
    config = sweeps.base_config(sweep) if recipe == DIGITS else definition._recipe(sweep, recipe)
    config = definition.apply_settings(config, changes)
    found = definition.overrides(sweep, recipe, config)
    return definition.cell_config(sweep, sweep.cells[0], recipe, found, seed)


def test_a_grid_is_every_combination_in_reading_order():
    rows, columns = Axis("a", "epochs", (1, 2)), Axis("b", "ema.momentum", (0.5, 0.9, 0.99))
    cells = grid(rows, columns, options="no_dc")
    assert [(cell.row, cell.column) for cell in cells] == [
        ("1", "0.5"),
        ("1", "0.9"),
        ("1", "0.99"),
        ("2", "0.5"),
        ("2", "0.9"),
        ("2", "0.99"),
    ]
    assert cells[4].settings == {"epochs": 2, "ema.momentum": 0.9}
    assert {cell.options for cell in cells} == {"no_dc"}


def test_labels_stand_for_values():
    cells = grid(Axis("K", "bank.size", (128,), ("small",)))
    assert (cells[0].row, cells[0].column, cells[0].paper) == ("small", "", None)


def test_cells_beat_the_user_who_beats_the_size_which_beats_the_recipe():
    cell = Cell("x", settings={"bank.size": 512})
    sweep = make(cells=(cell,), size={"epochs": 3, "batch_size": 64, "bank.size": 256})
    config = configure(sweep, **{"batch_size": 32, "bank.size": 999})
    assert (config.epochs, config.batch_size, config.bank.size) == (3, 32, 512)
    assert config.seed == 0
    assert configure(sweep, seed=7).seed == 7


def test_options_of_a_cell_are_the_recipes():
    config = configure(make(cells=(Cell("x", options="cross_entropy"),)), epochs=5)
    assert config.objective.name == "cross_entropy"
    assert not config.model.projection
    assert config.epochs == 5


def test_another_recipe_keeps_its_own_size():
    sweep = make(cells=(Cell("x", options="cross_entropy"),), size={"epochs": 3})
    config = configure(sweep, "configs/cifar.py:100")
    assert config.objective.name == "cross_entropy"
    assert config.data.name == "cifar100"
    assert config.epochs == 1000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bank.sise": 3}, "bank.sise cannot be set to 3"),
        ({"bank.size": "many"}, "bank.size cannot be set to 'many'"),
        ({"bank.size": 3}, r"bank.size \(3\) must be at least the global batch"),
    ],
)
def test_a_cell_that_cannot_work_is_named(settings, message):
    with pytest.raises(UserError, match=message):
        configure(make(cells=(Cell("x", settings=settings),)))


def test_two_cells_need_two_names():
    with pytest.raises(UserError, match="two cells 'a-b'"):
        make(cells=(Cell("a b"), Cell("a + b")))


def test_files(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def get_sweep(options):\n    return options\n")
    with pytest.raises(UserError, match=r"get_sweep must return a cone_jax\.sweeps\.Sweep"):
        sweeps.load_sweep(str(path))
    path.write_text("x = 1\n")
    with pytest.raises(UserError, match=r"must define get_sweep\(options\)"):
        sweeps.load_sweep(f"{path}:digits")
    with pytest.raises(UserError, match="configs/sweeps/"):
        sweeps.load_sweep("no/such.py")
    with pytest.raises(UserError, match=r"sweep option \('digit'\) is unknown"):
        sweeps.load_sweep("configs/sweeps/momentum.py:digit")


def test_the_papers_values_stand_beside_imagenet_only(tmp_path):
    sweep = load_sweep("configs/sweeps/momentum.py")
    values = [cell.paper for cell in sweep.cells]
    assert values == [78.5, 78.6, 78.7, 78.5]
    imagenet = definition.base_config(sweep)
    assert definition.beside(sweep, imagenet) == sweep
    for changes in (
        {"data.name": "cifar100"},
        {"data.source": "image_folder", "data.path": str(tmp_path)},
    ):
        own = definition.beside(sweep, definition.apply_settings(imagenet, changes))
        assert {cell.paper for cell in own.cells} == {None}
        assert own.paper_setting == ""
        assert "paper" not in tables.as_markdown(own, tables.entries(own, ()))
    for number in range(1000):
        (tmp_path / "train" / f"n{number:08}").mkdir(parents=True)
    assert definition.beside(sweep, definition.apply_settings(imagenet, changes)) == sweep
    digits = load_sweep("configs/sweeps/momentum.py:digits")
    shown = definition.beside(digits, definition.base_config(digits))
    assert {cell.paper for cell in shown.cells} == {None}
