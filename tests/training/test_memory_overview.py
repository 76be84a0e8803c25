"""The overview adds up, and an allocation that fails is explained."""

import gzip
import json
import re

import jax
import numpy as np
import pytest

from cone_jax import distributed, runtime, training
from cone_jax.errors import TrainingFailed
from cone_jax.evaluation import inference
from cone_jax.training import loop, train_log
from cone_jax.training.run import Run
from cone_jax.workdir.metrics import METRICS_FILE, read_records

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20}


def test_parts_of_the_state_are_counted_on_one_device(separable_config):
    separable_config.bank.sharding = "sharded"
    run = Run.open(separable_config)
    state = run.init_state()
    batch = next(run.train_stream(0, print))
    line, needed = train_log.overview(state, batch)
    sizes = {
        name: float(value) * UNITS[unit]
        for name, value, unit in re.findall(r"([a-z][a-z ]*) ([\d.]+) (B|KiB|MiB)", line)
    }
    network = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    columns = [leaf for leaf in jax.tree.leaves(state.bank) if leaf.ndim]
    bank = sum(leaf.nbytes for leaf in columns) / 8 + 8  # and two counters
    assert sizes["network"] == pytest.approx(network, rel=0.02)
    assert sizes["momentum network"] == pytest.approx(network, rel=0.02)
    assert sizes["bank"] == pytest.approx(bank, rel=0.02)
    parts = sum(sizes[name] for name in ("network", "momentum network", "optimiser", "bank"))
    assert parts < sizes["state"] < parts * 1.2  # and BatchNorm statistics
    assert sizes["activations and other temporaries"] > 0
    both = sizes["state"] + sizes["activations and other temporaries"]
    assert needed == pytest.approx(both, rel=0.02)


@pytest.mark.parametrize(("gibibytes", "warned"), [(0, False), (1, True), (64, False)])
def test_what_the_process_will_take_is_told_and_a_small_machine_warned_of(
    separable_config, monkeypatch, gibibytes, warned
):
    monkeypatch.setattr(runtime, "physical_memory", lambda: gibibytes * 2**30)
    run, said = Run.open(separable_config), []
    train_log.say_memory(run.init_state(), next(run.train_stream(0, print)), said.append)
    assert re.search(r"temporaries [\d.]+ \w+; the process takes about 1.0 GiB$", said[1])
    assert [
        line.startswith("warning: that is more than 80% of the 1.0 GiB") for line in said[2:]
    ] == [True] * warned


def test_memory_is_told_before_the_first_step_and_once(separable_config, monkeypatch, tmp_path):
    told, step = [], loop.train_step
    say = train_log.overview
    monkeypatch.setattr(
        train_log,
        "overview",
        lambda state, batch: told.append(int(state.step)) or say(state, batch),
    )

    def watched(state, batch):
        assert told == [0]
        return step(state, batch)

    monkeypatch.setattr(loop, "train_step", watched)
    separable_config.steps = 2
    training.train(separable_config, tmp_path)
    assert told == [0]


def test_out_of_memory_names_what_to_lower(separable_config, monkeypatch, tmp_path):
    def exhausted(state, batch):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")

    monkeypatch.setattr(loop, "train_step", exhausted)
    with pytest.raises(TrainingFailed) as failure:
        training.train(separable_config, tmp_path)
    message = str(failure.value)
    for field in ("bank.sharding=sharded", "model.options.remat=True", "bank.size="):
        assert field in message
    assert "allocating 9 bytes" in message


def test_other_errors_of_a_device_stay_what_they_are(separable_config):
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
        train_log.explained(separable_config, distributed.make_mesh()),
    ):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_steps_are_traced(separable_config, tmp_path):
    separable_config.steps = 4
    separable_config.profile_steps = (2, 3)
    metrics = training.train(separable_config, tmp_path)
    assert np.isfinite(metrics["train/loss"])
    (for_tensorboard,) = (tmp_path / "profile").rglob("*.xplane.pb")
    assert for_tensorboard.stat().st_size > 0
    (for_perfetto,) = (tmp_path / "profile").rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(for_perfetto.read_bytes()))["traceEvents"]
    spans = [event["name"] for event in events if event.get("ph") == "X" and event["dur"] >= 0]
    on_devices = [name for name in spans if re.match(r"\[\d\] .*_train_step", name)]
    assert len(on_devices) == 2 * 8  # two steps, and no other, on each of eight devices


def test_nothing_is_compiled_again_for_an_evaluation_or_a_last_batch(separable_config, tmp_path):
    separable_config.seed = 4321  # a config of its own, so that nothing is compiled yet
    separable_config.steps = 24
    separable_config.data.last_batch = "carry"
    separable_config.batch_size = 24  # of 64 images: the third batch reaches into the next epoch
    separable_config.evaluation.every_epochs = 2.0
    separable_config.evaluation.batch_size = 24  # of 32: the second is not full
    steps, examinations = training.train_step._cache_size(), inference._forward._cache_size()
    training.train(separable_config, tmp_path)
    records = read_records(tmp_path / METRICS_FILE)
    assert sum("test/top1" in record for record in records) >= 3
    assert training.train_step._cache_size() == steps + 1
    assert inference._forward._cache_size() == examinations + 1
