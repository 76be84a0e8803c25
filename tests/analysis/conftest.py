"""A real run to look at, trained once, with a class that tries to break out of a page."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from tests import tiny_run

HOSTILE = "<script>alert('x')</script>"


class SmallRun(NamedTuple):
    """A finished run and the data it was trained on."""

    directory: Path
    data: Path


@pytest.fixture(scope="session")
def small_run(tmp_path_factory) -> Iterator[SmallRun]:
    """CoNe on digits for a few steps; class 3 has the name `HOSTILE`."""
    from cone_jax import training
    from cone_jax.models import registry

    root = tmp_path_factory.mktemp("small_run")
    data = write_digits(root / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BACKBONES, "one_layer", one_layer)
        training.train(small_config(data), root / "run", Console(quiet=True))
        yield SmallRun(root / "run", data)


def one_layer(name, *, make, stem, width):
    """A backbone that compiles in a second."""
    import flax.linen as nn

    class OneLayer(nn.Module):
        @nn.compact
        def __call__(self, x, *, train):
            x = x.reshape(x.shape[0], -1)
            return nn.relu(make.linear(width, fan_in=x.shape[-1], name="linear")(x))

    return OneLayer()


def small_config(data: Path) -> ConfigDict:
    config = tiny_run.config()
    config.data.source = "array"
    config.data.path = str(data)
    config.model.name = "one_layer"
    config.model.options.width = 32
    return config


def write_digits(directory: Path) -> Path:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    names = [HOSTILE if label == 3 else f"digit & {label}" for label in range(10)]
    directory.mkdir(parents=True)
    for split, part in (("train", slice(0, 600)), ("test", slice(600, 900))):
        np.savez(
            directory / f"{split}.npz",
            images=images[part],
            labels=digits.target[part],
            class_names=names,
        )
    return directory
