"""The report of a real run: complete, safe, the same every time, and honest about what is gone."""

import dataclasses
import html.parser
import json
import re
import shutil

import numpy as np
import pytest

from cone_jax import workdir
from cone_jax.analysis import report, report_answers, report_sections
from cone_jax.analysis.report_inputs import Evidence, gather
from cone_jax.errors import UserError
from cone_jax.evaluation.accuracy import interval_text
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir.metrics import METRICS_FILE, latest_values
from tests.analysis import browser
from tests.analysis.conftest import HOSTILE


class Parsed(html.parser.HTMLParser):
    """Elements, their attributes, and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def sections(self) -> list[str]:
        return [attributes["id"] for tag, attributes in self.elements if tag == "section"]

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture(scope="module")
def written(small_run):
    return report.write(small_run.directory)


@pytest.fixture(scope="module")
def page(written) -> Parsed:
    return Parsed(written.read_text())


@pytest.fixture
def copy(small_run, tmp_path):
    """The same run in a place of its own, to be damaged."""
    directory = tmp_path / "run"
    shutil.copytree(small_run.directory, directory)
    (directory / report.FILE).unlink(missing_ok=True)
    return directory


def test_every_section_is_there(page):
    assert page.sections() == [
        "answers",
        "classes",
        "neighbours",
        "results",
        "training",
        "positives",
        "maps",
        "config",
        "versions",
    ]
    links = {a["href"] for tag, a in page.elements if tag == "a"}
    assert links == {f"#{name}" for name in page.sections()}


def test_the_first_section_answers_what_a_person_asks(page, copy):
    for question in ("How good?", "On what?", "How sure?", "Which mistakes?", "Is my data all"):
        assert question in page.text
    assert re.search(r"With 95% confidence the accuracy is \d+\.\d to \d+\.\d%", page.text)
    assert re.search(r"step 8 \(epoch [\d.]+\)", page.text)
    assert "Was the method on?" not in page.text
    lines = (copy / METRICS_FILE).read_text().splitlines()
    records = [{**json.loads(line), "train/active": 0.25} for line in lines]
    (copy / METRICS_FILE).write_text("".join(json.dumps(record) + "\n" for record in records))
    (copy / "check.csv").write_text("path,problem,detail\na.jpg,small,x\nb.jpg,small,x\n")
    text = Parsed(str(report_answers.answers(gather(copy)).body)).text
    assert "counted in 25% of the steps" in text
    assert "The check found: 2 small." in text


def test_charts_fold_away_and_pictures_name_their_record(written):
    text = written.read_text()
    training = text.partition('<section id="training">')[2].partition("</section>")[0]
    assert training.startswith("<h2>Training</h2><details><summary>")
    neighbours = text.partition('<section id="neighbours">')[2].partition("</section>")[0]
    assert "test.npz[" in neighbours
    assert "train.npz[" in neighbours
    pulls = text.partition('<section id="positives">')[2].partition("</section>")[0]
    assert pulls.count("train.npz[") == pulls.count('class="thumb') > 4


def test_every_recorded_metric_has_its_curve(page, small_run):
    run = RunDirectory.open(small_run.directory)
    for title in (
        "Loss terms",
        "Learning rate",
        "Momentum of the key network",
        "Positives among the neighbours",
        "Masked samples",
        "Log-sum-exp errors",
        "Speed",
    ):
        assert title in page.text
    charts = page.count("svg")
    maps_and_matrix = 3
    assert charts >= 10 + maps_and_matrix
    assert len(run.metric_names()) > charts - maps_and_matrix


def test_numbers_are_those_of_the_metrics_file(page, small_run):
    final = latest_values(small_run.directory / METRICS_FILE)
    assert f"{final['test/top1']:.2%}" in page.text
    assert f"{final['test/loss']:.4f}" in page.text
    interval = interval_text(final["test/top1"], 300)
    assert f"test top-1 ({interval})" in page.text
    assert f"{final['test/top5']:.2%} ({interval_text(final['test/top5'], 300)})" in page.text
    right = round(final["test/top1"] * 300)
    assert f"{right} of 300 test pictures are right, at step 8." in page.text


def test_results_are_those_of_every_evaluator_each_with_its_own_best(copy):
    path = copy / workdir.CONFIG_FILE
    config = json.loads(path.read_text())
    specs = ("classification(name='key')", "robustness(name='corrupted', baseline='alexnet')")
    config["evaluation"]["evaluators"] += specs
    path.write_text(json.dumps(config))
    more = [
        {"step": 4, "key/top1": 0.75, "key/ece": 0.5},
        {"step": 8, "key/top1": 0.25, "key/ece": 0.875, "corrupted/mce": 91.5},
    ]
    with (copy / METRICS_FILE).open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in more)
    evidence = Evidence(RunDirectory.open(copy), None, None, None)
    text = Parsed(str(report_sections.results(evidence).body)).text
    assert "key/top125.00%75.00%4" in text  # last, best, and the step of the best
    assert "key/ece87.50%50.00%4" in text
    assert "corrupted/mce91.500091.50008" in text
    titles = Parsed(str(report_sections.curves(evidence).body)).text
    assert "Ece" in titles
    assert "Mce" not in titles  # measured once: nothing to draw


def test_classes_without_a_mistake_are_not_among_the_worst(copy):
    evidence = gather(copy)
    labels = evidence.snapshot.labels
    predictions = np.where(labels == 7, 4, labels)
    for guesses, rows in ((predictions, 1), (labels, 0)):
        snapshot = dataclasses.replace(evidence.snapshot, predictions=guesses)
        found = report_sections.classes(dataclasses.replace(evidence, snapshot=snapshot))
        table = Parsed(str(found.body).partition("Worst classes")[2]).text
        assert table.count("0.0%") == rows
        assert table.count("None.") == 2 * (1 - rows)


def test_names_cannot_break_out(written, page):
    text = written.read_text()
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in text
    assert page.count("script") == 0
    assert HOSTILE in page.text  # what the reader sees
    assert "digit & 4" in page.text


def test_the_file_needs_nothing_else(written):
    text = written.read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert sources
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", text)
    assert "@import" not in text


def test_ids_are_unique_and_references_resolve(written):
    text = written.read_text()
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(set(ids)) == len(ids)
    references = re.findall(r'(?:href="#|url\(#)([^")]*)', text)
    assert references
    assert set(references) <= set(ids)


def test_the_same_run_gives_the_same_bytes(copy):
    first = report.write(copy).read_bytes()
    assert report.write(copy).read_bytes() == first
    shutil.rmtree(copy / "analysis")  # looked at anew
    assert report.write(copy).read_bytes() == first


def test_without_the_data_only_pictures_are_missing(copy, page):
    config = json.loads((copy / workdir.CONFIG_FILE).read_text())
    config["data"]["path"] = "no/such/place"
    (copy / workdir.CONFIG_FILE).write_text(json.dumps(config))
    again = Parsed(report.write(copy).read_text())
    assert again.sections() == page.sections()
    assert page.count("img") > 50
    assert again.count("img") == 0
    assert "no/such/place" in again.text
    assert "no picture" in again.text


def test_without_data_and_snapshot_the_curves_remain(copy):
    shutil.rmtree(copy / "analysis", ignore_errors=True)
    config = json.loads((copy / workdir.CONFIG_FILE).read_text())
    config["data"]["path"] = "no/such/place"
    (copy / workdir.CONFIG_FILE).write_text(json.dumps(config))
    page = Parsed(report.write(copy).read_text())
    assert page.sections() == ["results", "training", "config"]


def test_a_run_that_has_only_begun(copy):
    """No checkpoint and no evaluation yet."""
    shutil.rmtree(copy / "checkpoints")
    shutil.rmtree(copy / "analysis", ignore_errors=True)
    metrics = copy / METRICS_FILE
    metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
    page = Parsed(report.write(copy).read_text())
    assert page.sections() == ["answers", "results", "training", "config"]
    assert "has no checkpoint" in page.text
    (copy / METRICS_FILE).write_text("")
    (copy / "timing.jsonl").write_text("")
    assert Parsed(report.write(copy).read_text()).sections() == ["answers", "results", "config"]


def test_a_step_that_is_not_there_is_refused(copy):
    with pytest.raises(UserError, match=r"--step \(77\)"):
        report.write(copy, step="77")


def test_an_objective_without_a_bank_has_no_bank_sections(small_run):
    found = gather(small_run.directory)
    snapshot = dataclasses.replace(found.snapshot, neighbours=None, pulls=None)
    page = Parsed(report.compose(dataclasses.replace(found, snapshot=snapshot)))
    rest = ["results", "training", "maps", "config", "versions"]
    assert page.sections() == ["answers", "classes", *rest]


def test_many_classes_and_a_perfect_network(small_run):
    """A thousand classes do not make a thousand rows; nothing wrong is nothing to list."""
    found = gather(small_run.directory)
    labels = np.arange(1000)
    snapshot = dataclasses.replace(
        found.snapshot,
        class_names=tuple(f"class {label}" for label in range(1000)),
        labels=labels,
        predictions=labels,
    )
    page = Parsed(report.compose(dataclasses.replace(found, snapshot=snapshot)))
    assert "the 20 hardest classes" in page.text
    assert "1,000 of 1,000 test pictures are right" in page.text


def test_a_failing_report_does_not_lose_a_run(copy, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("out of\nideas")

    said = []
    monkeypatch.setattr(report, "gather", fail)
    report.write_after_training(copy, said.append)
    assert said == ["warning: no report.html: out of ideas; --mode=report tries again"]


def test_a_report_of_a_finished_run_is_left_alone(copy):
    report.write_after_training(copy, pytest.fail)
    (copy / report.FILE).write_text("mine")
    report.write_after_training(copy, pytest.fail)
    assert (copy / report.FILE).read_text() == "mine"


def test_in_a_browser(written):
    """Loads offline without complaint, pictures and all, fits a phone, and has a dark side."""
    backgrounds, inks = set(), set()
    with browser.started() as chromium:
        for width in (390, 1280):
            for scheme in ("light", "dark"):
                chromium.look(width, scheme)
                chromium.open(written)
                assert chromium.evaluate("document.documentElement.scrollWidth") <= width
                empty = "[...document.images].filter(i => !(i.complete && i.naturalWidth)).length"
                assert chromium.evaluate("document.images.length") > 50
                assert chromium.evaluate(empty) == 0
                style = "getComputedStyle(document.body)"
                backgrounds.add((scheme, chromium.evaluate(f"{style}.backgroundColor")))
                label = "getComputedStyle(document.querySelector('figure svg text')).fill"
                inks.add((scheme, chromium.evaluate(label)))
    assert chromium.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in chromium.requests)
    assert len(backgrounds) == len({colour for _, colour in backgrounds}) == 2
    assert len(inks) == len({colour for _, colour in inks}) == 2
