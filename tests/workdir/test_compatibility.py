"""A checkpoint that belongs to another model, class count or method says so by its field."""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cone_jax import training
from cone_jax.errors import UserError

QUIET = Console(quiet=True)


@pytest.fixture
def trained(separable_config, tmp_path):
    separable_config.steps = 1
    training.train(separable_config, tmp_path, QUIET)
    return tmp_path


def pretend(workdir, config, **changes):
    """Changes the config and the run's record of it, as a careless hand would."""
    path = workdir / "config.json"
    stored = json.loads(path.read_text())
    for field, value in changes.items():
        section, name = field.split("__")
        config[section][name] = stored[section][name] = value
    path.write_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bank__size": 48}, r"bank.\w+ is \[40.*\[48.*another bank.size"),
        ({"model__embedding_dim": 16}, r"classifier.kernel is \[8, 8\] there and \[16, 8\].*model"),
        ({"optimizer__name": "adamw"}, r"opt_state.* another optimizer.name"),
        ({"average__decay": 0.5}, r"averaged.* is here but not there: another average.decay"),
        ({"objective__name": "cross_entropy"}, r"is there but not here: another"),
    ],
)
def test_another_config(trained, separable_config, changes, words):
    pretend(trained, separable_config, **changes)
    with pytest.raises(UserError, match=rf"checkpoint 1 of .*does not fit the config: .*{words}"):
        training.train(separable_config, trained, QUIET)


def test_another_number_of_classes(trained, separable_config):
    """The config is the same, the data have changed."""
    folder = Path(separable_config.data.path)
    for split in ("train", "test"):
        with np.load(folder / f"{split}.npz") as arrays:
            images, labels = arrays["images"], arrays["labels"]
        labels[0] = 8
        np.savez(folder / f"{split}.npz", images=images, labels=labels)
    with pytest.raises(UserError, match=r"\[8\] there and \[9\] here: another number of classes"):
        training.train(separable_config, trained, QUIET)
