"""A distribution that adds one of each kind to the registries: its files, for tests to install."""

from pathlib import Path

PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "spotted-parts"
version = "0.3"

[project.entry-points."cone_jax.objectives"]
scaled = "spotted_parts:Scaled"

[project.entry-points."cone_jax.models"]
flat = "spotted_parts:flat"

[project.entry-points."cone_jax.sources"]
spots = "spotted_parts:open_spots"

[project.entry-points."cone_jax.evaluators"]
worst = "spotted_parts:Worst"

[tool.setuptools]
py-modules = ["spotted_parts"]
"""

CODE = '''\
import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from cone_jax import losses
from cone_jax.console import Metric
from cone_jax.data.sources import Record
from cone_jax.evaluation.classification import Classification
from cone_jax.evaluation.registry import Evaluator, Outcome
from cone_jax.objectives import Needs, Objective
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class Scaled(Objective, path="objective.scaled"):
    """Cross-entropy times a factor."""

    factor: float = field(2.0, "of the loss")

    @property
    def needs(self):
        return Needs()

    def __call__(self, inputs):
        loss = self.factor * jnp.mean(losses.cross_entropy(inputs.query.logits, inputs.labels))
        return loss, {}


class Flat(nn.Module):
    """One linear layer on all pixels."""

    make: object
    width: int

    @nn.compact
    def __call__(self, x, *, train):
        x = x.reshape(x.shape[0], -1)
        return nn.relu(self.make.linear(self.width, fan_in=x.shape[-1], name="linear")(x))


def flat(name, *, make, stem, width=8):
    return Flat(make, width)


@dataclasses.dataclass(frozen=True)
class Spots:
    """Dark and light pictures, in turn."""

    count: int
    class_names: tuple[str, ...] = ("dark", "light")

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return Record(np.full((8, 8), 200 * (index % 2) + index % 50, np.uint8), index % 2)

    def describe(self, index):
        return f"spot {index}"


def open_spots(split, options):
    return Spots({"train": 64, "test": 16}[split])


@dataclasses.dataclass(frozen=True)
class Worst(Evaluator):
    """How confident the network is where it is least so."""

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("confidence", unit="share"),)

    @property
    def default_name(self):
        return "worst"

    def evaluate(self, run, variables, report):
        examples = Classification().evaluate(run, variables, report).examples
        return Outcome({"confidence": float(examples.confidences.min())})
'''

# One run that needs all four.
FLAGS = (
    "--config=digits:scaled",
    "--config.data.source=spots",
    "--config.model.name=flat",
    "--config.evaluation.evaluators=('classification', 'worst')",
    "--config.evaluation.batch_size=16",
    "--config.batch_size=16",
    "--config.schedule.warmup_epochs=0.0",
    "--config.steps=12",
)
SWEEP = """\
from cone_jax.sweeps import Axis, Sweep, grid

def get_sweep(options=""):
    cells = grid(Axis("factor", "objective.scaled.factor", (1.0,)))
    return Sweep(title="Factors", base="digits:scaled", cells=cells, row_name="factor")
"""


def write(directory: Path) -> Path:
    """Writes the distribution's source tree."""
    directory.mkdir()
    (directory / "pyproject.toml").write_text(PYPROJECT)
    (directory / "spotted_parts.py").write_text(CODE)
    return directory
