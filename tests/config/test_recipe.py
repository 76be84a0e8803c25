"""Where recipes and sweeps are found, from any directory."""

from pathlib import Path

import pytest

from cone_jax import sweeps
from cone_jax.config import load_recipe, run_config
from cone_jax.errors import UserError

ROOT = Path(__file__).parents[2]
# A recipe that can be told apart from the package's.
OWN = """
from cone_jax import config as config_lib
from cone_jax.recipes import digits

def get_config(options=""):
    config = digits.get_config().unlock()
    config.epochs = {epochs}
    return config_lib.apply_options(config, options)
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """An empty directory far from the clone, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, epochs: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(OWN.format(epochs=epochs))


def test_the_packages_recipes_are_those_of_the_project():
    packaged = {path.relative_to(run_config.PACKAGED) for path in run_config.PACKAGED.rglob("*.py")}
    assert packaged == {path.relative_to(ROOT / "configs") for path in ROOT.glob("configs/**/*.py")}


@pytest.mark.parametrize("named", ["digits", "configs/digits.py", str(ROOT / "configs/digits.py")])
def test_a_recipe_of_the_package_is_found_from_anywhere(elsewhere, named):
    assert load_recipe(named).epochs == 40
    assert load_recipe(named, "cross_entropy").objective.name == "cross_entropy"


def test_recipes_that_build_on_others_are_found_from_anywhere(elsewhere):
    assert load_recipe("imagenet_light", "mobilenet_v2").model.name == "mobilenet_v2"


def test_a_name_means_the_users_recipe_before_the_packages(elsewhere):
    write(elsewhere / "digits.py", 2)
    assert load_recipe("digits").epochs == 2
    write(elsewhere / "configs/digits.py", 3)
    assert load_recipe("digits").epochs == load_recipe("configs/digits.py").epochs == 3
    assert load_recipe("digits.py").epochs == 2


def test_a_recipe_of_the_users_own(elsewhere):
    write(elsewhere / "my/recipe.py", 4)
    assert load_recipe("my/recipe.py", "paper").epochs == 4
    write(elsewhere / "configs/mine.py", 5)
    assert load_recipe("mine").epochs == 5


def test_a_folder_of_the_name_is_not_in_the_way(elsewhere):
    (elsewhere / "digits").mkdir()
    assert load_recipe("digits").epochs == 40


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("digit", "--config (digit) is not a file; did you mean 'digits'? Valid: cifar, "),
        ("configs/digit.py", "did you mean 'configs/digits.py'? Valid: configs/cifar.py, "),
        ("my/recipe.py", "--config (my/recipe.py) is not a file; Valid: configs/cifar.py, "),
        ("../digits", "--config (../digits) is not a file; "),
        ("", "--config () is not a file; "),
    ],
)
def test_a_recipe_that_is_not_there_is_one_line_with_those_that_are(elsewhere, named, message):
    write(elsewhere / "configs/mine.py", 5)
    with pytest.raises(UserError) as error:
        load_recipe(named)
    assert message in str(error.value)
    assert "mine" in str(error.value)


def test_the_file_that_a_name_means_is_named_when_it_is_wrong(elsewhere):
    (elsewhere / "digits.py").write_text("x = 1\n")
    with pytest.raises(UserError, match=r"--config \(digits\.py\) must define get_config"):
        load_recipe("digits")


@pytest.mark.parametrize("named", ["momentum", "configs/sweeps/momentum.py"])
def test_a_sweep_and_its_recipe_are_found_from_anywhere(elsewhere, named):
    sweep = sweeps.load_sweep(f"{named}:digits")
    assert sweeps.base_config(sweep).epochs == 8
    with pytest.raises(UserError, match=r"--sweep \(momentun\).*did you mean 'momentum'"):
        sweeps.load_sweep("momentun")


@pytest.mark.parametrize("named", ["digits", "configs/digits.py"])
def test_a_sweeps_own_recipe_has_the_sweeps_size_however_it_is_named(elsewhere, named):
    sweep = sweeps.load_sweep("momentum:digits")
    config = load_recipe(named)
    changes = sweeps.definition.overrides(sweep, named, config)
    assert changes["epochs"] == 40, "what differs from the sweep's size is the user's wish"
    write(elsewhere / "mine.py", 2)
    assert not sweeps.definition.overrides(sweep, "mine", load_recipe("mine"))
