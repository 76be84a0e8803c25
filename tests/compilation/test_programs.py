"""The programs that compilers are asked about: which there are, and what they hold of the state."""

import collections
import json
import subprocess
import sys

import jax
import pytest

from cone_jax import config as config_lib
from cone_jax import distributed
from cone_jax.compilation import accelerators, environment, programs
from cone_jax.training.run import Run
from tests.conftest import ROOT

CLASSES = 8


def trace(config, program=programs.TRAINING):
    mesh = distributed.make_mesh()
    return programs.trace(config, program, mesh, num_classes=CLASSES, train_images=64)


def held_by_a_device(state):
    """Bytes of a real state on the first device, by part."""
    held = collections.Counter()
    for field, part in programs.PARTS.items():
        for leaf in jax.tree.leaves(getattr(state, field)):
            held[part] += leaf.addressable_shards[0].data.nbytes
    return {part: held[part] for part in dict.fromkeys(programs.PARTS.values())}


def test_the_memory_of_each_part_is_what_a_run_holds_on_a_device(separable_config, monkeypatch):
    """Whole on every device, or in eighths of all that is large."""
    monkeypatch.setattr(distributed, "LEAST_SPLIT", 16)
    separable_config.average.decay = 0.9
    found = {}
    for sharding in ("replicated", "sharded"):
        separable_config.model.sharding = separable_config.bank.sharding = sharding
        memory = found[sharding] = trace(separable_config).memory
        run = Run.open(separable_config)
        assert memory == held_by_a_device(run.init_state())
        assert all(memory.values())
    for part, whole in found["replicated"].items():
        assert whole / 8 <= found["sharded"][part] < whole / 4, part


def test_a_method_without_a_classifier_has_a_linear_stage_to_compile(separable_config):
    config = config_lib.apply_options(separable_config, "supcon")
    config = config.unlock()
    config.model.projection = True
    config.linear_stage.batch_size = 16
    assert programs.names(config) == (programs.TRAINING, programs.EVALUATION, programs.LINEAR)
    first, second = (trace(config, name) for name in (programs.TRAINING, programs.LINEAR))
    # It has an optimiser for the classifier alone, whose gradient does not reach the network.
    assert 0 < second.memory["optimiser"] < first.memory["optimiser"]
    assert "8x2x4x4x3xui8" in first.lowered.as_text()
    assert "16x4x4x3xui8" in second.lowered.as_text()


DESCRIBE = """
import json, sys
from cone_jax.compilation.accelerators import parse_topology
texts = sys.argv[1].split(",")
print(json.dumps({text: len(parse_topology(text).devices()) for text in texts}))
"""


@pytest.mark.parametrize("kind", environment.KINDS)
def test_every_accelerator_is_known_to_its_compiler(kind):
    """A description that a compiler cannot read would fail when somebody names the device."""
    try:
        environment.install(kind, print)
    except environment.NoSuchPackage as error:
        pytest.skip(str(error))
    texts = []
    for name, each in accelerators.ACCELERATORS.items():
        if each.kind == kind:
            shape = {2: "2x2", 3: "2x2x1"}[each.dimensions] if kind == "tpu" else "16"
            texts.append(f"{name}:{shape}")
    answer = subprocess.run(
        [sys.executable, "-c", DESCRIBE, ",".join(texts)],
        env=environment.process_environment(kind),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {text: accelerators.parse_topology(text).num_devices for text in texts}
    assert json.loads(answer.stdout.splitlines()[-1]) == expected
