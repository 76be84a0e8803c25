"""The figures: numbers in, matplotlib figures out. Every axis has a label."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from cone_jax.analysis.figure_style import (
    DASHES,
    GRID,
    INK,
    MARKERS,
    MUTED,
    PAPER,
    SERIES,
    styled,
)

# Inches. At 72 points an inch this is the width of a telephone, so text keeps its size there.
WIDTH, HEIGHT = 5.0, 3.0
# Cells of a matrix with more rows than this are too small for a number.
_MOST_NUMBERED = 12
# From here on paper contrasts better with a cell than ink, on light pages as on dark ones.
_DARK_SHADE = 0.72
# One hue, from a breath of it to all of it: fits light and dark, and any kind of colour vision.
_SHADES = LinearSegmentedColormap.from_list(
    "shades", [(*to_rgb(SERIES[0]), 0.05), (*to_rgb(SERIES[0]), 1.0)]
)


class Line(NamedTuple):
    """One curve, with a band of one deviation around it where there are several runs."""

    label: str
    steps: np.ndarray
    values: np.ndarray
    deviation: np.ndarray | None = None
    look: int | None = None  # which colour and dashes; None: those of its place in the chart


class MapPanel(NamedTuple):
    """Points of one embedding map and the group each belongs to."""

    title: str
    points: np.ndarray  # [n, 2]
    groups: np.ndarray  # [n], indices into `names`
    names: Sequence[str]


class Matrix(NamedTuple):
    """A table of numbers; NaN where there is none."""

    title: str
    values: np.ndarray  # [rows, columns]
    rows: Sequence[str]
    columns: Sequence[str]
    row_label: str = ""
    column_label: str = ""


def curves(
    lines: Sequence[Line],
    *,
    y_label: str,
    title: str = "",
    x_label: str = "step",
) -> Figure:
    """Metrics over training steps, or over something else."""
    with styled():
        figure = Figure((WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        for index, line in enumerate(lines):
            look = index if line.look is None else line.look
            colour = SERIES[look % len(SERIES)]
            # A lone value is a dot; a line through one point would not be seen.
            marker = "o" if len(line.steps) == 1 else ""
            axes.plot(
                line.steps,
                line.values,
                color=colour,
                linestyle=DASHES[look % len(DASHES)],
                marker=marker,
                label=_in_legend(line.label),
            )
            if line.deviation is not None:
                low, high = line.values - line.deviation, line.values + line.deviation
                axes.fill_between(line.steps, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.set(xlabel=x_label, ylabel=y_label)
        if title:
            axes.set_title(title)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        _open_flat_range(axes, lines)
        if len(lines) > 1:
            # Above the axes a legend never hides a curve.
            columns = 2 if max(len(line.label) for line in lines) > 16 else 3
            figure.legend(loc="outside upper left", ncols=columns, borderaxespad=0.2)
    return figure


def _in_legend(name: str) -> str:
    """matplotlib leaves names that begin with an underscore out of its legends."""
    return shorten(f" {name}" if name.startswith("_") else name, 30)


def shorten(name: str, most: int) -> str:
    """At most so many characters: an endless name would leave no room for the figure.

    >>> shorten("Egyptian_Mau", 9), shorten("Sphynx", 9)
    ('Egyptian…', 'Sphynx')
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def shorten_all(names: Sequence[str], most: int) -> list[str]:
    """Shortens each; names that would then look alike lose their middle instead.

    >>> shorten_all(["terrier_of_Norwich", "terrier_of_Norfolk", "Sphynx"], 9)
    ['terr…wich', 'terr…folk', 'Sphynx']
    """
    ends = [shorten(name, most) for name in names]
    first, last = most // 2, (most - 1) // 2
    return [
        end
        if ends.count(end) == 1
        else f"{name[:first]}…{name[-last:]}"
        if len(name) > most
        else name
        for name, end in zip(names, ends, strict=True)
    ]


def _open_flat_range(axes: Axes, lines: Sequence[Line]) -> None:
    """Gives values that never change a range around them, from 0 where they are 0."""
    values = np.concatenate([line.values for line in lines]).astype(float)
    low, high = np.nanmin(values, initial=np.inf), np.nanmax(values, initial=-np.inf)
    if low == high:
        axes.set_ylim((0.0, 1.0) if low == 0 else (low - 0.1 * abs(low), low + 0.1 * abs(low)))


def embedding_maps(panels: Sequence[MapPanel]) -> Figure:
    """Maps side by side. Groups differ in colour and shape, and carry their names."""
    with styled():
        figure = Figure((WIDTH * len(panels), WIDTH), layout="constrained")
        for axes, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            for group, name in enumerate(panel.names):
                points = panel.points[panel.groups == group]
                if not len(points):
                    continue
                axes.scatter(
                    *points.T,
                    s=18,
                    color=SERIES[group % len(SERIES)],
                    marker=MARKERS[group % len(MARKERS)],
                    alpha=0.75,
                    linewidths=0,
                    label=_in_legend(name),
                )
            axes.set_title(shorten(panel.title, 44))
            axes.set(xlabel="t-SNE, first axis", ylabel="t-SNE, second axis", xticks=[], yticks=[])
            axes.margins(0.06)
            _name_groups(axes, panel)
    return figure


