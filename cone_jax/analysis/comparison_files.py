"""What a comparison of runs leaves behind: a page, tables, and the curves as figures."""

from collections.abc import Sequence
from pathlib import Path

from cone_jax import atomic_file
from cone_jax.analysis import figure_style, figures, page, run_comparison
from cone_jax.analysis.markdown_table import markdown_table
from cone_jax.analysis.recorded_run import RecordedRun


def write(runs: Sequence[RecordedRun], directory: Path) -> Path:
    """Writes ``comparison.{html,md,csv}`` and the curves as PNG and SVG; returns the page."""
    groups = run_comparison.group_runs(runs)
    header, rows = run_comparison.table(groups)
    directory.mkdir(parents=True, exist_ok=True)
    charts = []
    for overlay in run_comparison.overlays(groups):
        key, chart = figure_style.file_name(overlay.metric.replace("/", "_")), overlay.chart
        figure = figures.curves(overlay.lines, y_label=chart.y_label)
        figure_style.save(figure, directory / "figures" / key)
        charts.append(page.chart(figure, key, overlay.title))
    note = "Bands and ± are one standard deviation over seeds. Each value is the last recorded."
    sections = [
        page.Section("table", "Table", page.table(header, rows, numbers=range(1, len(header)))),
        page.Section("curves", "Curves", page.grid(charts)),
    ]
    opening = page.paragraph(f"{len(runs)} runs in {len(groups)} groups. {note}")
    text = page.page("Comparison", "cone_jax", opening, sections)
    files = {
        "comparison.html": text,
        "comparison.md": f"{markdown_table(header, rows)}\n\n{note}\n",
        "comparison.csv": run_comparison.long_csv(groups),
    }
    for name, content in files.items():
        with atomic_file.replacing(directory / name) as unfinished:
            unfinished.write_text(content, encoding="utf-8")
    return directory / "comparison.html"
