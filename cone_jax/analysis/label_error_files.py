"""The output of ``--mode=label_errors``: a table of all pictures, and a page to review the worst.

The page is self-contained. It keeps a person's decisions in the browser, and saves them as a
file of corrections that training reads (`data.corrections`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from ml_collections import ConfigDict

from cone_jax import storage
from cone_jax.analysis import page
from cone_jax.analysis.label_errors import Evidence, Suspicion
from cone_jax.analysis.page import Section
from cone_jax.analysis.tables import write_csv
from cone_jax.data import decode, inspection
from cone_jax.data.datasets import Dataset
from cone_jax.data.sources import Source, corrections, file_name
from cone_jax.data.sources.corrections import Correction

CSV_FILE, PAGE_FILE = "label_errors.csv", "label_errors.html"
_SCRIPT = Path(__file__).with_name("label_errors.js")
HEADER = ("path", "label", "proposed", "score", "split", "neighbours_against", "duplicates")
_SHOWN = 200  # on the page, of each split; the table has them all
_LEAST = 24  # so many are shown even where nothing is suspicious
_SUSPICIOUS = 0.5
_NEIGHBOURS = 8


class Finding(NamedTuple):
    """A picture, its label, and what speaks against it."""

    split: str
    record: int
    path: str
    label: str
    proposed: str
    score: float
    remarks: tuple[str, ...]
    against: tuple[int, ...]  # training records among its neighbours with another label
    duplicates: tuple[str, ...] = ()  # of which pictures with another label it is a near copy
    doubted: bool = False  # whether the witnesses together believe more in the proposed class


def list_findings(
    split: str,
    dataset: Dataset,
    evidence: Evidence,
    suspicion: Suspicion,
    root: str,
    duplicates: dict[int, tuple[str, ...]],
) -> list[Finding]:
    """The findings about one split, worst first."""
    source, names = getattr(dataset, split), dataset.class_names
    findings = []
    for row, record in enumerate(evidence.records.tolist()):
        label, proposed = names[evidence.labels[row]], names[suspicion.proposed[row]]
        known = evidence.neighbours[row] >= 0
        other = known & (evidence.neighbour_labels[row] != evidence.labels[row])
        remarks = (
            f"classifier: {suspicion.classifier[row]:.0%} {label}, "
            f"{suspicion.classifier_proposed[row]:.0%} {proposed}",
            f"neighbours: {suspicion.neighbours[row]:.0%} {label}, "
            f"{suspicion.neighbours_proposed[row]:.0%} {proposed}",
            f"{other.sum()} of {known.sum()} neighbours have another label",
        )
        findings.append(
            Finding(
                split=split,
                record=record,
                path=corrections.name_of(source, record, root),
                label=label,
                proposed=proposed,
                score=float(suspicion.scores[row]),
                remarks=remarks,
                against=tuple(evidence.neighbours[row][other].tolist()),
                duplicates=duplicates.get(record, ()),
                doubted=bool(suspicion.doubted[row]),
            )
        )
    return sorted(findings, key=lambda each: (-each.score, each.path))


def contradicting_duplicates(
    dataset: Dataset, image_size: int, threads: int
) -> dict[str, dict[int, tuple[str, ...]]]:
    """By split and record: copies and near copies that have another label."""
    found: dict[str, dict[int, tuple[str, ...]]] = {"train": {}, "test": {}}
    for finding in inspection.inspect(dataset, image_size, threads=threads).findings:
        if "duplicate" in finding.problem and "other class" in finding.problem:
            found[finding.split][finding.record] = (finding.detail,)
    return found


def write(
    findings: Sequence[Finding], dataset: Dataset, data: ConfigDict, directory: Path, note: str
) -> list[Path]:
    """Writes table and page; returns their paths. `data` is the section of the run's config."""
    train, root = dataset.train, data.path
    earlier = corrections.read(data.corrections) if data.corrections else ()
    ranked = sorted(findings, key=lambda each: (-each.score, each.path))
    rows = (
        (
            each.path,
            each.label,
            each.proposed,
            f"{each.score:.6f}",
            each.split,
            ";".join(corrections.name_of(train, record, root) for record in each.against),
            ";".join(each.duplicates),
        )
        for each in ranked
    )
    paths = [write_csv(directory / CSV_FILE, HEADER, rows), directory / PAGE_FILE]
    with storage.replacing(paths[1]) as unfinished:
        text = _compose(ranked, dataset, earlier, note)
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
    return paths


