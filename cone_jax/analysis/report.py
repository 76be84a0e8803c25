"""`report.html`: one run on one self-contained page.

The page is a function of the run's directory: config, metrics, and the snapshot of a checkpoint,
which is taken once and kept. Pictures come from the data set and are left out
where it is gone. Whatever an objective does not have (a bank, neighbours) has no section.
"""

from collections.abc import Callable
from pathlib import Path

from cone_jax import distributed, storage
from cone_jax.analysis import page, report_answers, report_sections
from cone_jax.analysis.report_inputs import Evidence, gather
from cone_jax.console import Report
from cone_jax.workdir.metrics import METRICS_FILE

FILE = "report.html"


def write(directory: Path | str, *, step: int | str = "latest") -> Path:
    """Writes the report of a run at one checkpoint: a step, ``latest`` or ``best``."""
    evidence = gather(storage.path(directory, "workdir"), step)
    path = evidence.run.path / FILE
    with storage.replacing(path) as unfinished:
        unfinished.write_text(compose(evidence), encoding="utf-8")
    return path


def write_after_training(directory: Path, say: Report) -> None:
    """Writes the report of a run that has just ended, unless it is there already.

    A failure here must not spoil a run that succeeded, so it only prints a warning. Of several
    processes the first one writes, on its own devices, while the others wait.
    """
    if distributed.is_primary():
        _write_if_older(directory, say)
    distributed.barrier("the report is written")


def _write_if_older(directory: Path, say: Report) -> None:
    try:
        path, metrics = directory / FILE, directory / METRICS_FILE
        if not path.exists() or storage.modified(path) <= storage.modified(metrics):
            write(directory)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        say(f"warning: no {FILE}: {reason}; --mode=report tries again")


def compose(evidence: Evidence) -> str:
    """The page as text."""
    builders: tuple[Callable[[Evidence], page.Section | None], ...] = (
        report_answers.answers,
        lambda known: known.detections,
        report_sections.classes,
        report_sections.neighbours,
        report_sections.results,
        report_sections.curves,
        report_sections.pulls,
        report_sections.maps,
        report_sections.configuration,
        report_sections.versions,
    )
    sections = [section for build in builders if (section := build(evidence)) is not None]
    opening = report_sections.opening(evidence)
    return page.page(evidence.run.name, "cone_jax report", opening, sections)
