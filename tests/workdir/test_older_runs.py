"""A run that an earlier state of the project wrote goes on as if nothing had changed.

`run_of_version_0.1.0.tar.gz` holds a run of six steps with checkpoints at steps 3 and 6. One device
wrote it before modules moved into packages (CoNe, ResNet-8 of width 4, a bank of 72 rows, digits).
"""

import json
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from cone_jax import training, workdir
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import Checkpoints

pytestmark = pytest.mark.optimised

ARCHIVE = Path(__file__).parent / "run_of_version_0.1.0.tar.gz"
QUIET = Console(quiet=True)


@pytest.fixture
def older_run(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "run", filter="data")
    return tmp_path / "run"


def restore(directory, step):
    run = Run.open(workdir.load_config(directory))
    with Checkpoints(directory, read_only=True) as checkpoints:
        return checkpoints.restore(step, run.abstract_state()).state


def records(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_it_goes_on_from_its_checkpoint_and_ends_where_it_ended(older_run, tmp_path):
    expected, expected_records = restore(older_run, 6), records(older_run)
    for path in ("checkpoints/6", "manifests/6.json"):
        (older_run / path).rename(tmp_path / path.replace("/", "_"))
    config = workdir.load_config(older_run)
    training.train(config, older_run, QUIET)
    found = restore(older_run, 6)
    # Eight devices instead of one: sums in another order, and that is all.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found, expected)
    assert [record["step"] for record in records(older_run)] == [2, 4, 6]
    for now, then in zip(records(older_run), expected_records, strict=True):
        assert now == pytest.approx(then, abs=1e-3)


def test_every_array_of_its_state_has_its_place_still(older_run):
    state = restore(older_run, 3)
    assert int(state.step) == 3
    assert int(state.bank.filled) == 72
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
