"""Starting from weights: exported from one run, taken up by another."""

import io
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from cone_jax import interop, training, workdir
from cone_jax.errors import UserError
from cone_jax.interop import files
from cone_jax.training import pretrained
from cone_jax.training.run import Run
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir.checkpoints import Checkpoints
from tests import tiny_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two steps that the others start from."""
    config = tiny_run.config()
    config.steps = 2
    directory = tmp_path_factory.mktemp("initial") / "first"
    training.train(config, directory, Console(quiet=True))
    return directory


@pytest.fixture
def short_config(tiny_config):
    tiny_config.steps = 2
    return tiny_config


@pytest.mark.parametrize("kind", ["run", "export"])
def test_every_network_of_the_state_starts_from_the_weights(tiny_config, tmp_path, finished, kind):
    source = finished
    trained = RunDirectory.open(finished).deployed()
    if kind == "export":
        source = interop.export(
            "safetensors", trained.variables, trained.encoder, trained.metadata, tmp_path
        )
    tiny_config.init_from = str(source)
    said = []
    state, account = pretrained.load(Run.open(tiny_config), said.append)
    for network in (state.variables, state.key_variables):
        for a, b in zip(jax.tree.leaves(trained.variables), jax.tree.leaves(network), strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(said) == 1
    assert "mapped" in said[0]
    assert account.summary() == said[0]
    assert len(account.mapped) == len(jax.tree.leaves(trained.variables))
    assert account.table().count("\nmapped ") == len(account.mapped)


def test_what_is_not_simply_mapped_is_told_also_where_it_is_an_error(short_config, finished):
    short_config.init_from = str(finished)
    short_config.model.name = "resnet14"
    said = []
    with pytest.raises(UserError, match="init_strict"):
        pretrained.load(Run.open(short_config), said.append)
    missing = [line.split()[1] for line in said if line.startswith("missing")]
    assert missing[0] == "batch_stats/backbone/layer1_1/bn1/mean"
    assert len(said) == 21  # twenty names, and how many more
    assert said[-1] == "... and 10 more"  # three blocks of two norms and two kernels


@pytest.mark.parametrize("name", ["resnet18", "other.safetensors"])
def test_the_field_is_named_once(short_config, tmp_path, name):
    """Whether there is no file, or one of something else."""
    if name == "other.safetensors":
        name = str(tmp_path / name)
        files.write_safetensors(Path(name), {"first.weight": np.zeros(3, np.float32)}, {})
    short_config.init_from = name
    with pytest.raises(UserError, match=r"^init_from[: ]") as caught:
        pretrained.load(Run.open(short_config), lambda _: None)
    assert str(caught.value).count("init_from") == 1


def test_training_goes_on_from_them_and_resumes(short_config, tmp_path, finished):
    short_config.init_from = str(finished)
    output = io.StringIO()
    console = Console(file=output, width=400)
    training.train(short_config, tmp_path / "second", console)
    account = (tmp_path / "second" / workdir.ACCOUNT_FILE).read_text().splitlines()
    assert account[0].startswith(str(finished))
    assert account[0] in output.getvalue()
    assert all(line.startswith("mapped ") for line in account[1:])
    with Checkpoints(tmp_path / "second", read_only=True) as checkpoints:
        assert checkpoints.latest_step() == 2


def test_weights_of_another_model_are_refused_and_the_workdir_stays_free(
    short_config, tmp_path, finished
):
    short_config.init_from = str(finished)
    short_config.model.name = "resnet14"
    with pytest.raises(UserError, match=r"init_from .* does not fit"):
        training.train(short_config, tmp_path / "third", Console(quiet=True))
    assert not (tmp_path / "third").exists()
