"""Test set-up: eight virtual CPU devices, and one compilation cache for the whole run."""

import atexit
import gc
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from cone_jax import runtime

runtime.use_fast_cpu_convolutions()
# Most of the time goes into compiling programs that run for milliseconds: a third less without
# LLVM's optimisations. Modules marked `optimised` have them, see below.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
# The workers of pytest-xdist inherit the variable, so they share what each compiles.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache = tempfile.mkdtemp(prefix="cone_jax_xla_")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

import jax
import numpy as np
import pytest
from hypothesis import settings
from ml_collections import ConfigDict

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_platforms", "cpu")

# Everything there is. pytest imports a module a second time for its examples, unless it is there
# already; of a registry there must be one.
import cone_jax.modes  # noqa: F401
from tests import bucket_servers, tiny_run

ROOT = Path(__file__).parent.parent

# CI repeats the same examples, so that a change is judged by its own tests; elsewhere Hypothesis
# looks for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="module", autouse=True)
def compiled_as_marked(request: pytest.FixtureRequest) -> None:
    """Where numbers are held against a reference, they are those of the programs users run."""
    quick = request.node.get_closest_marker("optimised") is None
    if jax.config.read("jax_disable_most_optimizations") != quick:
        jax.config.update("jax_disable_most_optimizations", quick)
        jax.clear_caches()


@pytest.fixture(scope="module", autouse=True)
def bounded_mappings() -> Iterator[None]:
    """Lets compiled programs go when there are many.

    Each holds pieces of mapped memory, of which Linux allows a process 65,530; XLA crashes on the
    next one. A worker comes to that in the course of all tests.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > 20_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def main() -> Callable[[Sequence[str]], int]:
    """The function behind ``python main.py``: arguments to exit code."""
    spec = importlib.util.spec_from_file_location("main", ROOT / "main.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture
def refusal(main, capsys, monkeypatch) -> Callable[[Sequence[str]], Any]:
    """What ``python main.py`` says to wrong arguments: one line, and exit code 2."""
    monkeypatch.chdir(ROOT)

    def refused(arguments: Sequence[str]) -> Any:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        assert code == 2, captured.err
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        return captured

    return refused


@pytest.fixture(scope="module", params=["gcs", "s3"])
def store(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """The kind of an object store and the port that it is served on."""
    with bucket_servers.running(request.param) as port:
        yield request.param, port


@pytest.fixture(scope="module")
def small_network() -> Iterator[None]:
    """For a module: the architecture ``two_layers``, which compiles in a second."""
    from cone_jax.models import registry

    with mock.patch.dict(registry.BACKBONES, two_layers=_two_layers):
        yield


@pytest.fixture
def tiny_config() -> ConfigDict:
    """CoNe on digits, small enough to compile and train in seconds on eight devices."""
    return tiny_run.config()


@pytest.fixture
def quick_config(tiny_config, small_network) -> ConfigDict:
    """The same where the architecture does not matter: a network that compiles in a second."""
    tiny_config.model.name = "two_layers"
    return tiny_config


@pytest.fixture
def separable_config(tmp_path_factory, small_network) -> ConfigDict:
    """A problem any method should solve, with a network that compiles in a second.

    Eight classes of 4x4 images, batches of one image a device.
    """
    from cone_jax import config as config_lib

    config = config_lib.default()
    config.data.source = "array"
    config.data.path = str(_separable_data(tmp_path_factory.mktemp("separable")))
    config.data.image_size = 4
    config.batch_size = 8
    config.steps = 48
    config.model.name = "two_layers"
    config.model.embedding_dim = 8
    config.model.head_hidden = 16
    config.model.predictor_hidden = 16
    config.bank.size = 40
    config.objective.cone.neighbours = 8
    config.objective.cone.wait_for_bank = False
    config.objective.cone.start_epochs = 0
    config.optimizer.learning_rate = 0.05
    config.optimizer.reference_batch = 0
    config.schedule.warmup_epochs = 0.0
    config.linear_stage.steps = 48
    config.linear_stage.batch_size = 8
    config.linear_stage.optimizer.reference_batch = 0
    config.evaluation.batch_size = 32
    config.evaluation.every_epochs = 0.0
    config.checkpoint.every_epochs = 0.0
    return config


def _separable_data(directory):
    """Each class is a pattern of its own, in noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (8, 4, 4, 3))
    for split, count in (("train", 64), ("test", 32)):
        labels = np.arange(count) % 8
        noise = rng.normal(scale=40.0, size=(count, 4, 4, 3))
        images = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
        np.savez(directory / f"{split}.npz", images=images, labels=labels)
    return directory


def _two_layers(name, *, make, stem, width=16):
    """A backbone: flatten, linear, BatchNorm, ReLU."""
    import flax.linen as nn

    class TwoLayers(nn.Module):
        @nn.compact
        def __call__(self, x, *, train):
            layers = make.training(train)
            x = x.reshape(x.shape[0], -1)
            x = layers.linear(width, fan_in=x.shape[-1], name="linear1")(x)
            return nn.relu(layers.batch_norm(name="bn1")(x))

    return TwoLayers()
