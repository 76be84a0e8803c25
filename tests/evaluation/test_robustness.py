"""Errors under corruption: made on the fly, from a folder, from TFDS; on any number of devices."""

from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from cone_jax import distributed
from cone_jax.data import transforms
from cone_jax.errors import UserError
from cone_jax.evaluation import accuracy, corrupted_sets
from cone_jax.evaluation.corruptions import SEVERITIES, CorruptedSource, corrupt
from cone_jax.evaluation.robustness import Robustness
from cone_jax.training.run import Run

FEW = ("glass_blur", "fog")


def silent(line):
    pass


class TinyCorrupted(tfds.core.GeneratorBasedBuilder):
    """Named as TFDS's cifar10_corrupted is, with classes that are only numbered."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name=f"{kind}_{severity}")
        for kind in ("frosted_glass_blur", "fog")
        for severity in SEVERITIES
    ]
    pictures = Path()

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(4, 4, 3)),
            "label": tfds.features.ClassLabel(num_classes=8),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"test": self._generate_examples()}

    def _generate_examples(self):
        kind, _, severity = self.builder_config.name.rpartition("_")
        folder = self.pictures / kind.removeprefix("frosted_") / severity
        for path in sorted(folder.rglob("*.png")):
            yield path.name, {"image": path, "label": int(path.parent.name)}


@pytest.fixture
def run(separable_config):
    return Run.open(separable_config)


@pytest.fixture
def variables(run):
    return jax.device_get(run.init_state().variables)


def placed(run, variables):
    return jax.device_put(variables, distributed.replicated(run.mesh))


def evaluate(run, variables, **fields):
    fields = {"corruptions": FEW} | fields
    return Robustness(**fields).evaluate(run, placed(run, variables), silent)


@pytest.fixture
def tree(run, tmp_path):
    """The corrupted pictures of the run as files."""
    test = run.dataset.test
    for kind in FEW:
        for severity in SEVERITIES:
            made = CorruptedSource(test, transforms.parse(()), kind, severity)
            for index in range(len(test)):
                image, label = made[index]
                path = tmp_path / "tree" / kind / str(severity) / str(label) / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(path)
    return tmp_path / "tree"


def test_errors_are_those_of_each_picture_by_itself(run, variables):
    outcome = evaluate(run, variables)
    test, learner = run.dataset.test, run.learner
    assert list(outcome.errors.corrupted) == list(FEW)
    for place, kind in ((4, "glass_blur"), (9, "fog")):
        for severity in SEVERITIES:
            pixels, labels = [], []
            for index in range(len(test)):
                image, label = test[index]
                rng = np.random.default_rng((0, index, place, severity))
                pixels.append(corrupt(image, kind, severity, rng) / 255)
                labels.append(label)
            inputs = (np.stack(pixels) - np.array(learner.mean)) / np.array(learner.std)
            out = learner.encoder.apply(variables, inputs.astype(np.float32), train=False)
            wrong = np.asarray(out.logits).argmax(axis=-1) != labels
            assert outcome.errors.corrupted[kind][severity - 1] == np.mean(wrong)
    means = [np.mean(outcome.errors.corrupted[kind]) for kind in FEW]
    assert outcome.scores["error"] == pytest.approx(np.mean(means))


def test_one_device_and_eight_find_the_same(run, variables):
    alone = run.on_mesh(distributed.make_mesh(jax.devices()[:1]))
    assert evaluate(alone, variables).errors == evaluate(run, variables).errors


def test_a_folder_tree_gives_what_was_put_in(run, variables, tree):
    here, there = evaluate(run, variables), evaluate(run, variables, data=str(tree))
    assert here.errors == there.errors
    with pytest.raises(UserError, match=r"snow/1 is missing; choose among what there is"):
        evaluate(run, variables, data=str(tree), corruptions=("snow",))
    with pytest.raises(UserError, match=r"/nowhere\) is no folder <corruption>/<severity>"):
        evaluate(run, variables, data=str(tree / "nowhere"))


def test_a_tfds_set_gives_what_was_put_in(run, variables, tree, tmp_path, monkeypatch):
    tfds.disable_progress_bar()
    TinyCorrupted.pictures = tree
    for config in TinyCorrupted.BUILDER_CONFIGS:
        builder = TinyCorrupted(config=config, data_dir=tmp_path, file_format="array_record")
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    there = evaluate(run, variables, data="tiny_corrupted")
    assert there.errors == evaluate(run, variables).errors
    with pytest.raises(UserError, match=r"tiny_corrupted/snow_1.* is not prepared"):
        evaluate(run, variables, data="tiny_corrupted", corruptions=("snow",))


def test_pictures_of_the_right_size_are_not_cropped_again(run):
    run.config.data.test_transforms = ("resize(6)", "centre_crop(4)")
    assert corrupted_sets._fitting_transforms(run, run.dataset.test) == ()
    run.config.data.test_transforms = ("resize(6)", "centre_crop(5)")
    assert corrupted_sets._fitting_transforms(run, run.dataset.test) != ()


def test_pictures_are_cropped_before_they_are_corrupted(run):
    run.config.data.test_transforms = ("resize(6)", "centre_crop(3)")
    made = corrupted_sets.generated(run, "contrast", 5, seed=0, parameters="imagenet")
    assert made.transforms == ()
    assert made.source[0].image.shape == (3, 3, 3)
    # The mean that contrast keeps is that of the crop.
    crop = transforms.parse(run.config.data.test_transforms)(
        run.dataset.test[0].image, np.random.default_rng(0)
    )
    np.testing.assert_allclose(made.source[0].image.mean((0, 1)), crop.mean((0, 1)), atol=1)


def test_an_unknown_baseline_is_refused_before_any_work(run, variables, tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy, "examine", None)
    with pytest.raises(UserError, match=r"errors\.csv\) cannot be read"):
        Robustness(baseline=str(tmp_path)).evaluate(run, variables, silent)
