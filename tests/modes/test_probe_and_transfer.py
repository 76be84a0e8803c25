"""Probing and fine-tuning from the command line to the files."""

import functools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from cone_jax import storage, training
from cone_jax.errors import TrainingFailed, UserError
from cone_jax.modes import command_line, probe, transfer
from cone_jax.modes.command_line import FLAGS, Arguments
from cone_jax.sweeps import runner
from cone_jax.training import pretrained
from cone_jax.workdir import lock
from tests import bucket_servers

ROOT = Path(__file__).parent.parent.parent

# Stands for training. Validation likes a rate of 0.01 best; 1.0 diverges; 0.5 fails at first.
PROGRAM = """
import json, sys
from cone_jax import storage
directory = storage.path(sys.argv[1])
config = json.loads((directory / "config.json").read_text())
rate, decay = (config["optimizer"][name] for name in ("learning_rate", "weight_decay"))
starts = directory / "starts"
starts.write_text((starts.read_text() if starts.exists() else "") + "x")
if rate == 1.0:
    (directory / "bad_batches.jsonl").write_text("")
    sys.exit("the loss is nan")
if rate == 0.5 and starts.read_text() == "x":
    sys.exit("the disk is full")
(directory / "checkpoints" / "1").mkdir(parents=True, exist_ok=True)
(directory / "checkpoints" / "1" / "commit_success.txt").write_text("")
score = {0.01: 0.8}.get(rate, 0.6) + 0.1 * (decay > 0)
if config["data"]["test_split"] == "test":
    score -= 0.25
metrics = {"test/top1": score, "test/mean_per_class": score - 0.01}
(directory / "result.json").write_text(json.dumps(metrics))
"""


@pytest.fixture
def fine_tune(tmp_path, monkeypatch):
    """``--mode=transfer`` with other arguments, on two classes, without real training."""
    monkeypatch.chdir(ROOT)
    command = (sys.executable, "-c", PROGRAM)
    carry_out = functools.partial(runner.carry_out, command=command)
    monkeypatch.setattr(runner, "carry_out", carry_out)
    monkeypatch.setattr(pretrained, "check_weights", lambda config: "weights: fine")
    for part in ("train", "test"):
        for name in ("owl", "tit"):
            (tmp_path / "birds" / part / name).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (8, 8)).save(tmp_path / "birds" / part / name / f"{i}.png")

    def run(*others, place=tmp_path / "transfer"):
        argv = [
            "--mode=transfer",
            "--config=configs/transfer.py:pets,folder,small,32px",
            "--config.init_from=weights.safetensors",
            f"--config.data.path={tmp_path / 'birds'}",
            f"--workdir={place}",
            *others,
        ]
        arguments = command_line.parse(argv, {"transfer": ""})
        transfer.transfer(arguments, Console(quiet=True))
        return json.loads((place / "transfer.json").read_text())

    return run


def starts(directory):
    found = {path.parent.name: len(path.read_text()) for path in directory.rglob("starts")}
    return dict(sorted(found.items()))


def test_a_transfer_from_the_grid_to_the_table(fine_tune, tmp_path):
    found = fine_tune()
    assert found["dataset"] == "Pets"
    assert found["chosen"] == {
        "learning_rate": 0.01,
        "weight_decay": 1e-4,
        "validation": pytest.approx(0.89),  # mean per class, as Pets has it
    }
    assert found["test"] == pytest.approx({"top1": 0.65, "mean_per_class": 0.64})
    assert found["grid"] == {"runs": 4, "finished": 4, "diverged": []}
    assert found["run"] == "final_0.01_0.0001"
    assert "| 64.0 |" in (tmp_path / "transfer" / "transfer.md").read_text()
    assert (tmp_path / "transfer" / "grid" / "table.png").exists()


def test_a_transfer_in_a_bucket_is_that_on_a_disk(fine_tune, main, tmp_path):
    with bucket_servers.running("s3") as port, bucket_servers.reached("s3", port) as url:
        place = storage.path(f"{url}/transfer")
        smaller = "--config.transfer.weight_decays=(0.0,)"
        there, here = fine_tune(smaller, place=place), fine_tune(smaller)
        assert there == here
        assert fine_tune(smaller, place=place) == here
        assert starts(place) == starts(tmp_path / "transfer")
        assert set(starts(place).values()) == {1}
        assert main(["--mode=transfer", f"--workdirs={place}", f"--workdir={url}/all"]) == 0
        table = (storage.path(url) / "all" / "transfer.md").read_text()
        assert table == (tmp_path / "transfer" / "transfer.md").read_text()


