"""What is kept of a network, against the data and the run's own evaluation."""

import numpy as np
import pytest

from cone_jax.analysis import report_inputs
from cone_jax.analysis.snapshot import DIRECTORY, Snapshot
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir.metrics import METRICS_FILE, latest_values


@pytest.fixture(scope="module")
def snapshot(small_run) -> Snapshot:
    return report_inputs.obtain_snapshot(RunDirectory.open(small_run.directory))


@pytest.fixture(scope="module")
def labels(small_run) -> dict[str, np.ndarray]:
    """The true labels of both splits, read without the project."""
    return {
        split: np.load(small_run.data / f"{split}.npz")["labels"] for split in ("train", "test")
    }


def test_predictions_give_the_accuracy_that_training_reported(snapshot, labels, small_run):
    np.testing.assert_array_equal(snapshot.labels, labels["test"])
    accuracy = np.mean(snapshot.predictions == snapshot.labels)
    final = latest_values(small_run.directory / METRICS_FILE)
    assert accuracy == pytest.approx(final["test/top1"], abs=1e-6)


def test_neighbours_are_the_records_they_claim_to_be(snapshot, labels):
    sheet = snapshot.neighbours
    np.testing.assert_array_equal(sheet.labels, labels["test"][sheet.queries])
    np.testing.assert_array_equal(sheet.predictions, snapshot.predictions[sheet.queries])
    np.testing.assert_array_equal(sheet.neighbour_labels, labels["train"][sheet.neighbours])
    assert (sheet.labels == sheet.predictions).any()
    assert (sheet.labels != sheet.predictions).any()


def test_positives_have_the_class_of_their_query(snapshot, labels):
    sheet = snapshot.pulls
    np.testing.assert_array_equal(sheet.labels, labels["train"][sheet.queries])
    assert len(set(sheet.labels.tolist())) == len(sheet.labels)
    for index, label in enumerate(sheet.labels):
        known = sheet.positives[index][np.isfinite(sheet.alpha[index])]
        assert len(known)
        assert (labels["train"][known] == label).all()
        assert sheet.queries[index] not in known


def test_maps_have_a_point_for_each_picture(snapshot, labels):
    shown = snapshot.classes_map
    assert shown.points.shape == (len(shown.labels), 2)
    counts = np.bincount(labels["test"], minlength=10)
    np.testing.assert_array_equal(np.bincount(shown.labels), np.minimum(counts, 50))
    one = snapshot.one_class_map
    assert int(one.label) == 0
    assert len(one.points) == len(one.correct) == np.sum(labels["train"] == 0)


def test_what_is_stored_comes_back(snapshot, tmp_path):
    snapshot.save(tmp_path)
    loaded = Snapshot.load(tmp_path, snapshot.step)
    assert loaded.class_names == snapshot.class_names
    assert loaded.versions == snapshot.versions
    assert {"cone_jax", "jax", "devices"} <= loaded.versions.keys()
    np.testing.assert_array_equal(loaded.predictions, snapshot.predictions)
    for name in ("classes_map", "one_class_map", "neighbours", "pulls"):
        ours, theirs = getattr(snapshot, name), getattr(loaded, name)
        for field, value in ours._asdict().items():
            np.testing.assert_array_equal(value, getattr(theirs, field))
    assert Snapshot.load(tmp_path, snapshot.step + 1) is None


def test_a_network_is_looked_at_once(snapshot, small_run, monkeypatch):
    monkeypatch.setattr(report_inputs, "take", lambda network: pytest.fail("looked again"))
    report_inputs.obtain_snapshot(RunDirectory.open(small_run.directory))
    assert (small_run.directory / DIRECTORY / f"snapshot-{snapshot.step}.npz").exists()
