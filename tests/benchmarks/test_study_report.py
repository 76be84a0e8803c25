"""What the study concludes from its records."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from cone_jax import config as config_lib

PATH = Path(__file__).parents[2] / "benchmarks" / "study_report.py"


@pytest.fixture(scope="module")
def study_report():
    spec = importlib.util.spec_from_file_location("study_report", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["study_report"] = module
    spec.loader.exec_module(module)
    return module


def record(method, seed, top1, **others):
    scores = {"test/top1": top1, "test/loss": 2.0, "fit/top1": 0.97}
    return {"method": method, "seed": seed, **scores, **others}


def test_a_fingerprint_follows_what_is_computed_and_nothing_else(study_report):
    config = config_lib.default()
    same, other = ConfigDict(config), ConfigDict(config)
    same.data.path, same.data.threads = "elsewhere", 7
    other.seed = 1
    prints = [study_report.fingerprint(c) for c in (config, same, other)]
    assert prints[0] == prints[1] != prints[2]


def test_records_come_back_by_fingerprint(study_report, tmp_path):
    path = tmp_path / "results" / "study.jsonl"
    assert study_report.read(path) == {}
    config, other = config_lib.default(), config_lib.default()
    other.seed = 1
    for settings, top1 in ((config, 0.5), (other, 0.25)):
        result = {"test/top1": top1, "test/loss": 1.0, "unwanted": 3.0}
        study_report.append(path, {"method": "CE", "seed": settings.seed}, settings, result)
    records = study_report.read(path)
    assert records[study_report.fingerprint(other)]["test/top1"] == 0.25
    assert len(records) == 2
    assert "unwanted" not in records[study_report.fingerprint(config)]


def test_the_gain_is_paired_by_seed_and_its_error_is_that_of_a_mean(study_report):
    rng = np.random.default_rng(0)
    base, scores = rng.normal(30, 1, 5), rng.normal(31, 1, 5)
    mean, error = study_report.gain(dict(enumerate(scores)), {**dict(enumerate(base)), 9: 1000.0})
    assert mean == pytest.approx((scores - base).mean())
    assert error == pytest.approx((scores - base).std(ddof=1) / np.sqrt(5))


def test_the_table_holds_mean_deviation_every_seed_and_the_gain(study_report):
    final = {
        "CE": [record("CE", 0, 0.30), record("CE", 1, 0.32)],
        "CoNe": [record("CoNe", 1, 0.35), record("CoNe", 0, 0.31)],
    }
    lines = study_report.results_table(final).splitlines()
    assert lines[2] == "| CE | 31.00 ± 1.41 | 30.00, 32.00 |  | 2.00 | 97.0 |"
    assert lines[3] == "| CoNe | 33.00 ± 2.83 | 31.00, 35.00 | +2.00 ± 1.00 | 2.00 | 97.0 |"


def test_a_gain_that_rounds_to_nothing_has_no_minus(study_report):
    final = {"CE": [record("CE", 0, 0.3)], "CoNe": [record("CoNe", 0, 0.29999)]}
    assert "+0.00" in study_report.results_table(final).splitlines()[3]


def test_the_first_of_the_best_candidates_is_used(study_report):
    tried = [
        record("CE", 100, top1, candidate=candidate, settings={"optimizer.learning_rate": rate})
        for candidate, top1, rate in ((0, 0.2, 0.1), (1, 0.3, 0.2), (2, 0.3, 0.4))
    ]
    assert study_report.best_candidate(tried[::-1]) == 1
    assert study_report.best_candidate(tried, allowed=(0, 2)) == 2
    [line] = [
        line for line in study_report.tuning_table({"CE": tried}).splitlines() if "used" in line
    ]
    assert "`optimizer.learning_rate=0.2`" in line


def test_the_document_keeps_the_words_around_the_tables(study_report, tmp_path):
    document = tmp_path / "study.md"
    document.write_text(f"# Before\n{study_report.BEGIN}\nold\n{study_report.END}\nAfter\n")
    study_report.write(document, "new")
    study_report.write(document, "newer")
    text = document.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("\nAfter\n")
    assert "newer" in text
    assert "old" not in text
    study_report.draw({"CE": [record("CE", 0, 0.3)]}, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
