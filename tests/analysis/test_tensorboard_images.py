"""Pictures in TensorBoard while a run trains, and a run that outlives their failure."""

import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cone_jax import training
from cone_jax.analysis import tensorboard_images
from cone_jax.analysis.tensorboard_images import TensorboardImages
from cone_jax.training.run import Run
from tests.analysis.conftest import small_config

QUIET = Console(quiet=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def config(small_run):
    config = small_config(small_run.data)
    config.evaluation.every_epochs = 4 / 18  # of 18 steps: twice
    return config


def test_sheets_at_every_evaluation(config, tmp_path, small_run):
    watched = training.train(config, tmp_path / "run", QUIET, TensorboardImages())
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [image.step for image in events.Images("samples")] == [4]
    assert [image.step for image in events.Images("neighbours")] == [4, 8]
    for tag in ("samples", "neighbours"):
        pixels = Image.open(io.BytesIO(events.Images(tag)[-1].encoded_image_string))
        assert min(pixels.size) > 300
    unwatched = training.train(config, tmp_path / "other", QUIET)
    assert watched == unwatched


def test_samples_are_the_first_training_batch(config):
    run = Run.open(config)
    sheet = tensorboard_images.samples_sheet(run)
    assert sheet.dtype == np.uint8
    assert sheet.shape[-1] == 3
    again = tensorboard_images.samples_sheet(run)
    np.testing.assert_array_equal(sheet, again)


def test_a_failing_sheet_does_not_end_the_run(config, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("disk on fire")

    monkeypatch.setattr(tensorboard_images, "neighbours_sheet", fail)
    metrics = training.train(config, tmp_path / "run", QUIET, TensorboardImages())
    assert metrics["step"] == 8
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    (text,) = events.Tensors("sheets/text_summary")
    assert b"no sheets from step 4 on: disk on fire" in text.tensor_proto.string_val[0]
