"""Numbers on disk: complete records, no duplicates after a restart, readable by TensorBoard."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cone_jax import storage
from cone_jax.errors import TrainingFailed
from cone_jax.workdir.metrics import (
    BAD_BATCHES_FILE,
    METRICS_FILE,
    TIMING_FILE,
    MetricWriter,
    latest_values,
    read_records,
)
from tests import object_stores


def write_steps(workdir: Path, first: int, last: int, *, resumed_at: int) -> None:
    with MetricWriter(workdir, resumed_at) as writer:
        for step in range(first, last + 1):
            writer.write(step, {"train/loss": float(step)})


def test_a_restart_takes_back_what_will_be_written_again(tmp_path):
    write_steps(tmp_path, 1, 5, resumed_at=0)
    write_steps(tmp_path, 4, 7, resumed_at=3)
    records = read_records(tmp_path / METRICS_FILE)
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6, 7]
    assert list(records[0]) == ["step", "train/loss"]


def test_a_line_cut_short_is_left_out(tmp_path):
    write_steps(tmp_path, 1, 2, resumed_at=0)
    path = tmp_path / METRICS_FILE
    path.write_text(path.read_text() + '{"step": 3, "train/lo')
    assert [record["step"] for record in read_records(path)] == [1, 2]
    write_steps(tmp_path, 3, 3, resumed_at=2)
    assert [record["step"] for record in read_records(path)] == [1, 2, 3]


def test_values_survive_exactly(tmp_path):
    value = 0.1 + 0.2
    with MetricWriter(tmp_path, 0) as writer:
        writer.write(1, {"train/loss": value})
        writer.write(2, {"test/top1": 1.0})
    merged = latest_values(tmp_path / METRICS_FILE)
    assert merged == {"step": 2, "train/loss": value, "test/top1": 1.0}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_scalars_timing_and_config(tmp_path):
    with MetricWriter(tmp_path, 0) as writer:
        writer.write_text("config", "batch_size: 3")
        for step in (1, 2):
            writer.write(step, {"train/loss": step / 2})
        writer.write_timing(2, {"time/images_per_second": 7.0})
    events = EventAccumulator(str(tmp_path)).Reload()
    scalars = {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in ("train/loss", "time/images_per_second")
    }
    assert scalars == {"train/loss": [(1, 0.5), (2, 1.0)], "time/images_per_second": [(2, 7.0)]}
    assert "config/text_summary" in events.Tags()["tensors"]
    assert "time/images_per_second" not in latest_values(tmp_path / METRICS_FILE)


@pytest.fixture(scope="module", params=["gcs", "s3"])
def bucket(request):
    with getattr(object_stores, request.param)() as store:
        yield store.url


def event_bytes(directory):
    return sum(len(file.read_bytes()) for file in directory.rglob("events.*"))


def test_what_a_checkpoint_covers_is_in_the_bucket_before_it_and_a_bad_batch_at_once(bucket):
    directory = storage.path(f"{bucket}/run")
    with MetricWriter(directory, 0) as writer:
        writer.write(1, {"train/loss": 1.0})
        writer.write_timing(1, {"time/seconds": 1.0})
        writer.write_bad_batch(1, {"records": [4, 2]})
        assert read_records(directory / BAD_BATCHES_FILE) == [{"step": 1, "records": [4, 2]}]
        assert not read_records(directory / METRICS_FILE)
        writer.sync()
        first = event_bytes(directory)
        assert first > 0
        assert [read_records(directory / name) for name in (METRICS_FILE, TIMING_FILE)] == [
            [{"step": 1, "train/loss": 1.0}],
            [{"step": 1, "time/seconds": 1.0}],
        ]
        writer.write(2, {"train/loss": 2.0})
        writer.write_bad_batch(2, {"records": [5]})
    assert len(read_records(directory / METRICS_FILE)) == 2
    assert event_bytes(directory) > first
    with MetricWriter(directory, 1) as writer:  # step 2 is taken again
        writer.write_bad_batch(2, {"records": [6]})
    assert read_records(directory / METRICS_FILE) == [{"step": 1, "train/loss": 1.0}]
    found = [record["records"] for record in read_records(directory / BAD_BATCHES_FILE)]
    assert found == [[4, 2], [6]]


@pytest.mark.parametrize("ended_by", [None, KeyboardInterrupt])
def test_a_run_that_was_taken_over_writes_over_nothing_when_it_ends(bucket, ended_by):
    """In a bucket a file goes up whole."""
    directory, lost = storage.path(f"{bucket}/{ended_by}"), []

    def check():
        if lost:
            raise TrainingFailed("taken over")

    def run():
        with MetricWriter(directory, 0, before_sync=check) as writer:
            writer.write(1, {"train/loss": 1.0})
            writer.sync()
            writer.write(2, {"train/loss": 2.0})
            lost.append(True)
            write_steps(directory, 2, 3, resumed_at=1)  # the other one
            if ended_by:
                raise ended_by

    with pytest.raises(ended_by or TrainingFailed):
        run()
    assert [record["train/loss"] for record in read_records(directory / METRICS_FILE)] == [1, 2, 3]
