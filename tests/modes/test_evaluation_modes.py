"""Evaluators while training, and again on its checkpoints from the workdir alone."""

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from cone_jax import training
from cone_jax.data import contact_sheet
from cone_jax.errors import UserError
from cone_jax.evaluation.corruptions import CORRUPTIONS
from cone_jax.modes import MODES, command_line
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir.metrics import read_records

QUIET = Console(quiet=True)
KEY = "classification(network='key', every_epochs=1.5)"
AVERAGED = "classification(network='averaged', every_epochs=0)"


def run_mode(mode, workdir, *flags, console=QUIET):
    arguments = command_line.parse([f"--mode={mode}", f"--workdir={workdir}", *flags], MODES)
    MODES[mode].run(arguments, console)


@pytest.fixture
def trained(separable_config, tmp_path):
    """24 steps, 8 an epoch: the test split after each, the key network after 12 and 24."""
    config = separable_config
    config.steps = 24
    config.average.decay = 0.9
    config.average.every = 4
    config.evaluation.evaluators = ("classification", KEY, AVERAGED)
    config.evaluation.every_epochs = 1.0
    config.checkpoint.every_epochs = 0.5
    config.checkpoint.keep = 9
    config.checkpoint.best_metric = "test_key/loss"
    training.train(config, tmp_path / "run", QUIET)
    return tmp_path / "run"


def scores_in(record, prefix):
    return {name: value for name, value in record.items() if name.startswith(f"{prefix}/")}


def test_evaluators_from_training_to_their_files(trained, monkeypatch):
    records = {record["step"]: record for record in read_records(trained / "metrics.jsonl")}

    def measured(prefix):
        return [step for step, record in records.items() if scores_in(record, prefix)]

    assert measured("test") == [8, 16, 24]
    assert measured("test_key") == [12, 24]
    assert measured("test_averaged") == [24]
    # What is evaluated is the averaged model, where there is one.
    averaged = scores_in(records[24], "test_averaged").values()
    assert list(averaged) == list(scores_in(records[24], "test").values())
    assert records[24]["test_key/loss"] != records[24]["test/loss"]

    losses = {step: records[step]["test_key/loss"] for step in (12, 24)}
    best = RunDirectory.open(trained).resolve("best")
    assert best == min(losses, key=losses.get)

    said = Console(file=io.StringIO(), width=200)
    run_mode("evaluate", trained, "--step=24", console=said)
    assert ", step 24 (epoch 3)" in said.file.getvalue()
    assert "no font" not in said.file.getvalue()
    again = json.loads((trained / "evaluation.json").read_text())
    recorded = {name: value for name, value in records[24].items() if name.startswith("test")}
    assert again == {"step": 24} | recorded

    # Another evaluator of the same checkpoint is added, another checkpoint starts anew.
    run_mode("evaluate", trained, "--step=24", "--evaluators=classification('train', name='fit')")
    more = json.loads((trained / "evaluation.json").read_text())
    assert more.keys() - again.keys() == {f"fit/{name}" for name in _metrics()}
    monkeypatch.setattr(contact_sheet, "missing_characters", lambda names: "猫")
    run_mode("evaluate", trained, "--step=12", f"--evaluators={KEY}", console=said)
    assert "warning: no font on this machine has '猫'" in said.file.getvalue()
    earlier = json.loads((trained / "evaluation.json").read_text())
    assert earlier == {"step": 12} | scores_in(records[12], "test_key")
    _check_files(trained, records[24])
    with pytest.raises(UserError, match=r"--evaluators: .* is not a list of calls"):
        run_mode("evaluate", trained, "--evaluators=knn(k=")
    with pytest.raises(UserError, match=r"no evaluator 'kn'; the closest is knn"):
        run_mode("evaluate", trained, "--evaluators=kn")


def _metrics():
    return ("top1", "top5", "loss", "mean_per_class", "ece")


