"""The output of ``--mode=check``: a table, ``check.csv``, and a page, ``check.html``."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from cone_jax import storage
from cone_jax.analysis import page
from cone_jax.analysis.page import Section
from cone_jax.analysis.tables import write_csv
from cone_jax.data import decode
from cone_jax.data.datasets import Dataset, known_labels
from cone_jax.data.inspection import Finding, Inspection
from cone_jax.data.sources import file_name

CSV_FILE, PAGE_FILE = "check.csv", "check.html"
_SHOWN = 200  # findings of one kind on the page; the file has them all
_PICTURED = 24  # of them with a thumbnail
_SIDE = 180
# What each kind of problem means, for a person who meets it the first time.
MEANING = {
    "unreadable": "Training replaces each by another picture. Repair or remove them.",
    "duplicate": "The same bytes twice: the picture counts twice.",
    "near duplicate": "The same photograph, resized or compressed again.",
    "single class": "A classifier needs at least two.",
    "wrong level": "The folder given is one level too high.",
    "few pictures": "Too few to learn from, and too few to judge the result.",
    "imbalance": "The network will prefer the large classes.",
    "small": "Less than half as large as the network's input.",
    "elongated": "A square crop shows only a small part of it.",
    "turned": "The camera was held sideways; this program turns them upright, others may not.",
    "extension": "The content is read, whatever the name says.",
    "not read": "Pictures in formats that training does not read.",
}


def write(inspection: Inspection, dataset: Dataset, directory: Path) -> list[Path]:
    """Writes both files; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = ((each.path, each.problem, each.detail) for each in inspection.findings)
    paths = [write_csv(directory / CSV_FILE, ("path", "problem", "detail"), rows)]
    with storage.replacing(directory / PAGE_FILE) as unfinished:
        text = _compose(inspection, dataset)
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
    return [*paths, directory / PAGE_FILE]


def _compose(inspection: Inspection, dataset: Dataset) -> str:
    readable = [facts for facts in inspection.pictures if not facts.problem]
    tiles = [
        (f"{len(inspection.pictures):,}", "pictures"),
        (f"{len(inspection.class_names):,}", "classes"),
        (f"{len(inspection.pictures) - len(readable):,}", "unreadable"),
        (f"{len(inspection.findings):,}", "findings"),
    ]
    sections = [_problems(inspection), _classes(inspection), _sizes(inspection)]
    sections += [
        _one_problem(kind, inspection, dataset, number)
        for number, kind in enumerate(inspection.tally())
    ]
    kept = [section for section in sections if section is not None]
    return page.page("Is my data all right?", "cone_jax check", page.tiles(tiles), kept)


def summary(inspection: Inspection) -> list[tuple[str, str, str]]:
    """A table of problems: how often each occurs, and what it means."""
    return [(kind, f"{n:,}", _meaning(kind)) for kind, n in inspection.tally().items()]


def _meaning(kind: str) -> str:
    said = MEANING[kind.partition(",")[0].removesuffix(" in train and test")]
    if "train and test" in kind:
        said = "A test picture that was trained on: the accuracy is too good."
    return f"{said} One of the two labels is wrong." if "other class" in kind else said


def _problems(inspection: Inspection) -> Section:
    body = page.table(("problem", "times", "what it means"), summary(inspection), numbers=(1,))
    if not inspection.findings:
        body = page.paragraph("Nothing was found.", quiet=False)
    return Section("findings", "Findings", body)


def _classes(inspection: Inspection) -> Section:
    train, test = inspection.counts["train"], inspection.counts["test"]
    largest = max(int(train.max(initial=0)), 1)
    rows = [
        (name, f"{train[label]:,}", page.bar(train[label] / largest), f"{test[label]:,}")
        for label, name in enumerate(inspection.class_names)
    ]
    return Section("classes", "Classes", page.table(("class", "train", "", "test"), rows))


def _sizes(inspection: Inspection) -> Section | None:
    sizes = np.array([facts.size for facts in inspection.pictures if not facts.problem])
    if not len(sizes):
        return None
    rows: list[tuple[str, ...]] = [
        (what, *(f"{value:,.0f}" for value in np.quantile(values, (0.0, 0.5, 1.0))))
        for what, values in (("width", sizes[:, 0]), ("height", sizes[:, 1]))
    ]
    shapes = {
        "landscape": int((sizes[:, 0] > sizes[:, 1]).sum()),
        "portrait": int((sizes[:, 0] < sizes[:, 1]).sum()),
        "square": int((sizes[:, 0] == sizes[:, 1]).sum()),
    }
    told = ", ".join(f"{count:,} {name}" for name, count in shapes.items() if count)
    body = page.table(("pixels", "least", "median", "most"), rows, numbers=(1, 2, 3))
    return Section("sizes", "Sizes", page.join([body, page.paragraph(f"{told}, once upright.")]))


def _one_problem(kind: str, inspection: Inspection, dataset: Dataset, number: int) -> Section:
    found = [finding for finding in inspection.findings if finding.problem == kind]
    pictured = [each for each in found if each.record >= 0 and kind != "unreadable"][:_PICTURED]
    parts = [page.paragraph(_meaning(kind))]
    if pictured:
        parts.append(
            Markup('<div class="others">{}</div>').format(
                page.join(_pictured(each, dataset) for each in pictured)
            )
        )
    rows: Sequence[tuple[str, str]] = [(each.path, each.detail) for each in found[:_SHOWN]]
    parts.append(page.table(("path", "detail"), rows, kind="code"))
    if len(found) > _SHOWN:
        parts.append(page.paragraph(f"and {len(found) - _SHOWN:,} more in {CSV_FILE}"))
    return Section(f"problem-{number}", kind.capitalize(), page.join(parts))


def _pictured(finding: Finding, dataset: Dataset) -> Markup:
    """The picture of a finding; a copy is shown beside its original."""
    own = _thumbnail(finding.split, finding.record, dataset)
    if finding.original is None:
        return own
    return page.group("", [own, _thumbnail(*finding.original, dataset)])


def _thumbnail(split: str, record: int, dataset: Dataset) -> Markup:
    source = dataset.train if split == "train" else dataset.test
    picture = decode.as_pil(decode.open_image(source[record].image)).copy()
    picture.thumbnail((_SIDE, _SIDE))
    labels = known_labels(source)
    known = [] if labels is None else [dataset.class_names[labels[record]]]
    return page.thumbnail(np.asarray(picture), file_name(source, record), [*known, f"in {split}"])
