"""The paper's figures, of one run or of several side by side.

    gradient_coefficients    queries with their most and least similar positives and alpha
    embedding_one_class      t-SNE of the training pictures of one class
    embedding_classes        t-SNE of test pictures of up to ten classes
    log_sum_exp_errors       m_p and m_n over training
    neighbour_purity         the share of neighbours of the query's class, over training

A figure is left out if no run has data for it.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from cone_jax.analysis import figure_style, figures
from cone_jax.analysis.figures import Line, MapPanel, PullRow
from cone_jax.analysis.neighbourhoods import ALPHA_SCALE, ends, format_alpha
from cone_jax.analysis.report_inputs import Evidence
from cone_jax.analysis.snapshot import Snapshot

_EACH = 3  # most and least similar positives


def draw(evidence: Sequence[Evidence], names: Sequence[str]) -> dict[str, Figure]:
    """The figures that can be drawn for the runs called `names`, by their own names."""
    drawn: dict[str, Figure | None] = {
        "embedding_one_class": one_class_maps(evidence, names),
        "embedding_classes": class_maps(evidence, names),
        "log_sum_exp_errors": log_sum_exp_errors(evidence, names),
        "neighbour_purity": neighbour_purity(evidence, names),
    }
    for item, name in zip(evidence, names, strict=True):
        suffix = f"_{figure_style.file_name(name)}" if len(evidence) > 1 else ""
        drawn[f"gradient_coefficients{suffix}"] = gradient_coefficients(item)
    return {stem: figure for stem, figure in drawn.items() if figure is not None}


def gradient_coefficients(evidence: Evidence) -> Figure | None:
    """Figure of the gradient analysis: a query, its positives, and how strongly each pulls."""
    snapshot = evidence.snapshot
    if snapshot is None or snapshot.pulls is None:
        return None
    sheet = snapshot.pulls
    rows = []
    for index, query in enumerate(evidence.training_pictures(sheet.queries.tolist())):
        columns = ends(sheet, index, _EACH)
        found = evidence.training_pictures(sheet.positives[index, columns].tolist())
        known = np.isfinite(sheet.similarity[index])
        similarity, alpha = sheet.similarity[index, known], sheet.alpha[index, known]
        captions = [f"cos {similarity[c]:.2f}\nα {format_alpha(alpha[c])}" for c in columns]
        shown = list(zip(found, captions, strict=True))
        name = snapshot.class_names[sheet.labels[index]]
        rows.append(PullRow(name, query, shown, similarity, alpha))
    return figures.positive_pull(rows, alpha_scale=ALPHA_SCALE)


def one_class_maps(evidence: Sequence[Evidence], names: Sequence[str]) -> Figure | None:
    """The features of one class, one panel per run."""
    pairs = zip(evidence, names, strict=True)
    return _maps([one_class_panel(f"{name}: class {{}}", e.snapshot) for e, name in pairs])


def class_maps(evidence: Sequence[Evidence], names: Sequence[str]) -> Figure | None:
    """The features of up to ten classes, one panel per run."""
    return _maps([classes_panel(name, e.snapshot) for e, name in zip(evidence, names, strict=True)])


def one_class_panel(title: str, snapshot: Snapshot | None) -> MapPanel | None:
    """The map of one class, whose name takes the place of ``{}`` in the title."""
    if snapshot is None or snapshot.one_class_map is None:
        return None
    points, correct, label = snapshot.one_class_map
    title = title.replace("{}", snapshot.class_names[int(label)])
    return MapPanel(title, points, np.where(correct, 0, 1), ("recognised", "mistaken"))


def classes_panel(title: str, snapshot: Snapshot | None) -> MapPanel | None:
    """The map of several classes."""
    if snapshot is None or snapshot.classes_map is None:
        return None
    points, labels = snapshot.classes_map
    present, groups = np.unique(labels, return_inverse=True)
    return MapPanel(title, points, groups, [snapshot.class_names[label] for label in present])


def _maps(panels: Sequence[MapPanel | None]) -> Figure | None:
    drawn = [panel for panel in panels if panel is not None]
    return figures.embedding_maps(drawn) if drawn else None


def log_sum_exp_errors(evidence: Sequence[Evidence], names: Sequence[str]) -> Figure | None:
    """tau * m_p and tau * m_n over training; that this is the paper's unit is our reading."""
    metrics = {"train/m_p_times_tau": "m_p", "train/m_n_times_tau": "m_n"}
    return _curves(evidence, names, metrics, "log-sum-exp error, τ m")


def neighbour_purity(evidence: Sequence[Evidence], names: Sequence[str]) -> Figure | None:
    """The share of neighbours that have the query's class."""
    return _curves(evidence, names, {"train/purity": ""}, "neighbours of the class, %", 100.0)


def _curves(
    evidence: Sequence[Evidence],
    names: Sequence[str],
    metrics: dict[str, str],
    y_label: str,
    factor: float = 1.0,
) -> Figure | None:
    lines = []
    for item, name in zip(evidence, names, strict=True):
        for metric, symbol in metrics.items():
            series = item.run.series(metric)
            if series.steps.size:
                own = [symbol] if symbol else []
                label = ", ".join([name, *own] if len(evidence) > 1 else own)
                lines.append(Line(label, series.steps, series.values * factor))
    if not lines:
        return None
    # A lone curve has no legend; its run is named all the same.
    title = lines[0].label if len(lines) == 1 else ""
    return figures.curves(lines, y_label=y_label, title=title)
