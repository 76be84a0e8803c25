"""The files of an evaluation under corruption: numbers, a table, a figure."""

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from cone_jax import storage
from cone_jax.analysis import figure_style, figures
from cone_jax.analysis.tables import markdown_table, write_csv
from cone_jax.errors import UserError
from cone_jax.evaluation.corruption_error import ERRORS_FILE, ERRORS_HEADER
from cone_jax.evaluation.corruptions import SEVERITIES
from cone_jax.evaluation.robustness import RobustnessOutcome

TABLE_FILE = "robustness.md"
PICTURES = "Pictures: "  # how the line begins that says of which
OWN_PICTURES = "the test split, corrupted here"


def check_directory(directory: Path, data: str) -> None:
    """Refuses a `directory` whose results are for other data and would be overwritten."""
    table = directory / TABLE_FILE
    if not table.exists():
        return
    wanted = data or OWN_PICTURES
    lines = [line for line in table.read_text().splitlines() if line.startswith(PICTURES)]
    earlier = lines[0].removeprefix(PICTURES).removesuffix(".") if lines else wanted
    if Path(earlier) != Path(wanted):  # a slash at the end does not matter
        raise UserError(
            f"{directory} holds the results of {earlier}, not of {wanted}; move them away, or use "
            "--mode=evaluate with an evaluator robustness(data=..., name=...) for these"
        )


def write_robustness(outcome: RobustnessOutcome, directory: Path) -> list[Path]:
    """Writes errors.csv, robustness.md and the figure below `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    table = directory / TABLE_FILE
    with storage.replacing(table) as unfinished:
        unfinished.write_text(_markdown(outcome))
    return [
        write_csv(directory / ERRORS_FILE, ERRORS_HEADER, outcome.errors.rows()),
        table,
        *figure_style.save(robustness_figure(outcome), directory / "robustness"),
    ]


def robustness_figure(outcome: RobustnessOutcome) -> Figure:
    """Errors in per cent: severities down, corruptions across."""
    names = list(outcome.errors.corrupted)
    values = 100.0 * np.array([outcome.errors.corrupted[name] for name in names]).T
    panel = figures.Matrix(
        f"top-1 error, % (clean: {_percent(outcome.errors.clean)})",
        values,
        list(map(str, SEVERITIES)),
        [_short(name) for name in names],
        "severity",
        "corruption",
    )
    return figures.matrices([panel], number="{:.0f}")


def _percent(error: float) -> str:
    return "unknown" if math.isnan(error) else f"{100.0 * error:.1f}"


def _short(name: str) -> str:
    name = name.removesuffix("_transform").removesuffix("_compression")
    return name.replace("_", " ")


def _markdown(outcome: RobustnessOutcome) -> str:
    errors, normalised = outcome.errors, outcome.normalised
    header = ["corruption", *(f"severity {each}" for each in SEVERITIES), "mean"]
    rows = [
        [name, *(f"{100.0 * each:.2f}" for each in by_severity), f"{100.0 * errors.mean(name):.2f}"]
        for name, by_severity in errors.corrupted.items()
    ]
    over_corruptions = np.mean([list(each) for each in errors.corrupted.values()], axis=0)
    last = ["mean", *(f"{100.0 * each:.2f}" for each in over_corruptions)]
    rows.append([*last, f"{100.0 * errors.overall():.2f}"])
    if normalised is not None:
        header += ["CE", "relative CE"]
        for row in rows[:-1]:
            row += [f"{normalised.ce[row[0]]:.2f}", f"{normalised.relative_ce[row[0]]:.2f}"]
        rows[-1] += [f"{normalised.mce:.2f}", f"{normalised.relative_mce:.2f}"]
    clean = f"{100.0 * errors.clean:.2f} on the same pictures, clean"
    if math.isnan(errors.clean):
        clean = "no clean error, because the test split has other pictures"
    source = outcome.data or OWN_PICTURES
    lines = [
        f"Top-1 error in per cent of {outcome.pictures:,} pictures; {clean}.",
        f"{PICTURES}{source}.",
    ]
    if outcome.frost:
        lines.append(f"Frost: {outcome.frost}.")
    if normalised is not None:
        lines.append(
            f"CE and relative CE in per cent of {outcome.baseline}; their means are mCE and "
            "relative mCE."
        )
    if outcome.remark:
        lines.append(f"{outcome.remark}.")
    return "\n".join([*lines, "", markdown_table(header, rows), ""])
