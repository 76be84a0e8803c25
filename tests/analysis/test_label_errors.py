"""Wrong labels: who says so, whether they are found, and the way of a correction to training."""

import csv
import io
import re

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from cone_jax import memory_bank, training
from cone_jax.analysis import label_error_files, label_errors
from cone_jax.analysis.label_errors import Evidence
from cone_jax.data import datasets
from cone_jax.data.sources import corrections, splits
from cone_jax.evaluation import registry
from cone_jax.modes.evaluate import evaluate_checkpoint
from cone_jax.modes.label_errors import find_label_errors
from cone_jax.prediction.server import NearestPictures
from cone_jax.training.run_directory import RunDirectory
from tests.analysis import browser


def random_evidence(rng, count=12, classes=3, k=4):
    probabilities = rng.dirichlet(np.ones(classes), count)
    return Evidence(
        records=rng.permutation(count),
        labels=rng.integers(0, classes, count),
        probabilities=probabilities,
        neighbours=rng.integers(-1, count, (count, k)),
        neighbour_labels=rng.integers(0, classes, (count, k)),
        similarity=rng.uniform(-1, 1, (count, k)),
    )


def test_votes_are_the_mean_of_what_is_said_about_the_neighbours():
    rng = np.random.default_rng(0)
    train, asked = random_evidence(rng), random_evidence(rng)
    asked.neighbours[0] = memory_bank.NO_ID
    said = label_errors.votes(asked, train)
    by_record = dict(zip(train.records.tolist(), train.probabilities, strict=True))
    for row in range(12):
        total, weight = np.zeros(3), 0.0
        for record, cosine in zip(asked.neighbours[row], asked.similarity[row], strict=True):
            if record >= 0:
                total += np.exp(cosine / 0.1) * by_record[record]
                weight += np.exp(cosine / 0.1)
        expected = total / weight if weight else asked.probabilities[row]
        np.testing.assert_allclose(said[row], expected, rtol=1e-12)


def test_the_score_is_the_doubt_of_both_witnesses_and_proposes_another_class():
    rng = np.random.default_rng(1)
    train, asked = random_evidence(rng), random_evidence(rng)
    found = label_errors.suspect(asked, train)
    said = label_errors.votes(asked, train)
    for row, label in enumerate(asked.labels):
        belief = [(asked.probabilities[row, c] * said[row, c]) ** 0.5 for c in range(3)]
        assert found.scores[row] == pytest.approx(1 - belief[label])
        others = [c for c in range(3) if c != label]
        assert found.proposed[row] == max(others, key=lambda c: belief[c])
        assert found.doubted[row] == (belief[label] < max(belief))


@pytest.fixture(scope="module")
def run(tmp_path_factory, small_network, request):
    """A run on eight classes of patterns, where one picture of each class has another's label."""
    from tests.conftest import _separable_data

    place = tmp_path_factory.mktemp("label_errors")
    config = request.getfixturevalue("separable_module_config")
    config.data.path = str(_separable_data(place))
    source = datasets.open_split(config.data, "train")
    file = place / "flipped.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(corrections.HEADER)
        for shift, record in enumerate(range(0, 64, 9)):
            label = source[record].label
            name = corrections.name_of(source, record, config.data.path)
            writer.writerow([name, label, (label + 1 + shift % 6) % 8])
    config.data.corrections = str(file)
    training.train(config, place / "run", Console(quiet=True))
    return place / "run"


@pytest.fixture(scope="module")
def separable_module_config(small_network):
    from cone_jax import config as config_lib

    config = config_lib.default()
    config.data.source, config.data.image_size = "array", 4
    config.batch_size, config.steps = 8, 64
    config.model.name = "two_layers"
    config.model.embedding_dim = config.model.head_hidden = 16
    config.bank.size, config.objective.cone.neighbours = 40, 8
    config.objective.cone.wait_for_bank, config.objective.cone.start_epochs = False, 0
    config.optimizer.learning_rate, config.optimizer.reference_batch = 0.05, 0
    config.schedule.warmup_epochs = 0.0
    config.evaluation.batch_size = 32
    config.evaluation.every_epochs = config.checkpoint.every_epochs = 0.0
    return config


class Flags(dict):
    """What a mode is given of the command line."""

    def __init__(self, workdir, **flags):
        super().__init__({"step": "latest", "folds": "4", **flags})
        self.workdir, self.flags = workdir, self


@pytest.fixture(scope="module")
def table(run):
    find_label_errors(Flags(run), Console(file=io.StringIO()))
    with (run / label_error_files.CSV_FILE).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_wrong_labels_come_first_with_the_right_class_proposed(run, table):
    assert len(table) == 64 + 32
    assert [float(row["score"]) for row in table] == sorted(
        (float(row["score"]) for row in table), reverse=True
    )
    directory = RunDirectory.open(run)
    plain = directory.config.data.copy_and_resolve_references().unlock()
    plain.corrections = ""
    source = datasets.open_split(plain, "train")
    truth = {
        corrections.name_of(source, record, plain.path): str(source[record].label)
        for record in range(0, 64, 9)
    }
    suspects = [row for row in table if row["split"] == "train"][: len(truth)]
    hits = [row for row in suspects if row["path"] in truth]
    assert len(hits) >= len(truth) - 1
    assert all(row["proposed"] == truth[row["path"]] for row in hits)
    assert all(row["neighbours_against"] for row in hits)
    page = (run / label_error_files.PAGE_FILE).read_text()
    neighbour = page.partition('<div class="others">')[2].partition("</div>")[0]
    assert re.search(r"<span>train\.npz\[\d+\]</span>", neighbour)