def test_nothing_runs_twice_and_a_grid_may_grow(fine_tune, tmp_path):
    first = fine_tune()
    assert fine_tune() == first
    assert set(starts(tmp_path / "transfer").values()) == {1}
    grown = fine_tune("--config.transfer.learning_rates=(0.001, 0.01, 0.1)")
    assert grown["grid"]["runs"] == 6
    assert len(starts(tmp_path / "transfer")) == 7
    assert set(starts(tmp_path / "transfer").values()) == {1}


def test_a_run_that_diverges_is_a_result_and_one_that_fails_is_not(fine_tune, tmp_path):
    rates = "--config.transfer.learning_rates=(0.01, 0.5, 1.0)"
    decays = "--config.transfer.weight_decays=(0.0,)"
    with pytest.raises(TrainingFailed, match="the disk is full"):
        fine_tune(rates, decays)
    assert not (tmp_path / "transfer" / "transfer.json").exists()
    found = fine_tune(rates, decays)
    assert found["grid"] == {"runs": 3, "finished": 2, "diverged": ["1_0"]}
    assert found["chosen"]["learning_rate"] == 0.01
    assert starts(tmp_path / "transfer") == {"0.01_0": 1, "0.5_0": 2, "1_0": 1, "final_0.01_0": 1}


def test_a_second_start_is_refused_while_the_first_goes_on(fine_tune, main, tmp_path, capsys):
    place = tmp_path / "transfer"
    with lock.held(place, print, 60.0):
        with pytest.raises(UserError, match=r"transfer\) is in use by process"):
            fine_tune()
        sweep = ["--sweep=configs/sweeps/momentum.py:digits", f"--workdir={place}"]
        assert main(["--mode=sweep", *sweep]) == 2
        assert "is in use by process" in capsys.readouterr().err
        assert [path.name for path in place.iterdir()] == [lock.LOCK_FILE]


def test_several_transfers_make_one_table(fine_tune, main, tmp_path, capsys):
    fine_tune()
    record = json.loads((tmp_path / "transfer" / "transfer.json").read_text())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "transfer.json").write_text(json.dumps({**record, "dataset": "DTD"}))
    named = f"{tmp_path}/transfer,{tmp_path}/other"
    argv = ["--mode=transfer", f"--workdirs={named}", f"--workdir={tmp_path}/all"]
    assert main(argv) == 0
    assert "64.0 | 64.0" in capsys.readouterr().out
    assert (tmp_path / "all" / "transfer.md").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--mode=transfer"], ["transfer.learning_rates is empty", "configs/transfer.py"]),
        (["--mode=transfer", "--config=configs/transfer.py"], ["init_from is empty"]),
        (["--mode=transfer", "--workdirs=a"], ["a has no transfer.json"]),
        (["--mode=probe", "--output=x.csv"], ["--output (x.csv)", ".npz or .parquet"]),
        (["--mode=probe", "--workdir=no/such"], ["no/such", "config.json"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    main, capsys, tmp_path, monkeypatch, arguments, parts
):
    monkeypatch.chdir(ROOT)
    if not any(argument.startswith("--workdir=") for argument in arguments):
        arguments = [*arguments, f"--workdir={tmp_path / 'run'}"]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err


def test_a_run_is_probed_from_its_workdir_alone(separable_config, tmp_path, monkeypatch):
    """What the probes find is tested where they are."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(probe, "linear_scores", lambda *a, **k: {"linear/top1": 0.5})
    monkeypatch.setattr(probe, "few_shot_scores", lambda *a, **k: {})
    separable_config.steps = 2
    training.train(separable_config, tmp_path / "run", Console(quiet=True))
    assert json.loads((tmp_path / "run" / "classes.json").read_text()) == list("01234567")
    flags = {name: default for name, (default, _) in FLAGS.items()}
    flags["output"] = str(tmp_path / "features.npz")
    blank = command_line.load_recipe("configs/digits.py")
    arguments = Arguments("probe", "configs/digits.py", blank, tmp_path / "run", flags)
    probe.probe(arguments, Console(quiet=True))
    found = json.loads((tmp_path / "run" / "probe.json").read_text())
    assert (found["step"], found["train_examples"], found["test_examples"]) == (2, 64, 32)
    assert found["features"].keys() == found["embedding"].keys()
    assert found["features"]["knn20/top1"] > 0.5
    with np.load(tmp_path / "features.npz") as stored:
        assert stored["train_features"].shape == (64, 16)
        assert stored["test_embedding"].shape == (32, 8)
    # The same weights, given by hand, are probed on the data of the config.
    separable_config.init_from = str(tmp_path / "run")
    by_hand = arguments._replace(config=separable_config, workdir=tmp_path / "elsewhere")
    probe.probe(by_hand, Console(quiet=True))
    again = json.loads((tmp_path / "elsewhere" / "probe.json").read_text())
    assert again["features"] == found["features"]
