"""The sections of a report. Each returns None where the run has nothing to fill it with."""

import numpy as np
from markupsafe import Markup

from cone_jax import config as config_lib
from cone_jax.analysis import figures, page, training_curves
from cone_jax.analysis.config_fields import used_fields
from cone_jax.analysis.confusion import (
    confusion_figure,
    confusion_matrix,
    frequent_mistakes,
    worst_classes,
)
from cone_jax.analysis.neighbourhoods import ALPHA_SCALE, ends, format_alpha
from cone_jax.analysis.page import Section
from cone_jax.analysis.paper_figures import classes_panel, one_class_panel
from cone_jax.analysis.report_inputs import Evidence
from cone_jax.console import HEADLINES, Chart, duration, find_metric
from cone_jax.evaluation.accuracy import SPLIT_ACCURACIES, interval_text
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir import flatten

_PULLS_EACH = 4  # most and least similar positives


def opening(evidence: Evidence) -> Markup:
    """What the run is, and its few most important numbers."""
    run, config = evidence.run, evidence.run.config
    data = config.data.name or config.data.source
    line = (
        f"{config.objective.name} · {config.model.name} · {data} · step {run.last_step:,}"
        f"{evidence.epoch_text(run.last_step)}"
    )
    tiles = []
    for name in HEADLINES:
        value, metric = run.last(name), find_metric(run.declared_metrics, name)
        if value is not None:
            sure = _interval(evidence, name, value)
            tiles.append((metric.text(value), f"{metric.label_of(name)}{sure}"))
    seconds = run.last("time/seconds")
    if seconds is not None:
        tiles.append((duration(seconds), "training time"))
    speeds = run.series("time/images_per_second").values
    if speeds.size:
        tiles.append((f"{np.median(speeds):,.0f}", "images per second (median)"))
    return page.join([page.paragraph(line), page.tiles(tiles)])


def results(evidence: Evidence) -> Section | None:
    """The final table."""
    run = evidence.run
    rows = []
    for name in run.metric_names():
        series = run.series(name)
        if name.startswith(("train/", "time/")) or not np.isfinite(series.values).any():
            continue
        metric = find_metric(run.declared_metrics, name)
        best = (np.nanargmin if metric.better == "lower" else np.nanargmax)(series.values)
        scores = (
            f"{metric.text(value)}{_interval(evidence, name, value)}"
            for value in (series.values[-1], series.values[best])
        )
        at = int(series.steps[best])
        rows.append((name, *scores, f"{at:,}{evidence.epoch_text(at)}"))
    parts = []
    if rows:
        header = ("metric", "last", "best", "at step")
        parts.append(page.table(header, rows, numbers=(1, 2, 3), kind="narrow"))
    if evidence.missing:
        parts.append(page.paragraph(f"Left out because it is missing: {evidence.missing}"))
    return Section("results", "Results", page.join(parts)) if parts else None


def _interval(evidence: Evidence, name: str, value: float) -> str:
    """The interval of a test accuracy, in brackets; empty for other metrics."""
    if name not in SPLIT_ACCURACIES or evidence.snapshot is None:
        return ""
    return f" ({interval_text(value, len(evidence.snapshot.labels))})"


def curves(evidence: Evidence) -> Section | None:
    """Every metric over training; one that was measured once is in the table of results."""
    run = evidence.run
    drawn = [
        (chart, names)
        for chart, names in training_curves.charts_of(run.metric_names(), run.declared_metrics)
        if any(len(run.series(name).steps) > 1 for name in names)
    ]
    charts = [
        page.chart(
            training_curves.draw(run, chart, names),
            chart.key,
            chart.title,
            _caption(run, chart, names),
        )
        for chart, names in drawn
    ]
    folded = f"{len(charts)} charts of what was recorded during training"
    return Section("training", "Training", page.grid(charts), folded) if charts else None


def _caption(run: RunDirectory, chart: Chart, names: list[str]) -> str:
    values = [f"{(run.last(name) or 0.0) * chart.factor:.{chart.digits}g}" for name in names]
    if len(names) > 1:
        labels = [training_curves.label(name, run.declared_metrics) for name in names]
        values = [f"{label} {value}" for label, value in zip(labels, values, strict=True)]
    return f"{chart.note} Last: {', '.join(values)}.".strip()


def classes(evidence: Evidence) -> Section | None:
    """The network's mistakes."""
    snapshot = evidence.snapshot
    if snapshot is None or not len(snapshot.labels):
        return None
    names = snapshot.class_names
    matrix = confusion_matrix(snapshot.labels, snapshot.predictions, len(names))
    errors = int(matrix.sum() - np.trace(matrix))
    total = int(matrix.sum())
    scores = page.table(
        ("class", "accuracy", "95% interval", "", "examples", "most often taken for"),
        [
            (
                names[score.label],
                f"{score.accuracy:.1%}",
                interval_text(score.accuracy, score.examples),
                page.bar(score.accuracy),
                f"{score.examples:,}",
                names[score.taken_for],
            )
            for score in worst_classes(matrix)
            if score.taken_for is not None
        ],
        numbers=(1, 2, 4),
    )
    mistakes = page.table(
        ("class", "predicted", "times"),
        [(names[m.label], names[m.prediction], f"{m.times:,}") for m in frequent_mistakes(matrix)],
        numbers=(2,),
    )
    figure, which = confusion_figure(matrix, names)
    parts = [
        page.chart(figure, "confusion", "Confusion matrix", f"% of each class; {which}."),
        Markup("<div><h3>Worst classes</h3>{}<h3>Most frequent mistakes</h3>{}</div>").format(
            *((scores, mistakes) if errors else [page.paragraph("None.")] * 2)
        ),
    ]
    intro = page.paragraph(
        f"{total - errors:,} of {total:,} test pictures are right, at step {snapshot.step:,}."
    )
    return Section("classes", "Classes", page.join([intro, page.grid(parts, wide=True)]))