def _name_groups(axes: Axes, panel: MapPanel) -> None:
    """A few groups get a legend; many are labelled in place."""
    if len(panel.names) <= 3:
        axes.legend(loc="best")
        return
    for group, label in enumerate(shorten_all(panel.names, 14)):
        points = panel.points[panel.groups == group]
        if len(points):
            x, y = np.median(points, axis=0)
            box = {"boxstyle": "round,pad=0.25", "facecolor": PAPER, "edgecolor": GRID}
            axes.text(x, y, label, ha="center", va="center", weight="bold", bbox=box)


def matrices(
    panels: Sequence[Matrix], *, number: str, colour_label: str = "", title: str = ""
) -> Figure:
    """Heat maps side by side, each on a scale of its own, with numbers in the cells if they fit.

    `number` is a format such as ``"{:.1f}"``; where numbers do not fit there is a scale instead,
    called `colour_label`.
    """
    rows, columns = panels[0].values.shape
    cell = 0.3 if rows > _MOST_NUMBERED else 0.44
    names = min(max(len(name) for panel in panels for name in panel.rows), 28)
    width = 1.2 + 0.075 * names + max(cell * columns, 1.6)
    with styled():
        height = 1.3 + cell * rows + (0.4 if title else 0.0)
        figure = Figure((width * len(panels), height), layout="constrained")
        if title:
            figure.suptitle(title, color=MUTED, fontsize=10)
        for axes, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            _matrix(axes, panel, number, colour_label)
    return figure


def _matrix(axes: Axes, panel: Matrix, number: str, colour_label: str) -> None:
    values = np.ma.masked_invalid(panel.values)
    mesh = axes.pcolormesh(values, cmap=_SHADES, edgecolors=PAPER, linewidth=1.5)
    rows, columns = panel.values.shape
    row_names, column_names = shorten_all(panel.rows, 28), shorten_all(panel.columns, 16)
    axes.set_xticks(np.arange(columns) + 0.5, column_names)
    axes.set_yticks(np.arange(rows) + 0.5, row_names)
    if max(map(len, panel.columns)) > 5 or columns > _MOST_NUMBERED:
        axes.tick_params(axis="x", rotation=40)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set(xlabel=panel.column_label, ylabel=panel.row_label)
    axes.set_title(panel.title)
    if rows <= _MOST_NUMBERED:
        for row, column in np.argwhere(np.isfinite(panel.values)):
            value = panel.values[row, column]
            shade = PAPER if float(np.asarray(mesh.norm(value))) > _DARK_SHADE else INK
            text = number.format(value)
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=shade)
    elif colour_label:
        axes.figure.colorbar(mesh, ax=axes, label=colour_label, shrink=0.8, pad=0.03)


class PullRow(NamedTuple):
    """One query and its positives, the most similar first, for `positive_pull`."""

    name: str  # of the query's class
    query: np.ndarray | None  # uint8 [H, W, 3], as the network sees it; None: not at hand
    shown: Sequence[tuple[np.ndarray | None, str]]  # picture and caption
    similarity: np.ndarray  # of all positives
    alpha: np.ndarray


def positive_pull(rows: Sequence[PullRow], *, alpha_scale: float) -> Figure:
    """How strongly each positive pulls: pictures with their alpha, and alpha over similarity."""
    pictures = 1 + max(len(row.shown) for row in rows)
    with styled():
        figure = Figure((1.25 * pictures + 3.4, 1.75 * len(rows) + 0.6), layout="constrained")
        figure.suptitle(
            f"the most and the least similar positives of a query; α times {alpha_scale:g}, "
            "a factor that is our reading",
            color=MUTED,
            fontsize=10,
        )
        grid = figure.add_gridspec(len(rows), pictures + 1, width_ratios=[1] * pictures + [2.4])
        for index, row in enumerate(rows):
            _picture(
                figure.add_subplot(grid[index, 0]),
                row.query,
                f"query\n{shorten(row.name, 14)}",
                INK,
            )
            for place, (picture, caption) in enumerate(row.shown, start=1):
                _picture(figure.add_subplot(grid[index, place]), picture, caption, MUTED)
            axes = figure.add_subplot(grid[index, pictures])
            axes.scatter(
                row.similarity, row.alpha * alpha_scale, s=9, color=SERIES[0], linewidths=0
            )
            axes.set(xlabel="cosine to the query", ylabel=f"α × {alpha_scale:g}")
            axes.set_yscale("symlog", linthresh=1e-3)
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    return figure


def _picture(axes: Axes, pixels: np.ndarray | None, caption: str, colour: str) -> None:
    axes.set_axis_off()
    if pixels is not None:
        axes.imshow(pixels, interpolation="nearest")
    else:
        axes.text(0.5, 0.5, "no picture", ha="center", va="center", color=MUTED, fontsize=7)
    axes.set_title(caption, fontsize=9, weight="normal", color=colour)
