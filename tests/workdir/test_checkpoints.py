"""Checkpoints: damage is found and named, the newest intact one is used, readers change nothing."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from cone_jax.errors import TrainingFailed, UserError
from cone_jax.workdir.checkpoints import Checkpoints, resolve_step


def state(value):
    return {"params": {"w": jax.numpy.full((300,), float(value))}, "step": jax.numpy.int32(value)}


@pytest.fixture
def workdir(tmp_path):
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state(step), {"next_step": step}, {"window": {}})
            checkpoints.wait()
    return tmp_path


def largest_file(directory):
    return max((p for p in directory.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def truncate(directory):
    path = largest_file(directory / "state")
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(directory):
    path = largest_file(directory / "state")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(directory):
    largest_file(directory / "state").write_bytes(b"")


def remove(directory):
    (directory / "data" / "metadata").unlink()


def empty_metrics(directory):
    """Which Orbax reads as soon as the directory is opened."""
    (directory / "metrics" / "metrics").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (empty_metrics, "has 0 bytes"),
        (truncate, "bytes instead of"),
        (flip_a_bit, "another checksum"),
        (empty, "has 0 bytes"),
        (remove, "is missing"),
    ],
)
def test_damage_is_named_and_the_checkpoint_before_is_used(workdir, damage, words):
    damage(workdir / "checkpoints" / "3")
    said = []
    with Checkpoints(workdir, keep=3) as checkpoints:
        step = checkpoints.newest_intact_step(said.append)
        assert step == 2
        restored = checkpoints.restore(step, jax.eval_shape(lambda: state(0)))
        np.testing.assert_array_equal(restored.state["params"]["w"], 2.0)
        assert restored.data == {"next_step": 2}
        # The step can be saved again.
        checkpoints.save(3, state(3), {"next_step": 3}, {})
    assert len(said) == 1
    assert "checkpoint 3 is damaged" in said[0]
    assert words in said[0]
    assert (workdir / "damaged" / "3").is_dir()


def test_the_same_step_may_be_damaged_twice(workdir):
    for _ in range(2):
        truncate(workdir / "checkpoints" / "3")
        with Checkpoints(workdir, keep=3) as checkpoints:
            assert checkpoints.newest_intact_step(lambda line: None) == 2
            checkpoints.save(3, state(3), {}, {})
    assert sorted(path.name for path in (workdir / "damaged").iterdir()) == ["3", "3-2"]


def test_damaged_checkpoints_are_not_moved_along_a_link(workdir, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (workdir / "damaged").symlink_to(outside)
    truncate(workdir / "checkpoints" / "3")
    with pytest.raises(UserError, match="damaged is a link"):
        Checkpoints(workdir)
    assert not any(outside.iterdir())
    assert (workdir / "checkpoints" / "3").is_dir()


def test_a_damaged_checkpoint_that_is_a_link_leaves_its_target_alone(workdir, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "3"
    (workdir / "checkpoints" / "3").rename(outside)
    (workdir / "checkpoints" / "3").symlink_to(outside)
    truncate(outside)
    before = sorted(outside.rglob("*"))
    with Checkpoints(workdir, keep=3) as checkpoints:
        assert checkpoints.newest_intact_step(lambda line: None) == 2
    assert sorted(outside.rglob("*")) == before
    assert (workdir / "damaged" / "3").is_symlink()


@pytest.mark.parametrize("name", ["../../1.json", "/etc/hostname"])
def test_a_manifest_that_names_other_files_is_damaged(workdir, name):
    manifest = workdir / "manifests" / "3.json"
    manifest.write_text(json.dumps({name: [0, 0]}))
    said = []
    with Checkpoints(workdir, keep=3) as checkpoints:
        assert checkpoints.newest_intact_step(said.append) == 2
    assert "3.json is unreadable" in said[0]


def test_other_files_beside_checkpoints_are_no_hindrance(workdir):
    for name in ("checkpoints/.nfs0001", "checkpoints/notes", "manifests/notes.json"):
        (workdir / name).touch()
    with Checkpoints(workdir, keep=3) as checkpoints:
        checkpoints.save(4, state(4), {}, {})
    assert (workdir / "manifests" / "4.json").exists()
    assert (workdir / "manifests" / "notes.json").exists()


def test_an_older_checkpoint_that_cannot_be_opened_is_no_hindrance(workdir):
    empty_metrics(workdir / "checkpoints" / "1")
    said = []
    with Checkpoints(workdir, keep=3) as checkpoints:
        assert checkpoints.newest_intact_step(said.append) == 3
    assert "checkpoint 1 is damaged" in said[0]


def test_all_damaged_is_an_error_not_a_fresh_start(workdir):
    for step in (1, 2, 3):
        truncate(workdir / "checkpoints" / str(step))
    for _ in range(2):  # nor at the second attempt
        with (
            Checkpoints(workdir, keep=3) as checkpoints,
            pytest.raises(TrainingFailed, match="every checkpoint"),
        ):
            checkpoints.newest_intact_step(lambda line: None)


def test_manifests_follow_the_checkpoints(workdir):
    with Checkpoints(workdir, keep=1) as checkpoints:
        checkpoints.save(4, state(4), {}, {})
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == ["4"]
    with Checkpoints(workdir, keep=1) as checkpoints:
        checkpoints.save(5, state(5), {}, {})
        checkpoints.wait()
    assert (workdir / "manifests" / "5.json").exists()
    assert not (workdir / "manifests" / "1.json").exists()


def test_readers_leave_unfinished_writes_alone(workdir):
    unfinished = workdir / "checkpoints" / "9.orbax-checkpoint-tmp"
    unfinished.mkdir()
    with Checkpoints(workdir, read_only=True) as checkpoints:
        assert checkpoints.latest_step() == 3
    assert unfinished.is_dir()
    with Checkpoints(workdir) as checkpoints:
        assert checkpoints.latest_step() == 3
        checkpoints.save(4, state(4), {}, {})  # Orbax clears away in the background until then
    assert not unfinished.exists()


UNCERTAIN = "checkpoint 3 is intact, or else 2"


class EndsBadly(Checkpoints):
    """The last file of checkpoint 3, which makes it count, does not arrive."""

    def _update_manifests(self):
        super()._update_manifests()
        if self._finalised == 3:
            raise ConnectionError("no answer")


def test_the_last_good_one_is_certain_or_said_not_to_be(tmp_path):
    """The lock asks, from a thread of its own; the loop meets the error later, and ends."""
    with EndsBadly(tmp_path) as checkpoints, ThreadPoolExecutor(1) as another_thread:

        def asked():
            return another_thread.submit(lambda: checkpoints.last_good).result()

        assert checkpoints.newest_intact_step(print) is None
        assert asked() == "there is no checkpoint yet"
        for step in (1, 2):
            checkpoints.save(step, state(step), {}, {})
            checkpoints.wait()
            assert asked() == f"checkpoint {step} is intact"
        checkpoints.save(3, state(3), {}, {})
        while checkpoints._manager.is_saving_in_progress():
            assert asked() in ("checkpoint 2 is intact", UNCERTAIN)
            time.sleep(0.01)
        assert asked() == UNCERTAIN
        with pytest.raises(ConnectionError):
            checkpoints.wait()
        assert asked() == UNCERTAIN == checkpoints.last_good


def test_best_is_the_later_of_equals_and_ignores_nan(tmp_path):
    with Checkpoints(tmp_path, keep=9, best_metric="test/top1") as checkpoints:
        for step, score in ((1, 0.5), (2, 0.9), (3, 0.9), (4, float("nan")), (5, 0.1)):
            checkpoints.save(step, state(step), {}, {}, {"test/top1": score})
        checkpoints.wait()
        assert checkpoints.best_step() == 3


def test_of_losses_and_errors_the_lowest_is_best(tmp_path):
    best = {"best_metric": "test/loss", "lower_is_better": True}
    with Checkpoints(tmp_path, keep=1, **best) as checkpoints:
        for step, score in ((1, 0.5), (2, 0.1), (3, float("nan")), (4, 0.9)):
            checkpoints.save(step, state(step), {}, {}, {"test/loss": score})
        checkpoints.wait()
        assert checkpoints.best_step() == 2


def test_some_fields_can_be_restored_alone(workdir):
    with Checkpoints(workdir, read_only=True) as checkpoints:
        fields = checkpoints.restore_fields(
            3, {"params": jax.eval_shape(lambda: state(0)["params"])}
        )
    assert set(fields) == {"params"}
    np.testing.assert_array_equal(fields["params"]["w"], 3.0)


def test_steps_are_resolved_or_the_choice_is_listed(workdir, tmp_path):
    assert resolve_step(workdir, None) == 3
    assert resolve_step(workdir, 2) == 2
    assert resolve_step(workdir, "1") == 1
    with pytest.raises(UserError, match=r"step \(7\) has no checkpoint.*1, 2, 3"):
        resolve_step(workdir, 7)
    with pytest.raises(UserError, match="must be a number"):
        resolve_step(workdir, "newest")
    with pytest.raises(UserError, match=r"no checkpoint of .* has 'test/top1'"):
        resolve_step(workdir, "best", best_metric="test/top1")
    with pytest.raises(UserError, match="has no checkpoint; train first"):
        resolve_step(tmp_path / "nothing", None)


def test_the_checkpoint_of_another_state_is_refused_by_what_differs(workdir):
    with Checkpoints(workdir, read_only=True) as checkpoints:
        other = {"params": {"w": jax.ShapeDtypeStruct((301,), "float32")}, "step": state(0)["step"]}
        with pytest.raises(
            UserError, match=r"checkpoint 3 .*params.w is \[300\] there and \[301\] here.*model"
        ):
            checkpoints.restore(3, other)