def _compose(
    ranked: Sequence[Finding], dataset: Dataset, earlier: Sequence[Correction], note: str
) -> str:
    doubted = sum(each.doubted for each in ranked)
    agreed = 1 - doubted / max(len(ranked), 1)
    tiles = page.tiles(
        [
            (f"{doubted:,}", "labels that classifier and neighbours together would change"),
            (f"{len(ranked):,}", "labels judged"),
            (f"{agreed:.0%}", "of the labels they agree with"),
        ]
    )
    bar = Markup(
        '<p class="quiet">{} Where they disagree, either the label is wrong or they are. The fewer '
        "labels they agree with, the more often it is they who are wrong. Decide on as many as you "
        "like and save. Then train with "
        "<code>--config.data.corrections=corrections.csv</code>.</p>"
        '<p><button id="save" type="button">Save corrections.csv</button> '
        '<span id="count" class="quiet"></span></p>'
    ).format(note)
    sections, given = [], {line.path: line.label for line in earlier}
    for split in ("train", "test"):
        own = [each for each in ranked if each.split == split]
        count = min(_SHOWN, max(sum(each.score > _SUSPICIOUS for each in own), _LEAST))
        # Of contradicting duplicates one is wrong for certain, whatever the network says.
        shown = own[:count] + [each for each in own[count:] if each.duplicates][:_SHOWN]
        if shown:
            rows = page.join(_row(each, dataset, given.get(each.path)) for each in shown)
            text = page.paragraph(f"{len(shown):,} of {len(own):,}; {CSV_FILE} has them all.")
            sections.append(Section(split, f"In {split}", text + rows))
    sections.append(Section("end", "Then", _ending(earlier)))
    return page.page("Which labels are wrong?", "cone_jax label errors", tiles + bar, sections)


def _ending(earlier: Sequence[Correction]) -> Markup:
    """What the file of corrections begins with, and the script that writes it."""
    kept = Markup("").join(
        Markup(
            '<i class="earlier" hidden data-path="{}" data-given="{}" data-corrected="{}"></i>'
        ).format(line.path, line.label, line.corrected)
        for line in earlier
    )
    text = "The button at the top saves what you have decided"
    text += f", with the {len(earlier):,} corrections of this run." if earlier else "."
    # The script is part of this package, not of anybody's data.
    script = Markup(_SCRIPT.read_text(encoding="utf-8"))
    return page.paragraph(text) + kept + Markup("<script>{}</script>").format(script)


def _row(finding: Finding, dataset: Dataset, given: str | None) -> Markup:
    """A picture with its neighbours and the decision; `given` is the label before corrections."""
    source = getattr(dataset, finding.split)
    query = page.thumbnail(
        pixels(source, finding.record), finding.label, (f"score {finding.score:.2f}",)
    )
    names = dataset.class_names
    others = page.join(
        page.thumbnail(
            pixels(dataset.train, record),
            names[_label(dataset.train, record)],
            (file_name(dataset.train, record),),
        )
        for record in finding.against[:_NEIGHBOURS]
    )
    choices = Markup("").join(
        Markup("<option{}>{}</option>").format(
            Markup(" selected") if name == finding.proposed else "", name
        )
        for name in names
    )
    lines = [finding.path, *finding.remarks]
    lines += [f"copy with another label: {other}" for other in finding.duplicates]
    told = Markup("").join(Markup('<p class="quiet">{}</p>').format(line) for line in lines)
    return Markup(
        '<div class="sheet decision" data-path="{}" data-given="{}">{}<div>{}'
        '<p><button type="button" data-do="accept">It is</button> <select>{}</select> '
        '<button type="button" data-do="reject">The label is right</button> '
        '<button type="button" data-do="drop">Leave the picture out</button> '
        '<b class="said"></b></p><div class="others">{}</div></div></div>'
    ).format(finding.path, finding.label if given is None else given, query, told, choices, others)


def _label(source: Source, record: int) -> int:
    labels = getattr(source, "labels", None)
    return source[record].label if labels is None else int(labels[record])


def pixels(source: Source, record: int) -> np.ndarray | None:
    """The whole picture; None where it cannot be read."""
    try:
        picture = decode.open_image(source[record].image)
        return picture if isinstance(picture, np.ndarray) else np.asarray(picture.full())
    except decode.DamagedImage:
        return None
