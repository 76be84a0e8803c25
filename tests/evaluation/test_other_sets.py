"""Other test sets: labels by name, a choice among some classes, several right answers."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from cone_jax.data.sources import splits
from cone_jax.data.sources.array import ArraySource
from cone_jax.errors import UserError
from cone_jax.evaluation import accuracy, label_maps
from cone_jax.evaluation.classification import Classification
from cone_jax.evaluation.real_labels import Real
from cone_jax.training.run import Run

CLASSES = [str(label) for label in range(8)]


def silent(line):
    pass


def source_of(names, labels):
    labels = np.array(labels, int)
    return ArraySource(np.zeros((len(labels), 4, 4, 3), np.uint8), labels, names)


@pytest.fixture
def run(separable_config):
    return Run.open(separable_config)


@pytest.fixture
def variables(run):
    return run.init_state().variables


def test_labels_follow_names():
    own = source_of(["owl", "tit"], [0, 1, 1])
    source = label_maps.relabel(own, source_of(["tit", "kite", "owl"], [0]), "data (x)")
    assert [source[index].label for index in range(3)] == [2, 0, 0]
    assert label_maps.present_labels(source) == (0, 2)
    with pytest.raises(UserError, match=r"data \(x\): class 'owl' \(2 in all\) is not one"):
        label_maps.relabel(own, source_of(["kite"], [0]), "data (x)")


def test_labels_of_a_source_are_one_per_record():
    """As of any other source, and not a table of its classes."""
    own = source_of(["owl", "tit"], [0, 1, 1, 0, 1])
    source = label_maps.relabel(own, source_of(["tit", "kite", "owl"], [0]), "data (x)")
    assert splits.labels_of(source).tolist() == [source[index].label for index in range(5)]
    some = splits.Subset(source, np.array([3, 1]))
    assert some.labels.tolist() == [some[0].label, some[1].label] == [2, 0]


def test_numbers_stand_for_classes_only_where_there_are_as_many():
    numbered = source_of(["0", "1"], [1, 0])
    two, three = (source_of(names, [0]) for names in (["owl", "tit"], ["owl", "tit", "kite"]))
    assert label_maps.relabel(numbered, two, "data")[0].label == 1
    with pytest.raises(UserError, match="class '0'"):
        label_maps.relabel(numbered, three, "data")


def examine(run, variables, source, classes=None):
    batches = run.eval_stream(source, silent)
    return accuracy.examine(run.learner, variables, batches, classes=classes)


def test_some_classes_only(run, variables):
    """Among three classes no other is predicted, and the order among those stays."""
    test = run.dataset.test
    free = examine(run, variables, test)
    some = examine(run, variables, test, [1, 4, 6])
    assert set(some.predictions.tolist()) <= {1, 4, 6}
    inside = np.isin(free.predictions, [1, 4, 6])
    np.testing.assert_array_equal(some.predictions[inside], free.predictions[inside])
    assert (some.confidences >= free.confidences * inside).all()
    kept = np.isin(labels_of(test), [1, 4, 6])
    assert np.isfinite(some.losses[kept]).all()


def labels_of(test):
    return np.array([test[index].label for index in range(len(test))])


def test_a_folder_with_some_of_the_classes(run, variables, tmp_path):
    test = run.dataset.test
    for index in range(len(test)):
        image, label = test[index]
        if label in (2, 5):
            path = tmp_path / "birds" / CLASSES[label] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    evaluator = Classification(data=str(tmp_path / "birds"), among="present")
    outcome = evaluator.evaluate(run, variables, silent)
    assert evaluator.prefix == "birds"
    assert set(outcome.examples.labels.tolist()) == {2, 5}
    assert set(outcome.examples.predictions.tolist()) <= {2, 5}
    everything = Classification(data=str(tmp_path / "birds")).evaluate(run, variables, silent)
    assert outcome.result.top1 >= everything.result.top1
    assert outcome.result.examples == everything.result.examples == 8


class TinyReal(tfds.core.GeneratorBasedBuilder):
    """In the form of imagenet2012_real."""

    VERSION = tfds.core.Version("1.0.0")
    pictures = Path()
    accepted: ClassVar[list] = []

    def _info(self):
        label = tfds.features.ClassLabel(names=CLASSES[::-1])  # another order than training's
        features = {
            "image": tfds.features.Image(shape=(4, 4, 3)),
            "original_label": label,
            "real_label": tfds.features.Sequence(tfds.features.ClassLabel(names=CLASSES[::-1])),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"validation": self._generate_examples()}

    def _generate_examples(self):
        for index, accepted in enumerate(self.accepted):
            yield (
                index,
                {
                    "image": self.pictures / f"{index}.png",
                    "original_label": "0",
                    "real_label": accepted,
                },
            )


def test_real_accepts_any_label_of_a_picture(run, variables, tmp_path, monkeypatch):
    test = run.dataset.test
    predictions = examine(run, variables, test).predictions
    tfds.disable_progress_bar()
    TinyReal.pictures = tmp_path
    for index in range(12):
        Image.fromarray(test[index].image).save(tmp_path / f"{index}.png")
    wrong = [CLASSES[(predictions[index] + 1) % 8] for index in range(12)]
    right = [CLASSES[predictions[index]] for index in range(12)]
    # Four have the prediction among others, six have not, two are not judged.
    TinyReal.accepted = [
        *([wrong[i], right[i]] for i in range(4)),
        *([wrong[i]] for i in range(4, 10)),
        [],
        [],
    ]
    builder = TinyReal(data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    outcome = Real(data="tiny_real").evaluate(run, variables, silent)
    assert outcome.scores["top1"] == pytest.approx(0.4)


def test_imagenet_a_and_r_choose_among_their_own(run, variables, monkeypatch):
    seen = []

    def see(network, variables, batches, *, classes=None):
        seen.append(classes)
        return accuracy.Examples(*(np.zeros(1, int) for _ in range(6)))

    monkeypatch.setattr(accuracy, "examine", see)
    monkeypatch.setattr(
        "cone_jax.evaluation.other_sets.open_set",
        lambda run, data, split: label_maps.relabel(
            source_of(CLASSES, [3, 5]), source_of(CLASSES, [0]), data
        ),
    )
    for data in ("imagenet_a", "imagenet_r:0.2.0", "imagenet_v2/matched-frequency"):
        Classification(data=data).evaluate(run, variables, silent)
    Classification(data="imagenet_a", among="all").evaluate(run, variables, silent)
    assert seen == [(3, 5), (3, 5), None, None]