def neighbours(evidence: Evidence) -> Section | None:
    """Test pictures beside their nearest bank rows."""
    snapshot = evidence.snapshot
    if snapshot is None or snapshot.neighbours is None:
        return None
    sheet, names = snapshot.neighbours, snapshot.class_names
    rows = []
    for index, query in enumerate(evidence.test_pictures(sheet.queries.tolist())):
        label, prediction = names[sheet.labels[index]], sheet.predictions[index]
        right = prediction == sheet.labels[index]
        verdict = "✓ recognised" if right else f"✗ mistaken for {names[prediction]}"
        others = []
        records = sheet.neighbours[index].tolist()
        for place, picture in enumerate(evidence.training_pictures(records)):
            other = sheet.neighbour_labels[index, place]
            if other < 0:
                continue
            same = other == sheet.labels[index]
            line = f"{'✓' if same else '✗'} {sheet.similarity[index, place]:.3f}"
            kind = "same" if same else "other"
            file = evidence.file_name(evidence.train, records[place])
            others.append(page.thumbnail(picture, names[other], [line, *file], kind))
        file = evidence.file_name(evidence.test, int(sheet.queries[index]))
        rows.append(page.sheet(page.thumbnail(query, label, [verdict, *file], "query"), others))
    intro = page.paragraph(
        "Test pictures, and the training pictures in the memory bank nearest to them, each once, "
        "with the cosine of their embeddings. Solid blue and ✓: the same class; dashed orange and "
        "✗: another. Correct answers first, then the most confident mistakes."
    )
    return Section("neighbours", "Nearest neighbours", page.join([intro, *rows]))


def pulls(evidence: Evidence) -> Section | None:
    """Training pictures beside the positives that pull most and least."""
    snapshot = evidence.snapshot
    if snapshot is None or snapshot.pulls is None:
        return None
    sheet, names = snapshot.pulls, snapshot.class_names
    rows = []
    for index, query in enumerate(evidence.training_pictures(sheet.queries.tolist())):
        name = names[sheet.labels[index]]
        columns = ends(sheet, index, _PULLS_EACH)
        records = sheet.positives[index, columns].tolist()
        found = evidence.training_pictures(records)
        thumbnails = []
        for column, record, picture in zip(columns, records, found, strict=True):
            alpha = format_alpha(sheet.alpha[index, column])
            file = evidence.file_name(evidence.train, record)
            lines = [f"cos {sheet.similarity[index, column]:.3f}", *file]
            thumbnails.append(page.thumbnail(picture, f"α {alpha}", lines))
        groups = [page.group("most similar positives", thumbnails[:_PULLS_EACH])]
        if thumbnails[_PULLS_EACH:]:
            groups.append(page.group("least similar positives", thumbnails[_PULLS_EACH:]))
        positives = int(np.isfinite(sheet.alpha[index]).sum())
        file = evidence.file_name(evidence.train, int(sheet.queries[index]))
        head = page.thumbnail(query, name, [f"{positives} positive rows", *file], "query")
        rows.append(page.sheet(head, groups))
    intro = page.paragraph(
        "Training pictures beside the most and the least similar positives in the bank, row by "
        "row: the bank may hold a picture several times, as it was in different epochs. α is "
        f"how strongly L_sup_in pulls towards a positive, times {ALPHA_SCALE:g}: the paper prints "
        "values above 1 without naming a factor, and a thousand is our reading. Anchors are all "
        "rows of the bank."
    )
    body = page.join([intro, *rows])
    return Section("positives", "Pull of the positives", body, "For those who study the method")


def maps(evidence: Evidence) -> Section | None:
    """The feature space in two dimensions."""
    snapshot = evidence.snapshot
    if snapshot is None:
        return None
    parts = []
    panel = classes_panel("", snapshot)
    if panel is not None:
        caption = f"{len(panel.points)} test pictures of {len(panel.names)} classes."
        figure = figures.embedding_maps([panel])
        parts.append(page.chart(figure, "map-classes", "Several classes", caption))
    panel = one_class_panel("One class: {}", snapshot)
    if panel is not None:
        caption = f"{len(panel.points)} training pictures, recognised or not."
        figure = figures.embedding_maps([panel._replace(title="")])
        parts.append(page.chart(figure, "map-one", panel.title, caption))
    if not parts:
        return None
    intro = page.paragraph(
        "t-SNE of pooled features, unit norm, 50 principal components, perplexity 30 (less for few "
        "points), 1,000 iterations, seed 0. Distances between far groups mean little."
    )
    body = page.join([intro, page.grid(parts, wide=True)])
    return Section("maps", "Feature maps", body, "How the network arranges the pictures")


def configuration(evidence: Evidence) -> Section:
    """The config: what differs from the defaults, then everything."""
    config = evidence.run.config
    ours, standard = used_fields(config), flatten(config_lib.default())
    changed = [(name, repr(v)) for name, v in ours.items() if standard.get(name, v) != v]
    everything = [(name, repr(value)) for name, value in ours.items()]
    body = page.join(
        [
            page.paragraph("What this run sets differently from the defaults of docs/fields.md:"),
            page.table((), changed, kind="code"),
            Markup("<details><summary>All {} fields in use</summary>{}</details>").format(
                len(everything), page.table((), everything, kind="code")
            ),
        ]
    )
    return Section("config", "Config", body)


def versions(evidence: Evidence) -> Section | None:
    """What computed the snapshot."""
    if evidence.snapshot is None:
        return None
    body = page.table((), list(evidence.snapshot.versions.items()), kind="code narrow")
    return Section("versions", "Versions", body)
