"""Numbers on disk: complete records, no duplicates after a restart, readable by TensorBoard."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cone_jax.workdir.metrics import METRICS_FILE, MetricWriter, latest_values, read_records


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