def test_no_picture_is_judged_by_a_network_that_learned_it(run, table):
    folds = sorted((run / "label_errors").iterdir())
    assert len(folds) == 4
    whole = datasets.open_split(RunDirectory.open(run).config.data, "train")
    judged = []
    for fold in folds:
        data = RunDirectory.open(fold).dataset
        learned = {data.train.describe(index) for index in range(len(data.train))}
        asked = {data.test.describe(index) for index in range(len(data.test))}
        assert not learned & asked
        judged += asked
    assert sorted(judged) == sorted(whole.describe(index) for index in range(64))


def test_evidence_of_folds_is_about_the_records_that_it_names(run):
    """With the place of a record for its label, both have to stay together."""
    source = datasets.open_split(RunDirectory.open(run).config.data, "train")
    fold = splits.folds_of(source, 2, 0)
    parts = []
    for number in (0, 1):
        inside, outside = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        some = np.stack([np.arange(len(inside)) % len(outside)] * 2, axis=1)
        parts.append(
            Evidence(
                records=np.arange(len(inside)),
                labels=inside,
                probabilities=np.zeros((len(inside), 1)),
                neighbours=some,
                neighbour_labels=outside[some],
                similarity=np.zeros(some.shape),
            )
        )
    whole = label_errors.combine(parts, source, 0)
    np.testing.assert_array_equal(whole.records, whole.labels)
    np.testing.assert_array_equal(whole.neighbours, whole.neighbour_labels)


def test_a_decision_on_the_page_becomes_a_correction_that_training_reads(run, table, tmp_path):
    with browser.started() as chromium:
        chromium.open(run / label_error_files.PAGE_FILE)
        assert chromium.evaluate("document.querySelectorAll('.decision').length") >= 24
        click = "document.querySelectorAll('.decision')[{}].querySelector('[data-do={}]').click()"
        for row, choice in enumerate(("accept", "reject", "drop")):
            chromium.evaluate(click.format(row, choice))
        assert chromium.evaluate("document.getElementById('count').textContent").startswith("3 dec")
        text = chromium.evaluate("correctionsFile()")
        chromium.evaluate("document.getElementById('save').click()")
    assert chromium.complaints == []
    rows = {row["path"]: row for row in csv.DictReader(io.StringIO(text))}
    shown = [row for row in table if row["split"] == "train"]
    data = RunDirectory.open(run).config.data.copy_and_resolve_references().unlock()
    earlier = {line.path: line for line in corrections.read(data.corrections)}
    # What the run was trained with stays, and labels are those of the data set itself.
    right = {path: line.label for path, line in earlier.items()}
    assert shown[0]["path"] in earlier
    assert shown[0]["path"] not in rows, "the label is the data set's own again"
    assert rows[shown[1]["path"]]["corrected"] == shown[1]["label"]
    assert rows[shown[2]["path"]]["corrected"] == ""
    assert rows[shown[2]["path"]]["label"] == right.get(shown[2]["path"], shown[2]["label"])
    assert rows.keys() | {shown[0]["path"]} == earlier.keys() | {shown[2]["path"]}
    file = tmp_path / "corrections.csv"
    file.write_text(text)
    data.corrections = str(file)
    corrected = datasets.open_dataset(data).train
    assert len(corrected) == 63
    given = {corrections.name_of(corrected, i, data.path): corrected[i].label for i in range(63)}
    assert str(given[shown[0]["path"]]) == shown[0]["proposed"]


def noise_pictures(folder, count):
    """`count` pictures of each of two classes in both splits."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("a", "b"):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{number}.png")


def test_a_picture_that_cannot_be_read_is_not_judged_and_is_nobodys_neighbour(
    tmp_path, separable_module_config
):
    data = tmp_path / "data"
    noise_pictures(data, 8)
    for split in ("train", "test"):
        picture = data / split / "a" / "3.png"
        picture.write_bytes(picture.read_bytes()[:200])
    config = separable_module_config.copy_and_resolve_references()
    config.data.source, config.data.path = "image_folder", str(data)
    config.data.test_transforms = ("resize(4)", "centre_crop(4)")
    config.data.train_transforms = config.data.test_transforms
    config.data.corrections, config.steps = "", 2
    training.train(config, tmp_path / "run", Console(quiet=True))
    find_label_errors(Flags(tmp_path / "run", folds="0"), Console(file=io.StringIO()))
    with (tmp_path / "run" / label_error_files.CSV_FILE).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 15
    named = [row["path"] + row["neighbours_against"] for row in rows]
    assert not any("a/3.png" in name for name in named)

    directory = RunDirectory.open(tmp_path / "run")
    evaluators = registry.parse(directory.config.evaluation.evaluators)
    evaluate_checkpoint(directory, "latest", Console(quiet=True), evaluators)
    with (tmp_path / "run/evaluation/test/predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    near = [row[f"nearest_{place}"] for row in rows for place in (1, 2, 3)]
    assert near
    assert not any(name.endswith("train/a/3.png") for name in near)
    shown = NearestPictures(directory, "latest", lambda line: None)
    assert 3 not in shown._records
    assert len(shown._records) == 15


def test_copies_with_another_label_are_told(tmp_path):
    from cone_jax import config as config_lib

    noise_pictures(tmp_path, 3)
    original = Image.open(tmp_path / "train/a/1.png")
    original.resize((64, 64)).save(tmp_path / "train/b/9.png")
    data = config_lib.default().data
    data.source, data.path = "image_folder", str(tmp_path)
    dataset = datasets.open_dataset(data)
    found = label_error_files.contradicting_duplicates(dataset, 32, 1)
    assert found["test"] == {}
    (record,) = found["train"]
    assert dataset.train.describe(record).endswith("train/b/9.png")
    assert "train/a/1.png; b, there a" in found["train"][record][0]
