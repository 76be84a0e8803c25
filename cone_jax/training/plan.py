"""Chooses what a recipe leaves open, for the number of images and the time available.

A recipe names such fields with `config.leave_open`; one that somebody sets is theirs. `resolve`
fills in the others, says what it chose and why, and hands over a complete config. `config.json`
then holds it: a run that goes on takes its values from there, whatever a clock would say today.

With `config.budget` the length follows from a measurement: a few steps of the very network on the
very data. Where the recipe leaves the network open too, the largest of `NETWORKS` is taken that
still sees every image often enough.
"""

import itertools
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import models, objectives, workdir
from cone_jax.console import Report, duration
from cone_jax.data import datasets
from cone_jax.data.transforms import recipes
from cone_jax.errors import UserError
from cone_jax.settings import Model
from cone_jax.training.run import Run
from cone_jax.training.train_log import machine
from cone_jax.training.train_step import train_step
from cone_jax.workdir.directory import flatten

# Steps where nobody says how long a run may take, and the least and the most epochs for that.
FROM_SCRATCH = 3000, (50, 300)
FINE_TUNING = 1000, (10, 40)
FEWEST_EPOCHS = 3  # that a budget must allow
ENOUGH_EPOCHS = 60  # a larger network is worth it only if it still sees every image so often
EVALUATIONS = 10
RESERVE = 0.12  # of a budget: evaluations, checkpoints, the report
MEASURING = 0.1  # of a budget: beyond it nothing more is measured
_MEASURED_SECONDS, _MEASURED_STEPS = 3.0, 5
_NETWORK = ("model.name", "model.options.width")
_PICTURES = ("data.image_size", "data.train_transforms", "data.test_transforms")
_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Network(NamedTuple):
    """A network and the size of its pictures."""

    name: str
    width: int
    image_size: int


# From the one that two CPU cores can train in minutes to the one for a GPU. On small pictures a
# network of three stages learned more than one of four (docs/own_images.md).
NETWORKS = (
    Network("resnet14", 40, 64),
    Network("resnet14", 40, 96),
    Network("resnet14", 40, 128),
    Network("resnet18", 64, 128),
    Network("resnet18", 64, 224),
)


class Speed(NamedTuple):
    """The time that a few steps took."""

    step_seconds: float
    compile_seconds: float


class Situation(NamedTuple):
    """The facts that the choices depend on."""

    images: int
    tested: int
    classes: int
    devices: int


Measure = Callable[[ConfigDict], Speed]


def resolve(
    config: ConfigDict, directory: Path, say: Report, measure: Measure | None = None
) -> ConfigDict:
    """`config` with every field of `config.derive` filled in."""
    if workdir.has_checkpoints(directory):
        earlier = flatten(workdir.load_config(directory))
        return _with(config, {field: earlier[field] for field in config_lib.open_fields(config)})
    config_lib.validate(config)
    dataset = datasets.open_dataset(config.data)
    datasets.check_classes(dataset, config.data, lambda line: None)
    situation = Situation(
        len(dataset.train), len(dataset.test), dataset.num_classes, jax.device_count()
    )
    is_open, chosen = set(config_lib.open_fields(config)), {}
    for field, value, reason in _choices(config, situation, say, measure or measure_speed):
        if field in is_open:
            chosen[field] = value
            if reason:
                say(f"chosen: {field} = {value}: {reason}")
    unknown = sorted(is_open - chosen.keys() - {*_NETWORK, *_PICTURES, "epochs"})
    if unknown:
        raise UserError(f"derive ({unknown[0]!r}) is not a field that can be derived")
    return _with(config, chosen)


