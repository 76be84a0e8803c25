"""A folder of photographs, some of them damaged, from the first look to a trained network."""

import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from cone_jax import training
from cone_jax.errors import UserError
from cone_jax.modes.command_line import load_recipe


@pytest.fixture
def folder(tmp_path):
    """Two classes, 20 pictures each to train on and 5 to test on, of various kinds and sizes."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 5)):
        for label, colour in (("blue", (40, 40, 220)), ("red", (220, 40, 40))):
            directory = tmp_path / "photos" / split / label
            directory.mkdir(parents=True)
            for index in range(count):
                size = tuple(rng.integers(12, 40, 2))
                noise = rng.integers(-40, 40, (*size, 3))
                pixels = np.clip(noise + np.array(colour), 0, 255).astype(np.uint8)
                kind = ("png", "jpg", "bmp", "webp")[index % 4]
                Image.fromarray(pixels).save(directory / f"{index:02}.{kind}")
    return tmp_path / "photos"


@pytest.fixture
def config(folder):
    config = load_recipe("configs/folder.py").unlock()
    config.data.path = str(folder)
    config.data.image_size = 16
    config.data.train_transforms = ("random_resized_crop(16)", "flip")
    config.data.test_transforms = ("resize(18)", "centre_crop(16)")
    config.steps, config.batch_size, config.log_every = 30, 16, 10
    config.model.name, config.model.stem = "resnet8", "cifar"
    config.model.options.width = 4
    config.model.head_hidden, config.model.embedding_dim = 16, 8
    config.bank.size, config.objective.cone.neighbours = 32, 8
    config.schedule.warmup_epochs = 0.0
    config.evaluation.batch_size = 16
    config.evaluation.every_epochs = config.checkpoint.every_epochs = 0.0
    return config


def test_damaged_files_are_reported_once_by_path_and_training_goes_on(config, folder, tmp_path):
    broken = folder / "train" / "red" / "07.webp"
    broken.write_bytes(broken.read_bytes()[:30])
    (folder / "train" / "blue" / "notes.txt").write_text("not a picture")
    config.data.damaged_limit = 0.1
    output = io.StringIO()
    metrics = training.train(config, tmp_path / "run", Console(file=output, width=500))
    assert output.getvalue().count(f"cannot read {broken}; replaced (") == 1
    assert metrics["test/top1"] >= 0.9


def test_too_many_damaged_files_end_the_run(config, folder, tmp_path):
    for index in range(0, 20, 4):
        (folder / "train" / "red" / f"{index:02}.png").write_bytes(b"rubbish")
    with pytest.raises(UserError, match=r"of 40 images cannot be read.*data.damaged_limit"):
        training.train(config, tmp_path / "run", Console(quiet=True))
