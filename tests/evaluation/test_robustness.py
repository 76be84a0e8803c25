"""Errors under corruption: made on the fly, from a folder, from TFDS; on any number of devices."""

from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from cone_jax import distributed
from cone_jax.analysis import robustness_files
from cone_jax.data import transforms
from cone_jax.data.sources import image_folder
from cone_jax.errors import UserError
from cone_jax.evaluation import accuracy, corrupted_sets, label_maps
from cone_jax.evaluation.corruption_error import CorruptionErrors
from cone_jax.evaluation.corruptions import SEVERITIES, CorruptedSource, corrupt
from cone_jax.evaluation.robustness import Robustness, RobustnessOutcome
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
    with pytest.raises(UserError, match=r"/nowhere\) is not a folder <corruption>/<severity>"):
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


def test_clean_errors_are_those_of_the_pictures_that_were_corrupted(run, variables, tree):
    for path in tree.rglob("*.png"):
        if int(path.stem) % 3:
            path.unlink()
    lines = []
    evaluator = Robustness(corruptions=FEW, data=str(tree))
    outcome = evaluator.evaluate(run, placed(run, variables), lines.append)
    # Arrays have no names, so nobody knows which of them these are.
    assert np.isnan(outcome.scores["clean_error"])
    assert any("no clean error: the test split has" in line for line in lines)
    assert outcome.pictures == len(list((tree / "fog" / "1").rglob("*.png")))
    next((tree / "fog" / "2").rglob("*.png")).unlink()
    with pytest.raises(UserError, match=r"under fog 2, but .*; give all sets the same pictures"):
        evaluator.evaluate(run, placed(run, variables), silent)


def test_clean_pictures_are_found_by_class_and_name(tmp_path):
    def folder(name, files, suffix):
        for file in files:
            path = tmp_path / name / f"{file}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(path)
        return image_folder.open_whole(str(tmp_path / name))

    test = folder("test", ["ant/1", "ant/2", "bee/1", "bee/2"], ".png")
    corrupted = folder("fog", ["ant/2", "bee/1"], ".jpg")
    clean = corrupted_sets.clean_counterpart(test, corrupted)
    paths = [Path(clean.describe(index)) for index in range(len(clean))]
    assert paths == [tmp_path / "test/ant/2.png", tmp_path / "test/bee/1.png"]
    # The same where both are in the classes of another network.
    ids = ("n1", "n2")
    sources = [label_maps.by_name(each, ids, ("bee", "ant"), "data") for each in (test, corrupted)]
    clean = corrupted_sets.clean_counterpart(*sources)
    assert [Path(clean.describe(index)) for index in range(len(clean))] == paths
    assert [clean[index].label for index in range(2)] == clean.labels.tolist() == [1, 0]
    stranger = folder("snow", ["ant/7"], ".png")
    assert corrupted_sets.clean_counterpart(test, stranger) is None


def test_two_sets_of_corrupted_pictures_have_two_names():
    names = [Robustness(data=data).prefix for data in ("", "~/imagenet-c", "a b/cifar 10/", "x/y")]
    assert names == ["robustness", "robustness_imagenet-c", "robustness_cifar_10", "robustness_y"]


def test_results_of_another_set_are_not_replaced(tmp_path):
    errors = CorruptionErrors(0.1, {"fog": (0.2,) * 5})
    outcome = RobustnessOutcome({}, errors, None, "", "/a/set", 60)
    robustness_files.write_robustness(outcome, tmp_path)
    for same in ("/a/set", "/a/set/"):
        robustness_files.check_directory(tmp_path, same)
    for other, name in (("/b/set", "/b/set"), ("", "the test split, corrupted here")):
        with pytest.raises(UserError, match=f"holds the results of /a/set, not of {name};"):
            robustness_files.check_directory(tmp_path, other)


def test_some_of_imagenets_classes_are_not_what_alexnets_errors_are_of(run, variables, tree):
    assert Robustness(baseline="alexnet")._remark(1000) == ""
    assert Robustness(baseline="runs/other")._remark(10) == ""
    said = []
    evaluator = Robustness(data=str(tree), corruptions=FEW)
    # A baseline asks for all fifteen corruptions; which there are does not matter here.
    object.__setattr__(evaluator, "baseline", "alexnet")
    outcome = evaluator.evaluate(run, placed(run, variables), said.append)
    assert "all 1,000 classes of ImageNet, these pictures have 8: compare mCE only" in said[-1]
    assert outcome.remark == said[-1]
    assert f"\n{outcome.remark}.\n" in robustness_files._markdown(outcome)


def test_the_result_says_which_frost_it_was(run, variables, tmp_path):
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "frost1.png")
    for field, words in (("generated", "a generated texture"), (str(tmp_path), str(tmp_path))):
        outcome = evaluate(run, variables, corruptions=("frost",), frost=field)
        assert outcome.frost.endswith(words)
        assert f"Frost: {outcome.frost}." in robustness_files._markdown(outcome)


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