def _choices(
    config: ConfigDict, situation: Situation, say: Report, measure: Measure
) -> Iterator[tuple[str, Any, str]]:
    """Fields, values and reasons, each of which may depend on those before it."""
    images, is_open = situation.images, set(config_lib.open_fields(config))
    if "batch_size" in is_open:
        size = _batch_size(situation)
        yield "batch_size", size, f"a sixteenth of {images:,} images or less, but 8 to 64"
        config = _with(config, {"batch_size": size})
    batch, per_epoch = config.batch_size, _steps_per_epoch(config, images)
    bank = max(min(2048, images // batch * batch), batch)
    if "bank.size" in is_open:
        config = _with(config, {"bank.size": bank})
    has_bank = objectives.chosen(config.objective).needs.bank
    yield "bank.size", bank, "full within an epoch, since CoNe waits for it" * has_bank
    rows = max(config.bank.size // situation.classes, 1)
    neighbours = min(max(2 ** (rows.bit_length() - 1), 8), 32)
    yield (
        "objective.cone.neighbours",
        min(neighbours, config.bank.size),
        f"a class has about {rows} of the bank's rows; 8 to 32" * has_bank,
    )
    epochs = config.epochs
    if config.budget:
        fields, epochs, reason = _for_budget(config, situation, say, measure)
        for field, value in fields.items():
            yield field, value, "the largest that the budget trains well" if value else ""
        yield "epochs", epochs, reason
    elif "epochs" in is_open and not config.steps:
        steps, (least, most) = FINE_TUNING if config.init_from else FROM_SCRATCH
        epochs = min(max(-(-steps // per_epoch), least), most)
        yield "epochs", epochs, f"{steps:,} steps, {least} to {most} epochs"
    yield from _schedule(config, epochs, per_epoch)


def _schedule(config: ConfigDict, epochs: float, per_epoch: int) -> Iterator[tuple[str, Any, str]]:
    steps = config.steps or max(round(epochs * per_epoch), 1)
    length = steps / per_epoch
    warmup = round(min(10.0, 0.05 * length), 2)
    yield "schedule.warmup_epochs", warmup, f"5% of {length:g} epochs, at most 10"
    momentum = round(min(max(1.0 - 10.0 / steps, 0.9), 0.996), 4)
    yield (
        "ema.momentum",
        momentum,
        f"forgets within a tenth of {steps:,} steps",
    )
    every = float(max(round(length / EVALUATIONS), 1))
    yield "evaluation.every_epochs", every, f"so {max(round(length / every), 1)} times in all"
    yield "checkpoint.every_epochs", every, ""
    yield "log_every", min(20, per_epoch), ""


def _batch_size(situation: Situation) -> int:
    size = min(max(2 ** max((situation.images // 16).bit_length() - 1, 0), 8), 64)
    devices = situation.devices
    return -(-size // devices) * devices


def _steps_per_epoch(config: ConfigDict, images: int) -> int:
    return datasets.train_order(config, images).steps_per_epoch


def _for_budget(
    config: ConfigDict, situation: Situation, say: Report, measure: Measure
) -> tuple[dict[str, Any], int, str]:
    """Fields of the network, where it is open, and the epochs that the budget allows."""
    seconds, began = parse_budget(config.budget), time.monotonic()
    if jax.process_count() > 1:
        raise UserError("budget is for one process; set epochs where several share a run")
    left_open = set(config_lib.open_fields(config))
    if "epochs" not in left_open or config.steps:
        raise UserError(
            f"budget ({config.budget}) and epochs ({config.epochs}) are both given; give one"
        )
    choose = {*_NETWORK, *_PICTURES} <= left_open and not config.init_from
    say(f"measuring a few steps, to fit the run into {duration(seconds)}")
    if choose:
        candidate, speed = _largest(config, seconds, situation, measure)
        fields = _fields(candidate)
    else:
        fields, speed = {}, measure(config)
    left = seconds - (time.monotonic() - began)
    epochs = _epochs(config, left, speed, situation)
    per_epoch = speed.step_seconds * _steps_per_epoch(config, situation.images)
    if epochs < FEWEST_EPOCHS:
        raise UserError(
            f"budget ({config.budget}) is too short: an epoch takes {duration(per_epoch)} here, "
            f"and {FEWEST_EPOCHS} are the least; give more time, fewer pixels or a smaller network"
        )
    reason = f"{duration(seconds)} at {per_epoch:.1f} s per epoch on {machine()}, start included"
    return fields, epochs, reason


def _largest(
    config: ConfigDict, seconds: float, situation: Situation, measure: Measure
) -> tuple[Network, Speed]:
    """The largest network that sees every image often enough, and its speed.

    That of a larger one is predicted by its arithmetic. Since a part of a step does not grow with
    it, such as decoding, what has been measured may show that a still larger one will do.
    """
    began, candidate = time.monotonic(), NETWORKS[0]
    speed = measure(_with(config, _fields(candidate)))
    costs = {network: _cost(config, network, situation) for network in NETWORKS}
    while time.monotonic() - began < MEASURING * seconds:
        left, enough = seconds - (time.monotonic() - began), []
        for larger in NETWORKS[NETWORKS.index(candidate) + 1 :]:
            step_seconds = speed.step_seconds * costs[larger] / costs[candidate]
            predicted = Speed(step_seconds, speed.compile_seconds)
            if _epochs(config, left, predicted, situation) >= ENOUGH_EPOCHS:
                enough.append(larger)
        if not enough:
            break
        candidate = enough[-1]
        speed = measure(_with(config, _fields(candidate)))
    return candidate, speed


def _epochs(config: ConfigDict, seconds: float, speed: Speed, situation: Situation) -> int:
    per_epoch = speed.step_seconds * _steps_per_epoch(config, situation.images)
    # A forward pass alone is a quarter of CoNe's step.
    evaluation = situation.tested * speed.step_seconds / config.batch_size / 4
    usable = seconds * (1 - RESERVE) - speed.compile_seconds - EVALUATIONS * evaluation
    return max(int(usable / per_epoch), 0)


def _cost(config: ConfigDict, network: Network, situation: Situation) -> int:
    changed = _with(config, _fields(network))
    encoder = models.from_settings(Model.read(changed.model), situation.classes)
    return models.multiply_accumulates(encoder, network.image_size)


def _fields(network: Network) -> dict[str, Any]:
    size = network.image_size
    return {
        "model.name": network.name,
        "model.options.width": network.width,
        "data.image_size": size,
        "data.train_transforms": recipes.standard(size, scale=(0.2, 1.0)),
        "data.test_transforms": recipes.evaluation(round(size * 8 / 7), size),
    }


def measure_speed(config: ConfigDict) -> Speed:
    """Takes a few steps as training will, from reading files to the update.

    The median counts: other programs, and files that are read for the first time, delay a few.
    """
    run = Run.open(_with(config, {"steps": 10_000}))
    state, stream = run.init_state(), run.train_stream(0, lambda line: None)
    moments = [time.monotonic()]
    while len(moments) < _MEASURED_STEPS + 2 or moments[-1] - moments[1] < _MEASURED_SECONDS:
        state, metrics = train_step(state, next(stream))
        jax.block_until_ready(metrics)
        moments.append(time.monotonic())
    taken = [after - before for before, after in itertools.pairwise(moments)]
    return Speed(statistics.median(taken[1:]), taken[0])


def parse_budget(text: str) -> float:
    """Seconds.

    >>> parse_budget("30min"), parse_budget("1h 15min"), parse_budget("90s")
    (1800.0, 4500.0, 90.0)
    """
    parts = re.findall(r"([\d.]+)\s*([a-z]+)", text.lower())
    whole = "".join(number + unit for number, unit in parts) == re.sub(r"\s", "", text.lower())
    try:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts) if whole else 0.0
    except (KeyError, ValueError):
        seconds = 0.0
    if seconds <= 0:
        raise UserError(f"budget ({text!r}) must be a length of time, such as 30min, 2h or 1h30min")
    return seconds


def _with(config: ConfigDict, fields: dict[str, Any]) -> ConfigDict:
    changed = config.copy_and_resolve_references().unlock()
    with changed.ignore_type():
        changed.update_from_flattened_dict(fields)
    return changed.lock()
