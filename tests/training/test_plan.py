"""Recipes that leave fields open: what is chosen, why, and that a resumed run keeps it."""

import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from cone_jax import training, workdir
from cone_jax.config import leave_open, load_recipe
from cone_jax.errors import Interrupted, UserError
from cone_jax.modes import MODES, command_line
from cone_jax.sweeps.definition import apply_settings
from cone_jax.training import loop, plan
from cone_jax.training.plan import Speed
from cone_jax.training.run import Run
from cone_jax.training.train_log import Estimate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes of 40 tiny pictures: 36 of each to train on."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, colour in (("blue", (40, 40, 220)), ("red", (220, 40, 40))):
        (root / name).mkdir()
        for index in range(40):
            pixels = np.clip(rng.integers(-40, 40, (16, 16, 3)) + np.array(colour), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{index}.png")
    return root


@pytest.fixture
def config(folder):
    config = load_recipe("configs/folder.py").unlock()
    config.data.path = str(folder)
    return config


def test_values_follow_from_the_number_of_images(config, tmp_path):
    said: list[str] = []
    chosen = plan.resolve(config, tmp_path / "run", said.append)
    assert chosen.batch_size == 8  # of 72 images; a power of two
    assert chosen.bank.size == 72  # full after an epoch
    assert chosen.objective.cone.neighbours == 32
    assert chosen.epochs == 300  # 3,000 steps of nine an epoch would be more
    assert chosen.schedule.warmup_epochs == 10.0
    assert chosen.ema.momentum == 0.996
    assert chosen.evaluation.every_epochs == 30.0
    assert chosen.model.name == config.model.name  # only a budget says how large it may be
    assert any(line.startswith("chosen: bank.size = 72: full within an epoch") for line in said)
    assert "chosen: batch_size = 8: a sixteenth of 72 images or less, but 8 to 64" in said
    assert not list(Run.open(chosen).idle_terms())


def test_epochs_of_the_users_own_decide_the_rest(folder, tmp_path):
    command = ["--config=folder", f"--config.data.path={folder}", "--config.epochs=5"]
    config = command_line.parse(command, {name: mode.help for name, mode in MODES.items()}).config
    assert "epochs" not in dict(config.derive)
    said: list[str] = []
    chosen = plan.resolve(config, tmp_path / "run", said.append)
    assert chosen.epochs == 5
    assert "chosen: evaluation.every_epochs = 1.0: so 5 times in all" in said
    assert chosen.schedule.warmup_epochs == 0.25
    assert chosen.ema.momentum == 0.9
    assert "bank.size" in dict(config.derive)
    assert "bank.size" not in dict(apply_settings(config, {"bank.size": 2048}).derive)


def test_what_a_program_sets_is_not_chosen_anew(config, tmp_path):
    config.batch_size, config.bank.size = 24, 48
    chosen = plan.resolve(config, tmp_path, lambda line: None)
    assert (chosen.batch_size, chosen.bank.size) == (24, 48)
    assert chosen.epochs == 300


def measured(step_seconds: float):
    """The time of a step, were it in proportion to pixels; the smallest network's is given."""

    def measure(config) -> Speed:
        share = (config.data.image_size / 64) ** 2 * (config.model.options.width / 40) ** 2
        return Speed(step_seconds * share, 10.0)

    return measure


@pytest.mark.parametrize(
    ("step_seconds", "network", "least_epochs"),
    [(1.0, (40, 64), 40), (0.35, (40, 96), 60), (0.2, (40, 128), 60), (1e-4, (64, 224), 60)],
)
def test_a_budget_chooses_the_largest_network_that_trains_well_in_it(
    config, tmp_path, step_seconds, network, least_epochs
):
    config.budget = "10min"
    chosen = plan.resolve(config, tmp_path, lambda line: None, measured(step_seconds))
    assert (chosen.model.options.width, chosen.data.image_size) == network
    assert f"({chosen.data.image_size}," in chosen.data.train_transforms[0]
    assert chosen.epochs >= least_epochs
    speed = measured(step_seconds)(chosen).step_seconds
    assert chosen.epochs * 9 * speed < 600  # nine steps an epoch


def test_a_step_that_grows_less_than_its_arithmetic_allows_a_larger_network(config, tmp_path):
    seen = []

    def measure(config) -> Speed:
        seen.append(config.data.image_size)
        return Speed(0.75 * 0.35 + 0.25 * measured(0.35)(config).step_seconds, 10.0)

    config.budget = "10min"
    chosen = plan.resolve(config, tmp_path, lambda line: None, measure)
    assert seen == [64, 96, 128]
    assert (chosen.model.options.width, chosen.data.image_size) == (40, 128)


def test_a_budget_too_short_and_one_beside_epochs_are_refused(config, tmp_path):
    config.budget = "1min"
    with pytest.raises(UserError, match=r"budget \(1min\) is too short: an epoch takes 45 s here"):
        plan.resolve(config, tmp_path, lambda line: None, measured(5.0))
    config.epochs = 20
    with pytest.raises(UserError, match=r"budget \(1min\) and epochs \(20\) are both given"):
        plan.resolve(config, tmp_path, lambda line: None, measured(5.0))


@pytest.mark.parametrize("text", ["soon", "10", "-5min", "5 lightyears", "1.2.3h"])
def test_a_budget_is_a_length_of_time(text):
    with pytest.raises(UserError, match=r"budget \(.*\) must be a length of time, such as 30min"):
        plan.parse_budget(text)


def test_a_recipe_without_open_fields_has_no_budget():
    config = load_recipe("digits").unlock()
    config.budget = "5min"
    with pytest.raises(UserError, match=r"budget .* is for recipes that derive their length"):
        Run.open(config)


def test_an_interrupted_run_goes_on_with_what_was_chosen(config, tmp_path, monkeypatch):
    config.data.image_size = 16
    config.data.train_transforms = ("random_crop(16)",)
    config.data.test_transforms = ("centre_crop(16)",)
    config.model.name, config.model.options.width = "resnet8", 4
    config.model.head_hidden, config.model.embedding_dim = 16, 8
    config.budget, config.checkpoint.every_epochs = "5min", 1.0
    leave_open(config, "batch_size", "bank.size", "epochs", "schedule.warmup_epochs")
    monkeypatch.setattr(plan, "measure_speed", lambda config: Speed(8.0, 0.0))
    monkeypatch.setattr(loop.Interruption, "requested", lambda self, step: step == 9)
    with pytest.raises(Interrupted):
        training.train(config, tmp_path / "run", Console(quiet=True))
    first = json.loads((tmp_path / "run" / "config.json").read_text())
    assert first["epochs"] == 3
    monkeypatch.setattr(plan, "measure_speed", lambda config: Speed(1.0, 0.0))
    monkeypatch.setattr(loop.Interruption, "requested", lambda self, step: False)
    output = io.StringIO()
    training.train(config, tmp_path / "run", Console(file=output, width=300))
    assert workdir.load_config(tmp_path / "run").epochs == 3
    assert "measuring" not in output.getvalue()
    config.budget = "7min"
    with pytest.raises(UserError, match="holds a run with budget = '5min'"):
        training.train(config, tmp_path / "run", Console(quiet=True))


def test_terms_that_hardly_ever_count_are_named_before_training(config):
    config.derive, config.epochs, config.batch_size, config.bank.size = (), 5, 8, 512
    config.schedule.warmup_epochs = 4.0
    lines = list(Run.open(config).idle_terms())
    assert "count in 0 of 45 steps" in lines[0]
    assert "schedule.warmup_epochs (4) takes 36 of 45 steps" in lines[1]
    config.bank.size, config.schedule.warmup_epochs = 72, 1.0
    assert not list(Run.open(config).idle_terms())


def test_the_field_that_changes_the_length_is_one_that_may(config):
    assert loop._length_field(config) == "budget"
    config.derive = ()
    assert loop._length_field(config) == "epochs"
    config.steps = 40
    assert loop._length_field(config) == "steps"


def test_the_first_steps_tell_how_long_the_run_will_take():
    times = iter((0.0, 60.0, 62.0, 64.0, 66.0))  # the second call ends the compilation
    estimate = Estimate(301, "--config.budget changes it", clock=lambda: next(times))
    told = [list(estimate.add(step)) for step in range(1, 7)]
    assert told[:4] == [[]] * 4
    assert told[4][0].startswith("about 9 min 52 s on ")
    assert re.fullmatch(r"memory that the process has taken so far: [\d.]+ [GM]iB", told[4][1])
    assert told[5] == []


def test_a_few_slow_steps_do_not_decide_the_speed(config, monkeypatch):
    """The first compiles; of the others one waits for a file and one for another program."""
    clock, seconds = [0.0], iter([30.0, 9.0, 1.0, 1.0, 1.0, 7.0] + 20 * [1.0])

    class Opened:
        def init_state(self):
            return None

        def train_stream(self, step, report):
            return iter(range(100))

    def step(state, batch):
        clock[0] += next(seconds)
        return state, {}

    monkeypatch.setattr(plan.Run, "open", lambda config: Opened())
    monkeypatch.setattr(plan, "train_step", step)
    monkeypatch.setattr(plan.time, "monotonic", lambda: clock[0])
    assert plan.measure_speed(config) == Speed(1.0, 30.0)