def _check_files(trained, record):
    folder = trained / "evaluation" / "test"
    header, *rows = csv.reader(io.StringIO((folder / "confusion.csv").read_text()))
    assert header == ["class", *map(str, range(8))]
    matrix = np.array([row[1:] for row in rows], int)
    assert matrix.sum() == 32
    assert np.trace(matrix) / 32 == record["test/top1"]
    table = list(csv.DictReader(io.StringIO((folder / "per_class.csv").read_text())))
    assert [int(row["examples"]) for row in table] == [4] * 8
    accuracies = [float(row["accuracy"]) for row in table]
    np.testing.assert_allclose(accuracies, np.diag(matrix) / 4, atol=1e-6)
    assert all(float(r["low_95"]) <= float(r["accuracy"]) <= float(r["high_95"]) for r in table)
    table = list(csv.DictReader(io.StringIO((folder / "predictions.csv").read_text())))
    assert [row["path"].rpartition("/")[2] for row in table] == [
        f"test.npz[{record}]" for record in range(32)
    ]
    right = [row["class_1"] == row["label"] for row in table]
    assert np.mean(right) == record["test/top1"]
    for row in table:
        sure = [float(row[f"probability_{rank}"]) for rank in range(1, 6)]
        assert sure == sorted(sure, reverse=True)
        assert sum(sure) <= 1.0001
        assert len({row[f"nearest_{place}"] for place in (1, 2, 3)}) == 3
    for name in ("confusion.png", "mistakes.png"):
        path = trained / "evaluation" / "test_key" / name
        with Image.open(path) as picture:
            assert min(picture.size) > 50


def test_robustness_writes_and_is_100_of_itself(separable_config, tmp_path):
    separable_config.steps = 2
    training.train(separable_config, tmp_path / "run", QUIET)
    run_mode("robustness", tmp_path / "run")
    folder = tmp_path / "run" / "evaluation" / "robustness"
    rows = list(csv.DictReader(io.StringIO((folder / "errors.csv").read_text())))
    assert [(row["corruption"], row["severity"]) for row in rows] == [
        ("clean", "0"),
        *((kind, str(severity)) for kind in CORRUPTIONS for severity in range(1, 6)),
    ]
    plain = (folder / "robustness.md").read_text()
    assert "CE" not in plain
    assert plain.count("\n|") == 2 + 15 + 1
    assert (folder / "robustness.png").stat().st_size > 5000
    scores = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    mean = np.mean([float(row["error"]) for row in rows[1:]])
    assert scores["robustness/error"] == pytest.approx(mean)

    run_mode("robustness", tmp_path / "run", f"--baseline={tmp_path / 'run'}")
    scores = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert scores["robustness/mce"] == 100.0
    assert "| 100.00 |" in (folder / "robustness.md").read_text()
    with pytest.raises(UserError, match="cannot be read; make it with --mode=robustness"):
        run_mode("robustness", tmp_path / "run", f"--baseline={tmp_path}")
    other = "--evaluators=robustness(data='/other/pictures', name='robustness')"
    with pytest.raises(UserError, match="holds the results of the test split, corrupted here"):
        run_mode("evaluate", tmp_path / "run", other)


def test_embeddings_are_judged_while_there_is_no_classifier(separable_config, tmp_path):
    """kNN in both stages of SupCon, accuracy in the second alone."""
    from cone_jax import config as config_lib

    config = separable_config
    config_lib.use_objective(config, "supcon")
    config.steps = config.linear_stage.steps = 8
    config.evaluation.evaluators = ("classification", "knn(k=3, name='near')")
    config.checkpoint.best_metric = "near/top1"
    config.checkpoint.keep = 9
    config.checkpoint.every_epochs = 1.0
    training.train(config, tmp_path, QUIET)
    records = {record["step"]: record for record in read_records(tmp_path / "metrics.jsonl")}
    assert scores_in(records[8], "near")
    assert not scores_in(records[8], "test")
    assert scores_in(records[16], "near")
    assert scores_in(records[16], "test")
    run_mode("evaluate", tmp_path, "--step=8", "--evaluators=knn(k=3, name='near')")
    again = json.loads((tmp_path / "evaluation.json").read_text())
    assert again == {"step": 8} | scores_in(records[8], "near")
    with pytest.raises(UserError, match="trains no classifier; choose one after 8"):
        run_mode("evaluate", tmp_path, "--step=8", "--evaluators=classification")
