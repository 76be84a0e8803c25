"""Drawings as SVG text, made of few shapes: the same program gives the same bytes.

Colours are variables with a value for light and one for dark. A drawing that a browser shows as a
picture follows the system; inside a page of the site it follows the page.
"""

import html
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent

# On light paper and on dark; those of the report's pages.
COLOURS = {
    "paper": "#ffffff #1e2129",
    "panel": "#f3f5f8 #2a2f39",
    "ink": "#1c2127 #e7eaee",
    "muted": "#5b6672 #a0aab5",
    "line": "#c9d1da #4a5360",
    "blue": "#0072b2 #56b4e9",
    "orange": "#d55e00 #f08a4b",
    "green": "#00815f #35c79a",
    "pink": "#b1578b #e19bc4",
    "yellow": "#b37700 #f0b73c",
}


def style() -> str:
    """The colours and the kinds of text, for the class ``cone-figure``."""
    light, dark = (
        "".join(f"--f-{name}:{values.split()[mode]};" for name, values in COLOURS.items())
        for mode in (0, 1)
    )
    return (
        f".cone-figure{{{light}}}"
        f"@media(prefers-color-scheme:dark){{.cone-figure{{{dark}}}}}"
        ".cone-figure text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
    )


def number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _attributes(values: dict[str, object]) -> str:
    pairs = ((key.replace("_", "-").rstrip("-"), value) for key, value in values.items())
    return "".join(
        f' {key}="{number(value) if isinstance(value, float) else value}"'
        for key, value in pairs
        if value is not None
    )


class Drawing:
    """Shapes from back to front. Colours are names of `COLOURS`."""

    def __init__(self, name: str, width: float, height: float) -> None:
        self.name, self.width, self.height = name, width, height
        self.shapes: list[str] = []
        self.markers: set[str] = set()

    def circle(self, x: float, y: float, r: float, fill: str, **more: object) -> None:
        self._add("circle", cx=float(x), cy=float(y), r=float(r), fill=_colour(fill), **more)

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, **more: object
    ) -> None:
        size = {"width": float(width), "height": float(height)}
        more = {"rx": 4.0, **more}
        self._add("rect", x=float(x), y=float(y), **size, fill=_colour(fill), **more)

    def path(
        self,
        points: Sequence[tuple[float, float]] | str,
        colour: str,
        width: float = 1.5,
        *,
        arrow: bool = False,
        **more: object,
    ) -> None:
        d = points if isinstance(points, str) else _polyline(points)
        if arrow:
            self.markers.add(colour)
            more["marker_end"] = f"url(#{self.name}-{colour})"
        more = {"fill": "none", "stroke_linecap": "round", **more}
        self._add("path", d=d, stroke=_colour(colour), stroke_width=float(width), **more)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = "ink",
        size: float = 13,
        *,
        anchor: str = "start",
        bold: bool = False,
        italic: bool = False,
    ) -> None:
        self.shapes.append(
            f"<text{_attributes({'x': float(x), 'y': float(y), 'fill': _colour(colour)})}"
            f' font-size="{number(size)}" text-anchor="{anchor}"'
            + (' font-weight="650"' if bold else "")
            + (' font-style="italic"' if italic else "")
            + f">{html.escape(text, quote=False)}</text>"
        )

    def raw(self, svg: str) -> None:
        self.shapes.append(svg)

    def svg(self) -> str:
        """The drawing, without the first line of a file."""
        size = f"{number(self.width)} {number(self.height)}"
        markers = "".join(
            f'<marker id="{self.name}-{colour}" viewBox="0 0 10 10" refX="8" refY="5" '
            f'markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
            f'<path d="M0 0 10 5 0 10 2.5 5Z" fill="{_colour(colour)}"/></marker>'
            for colour in sorted(self.markers)
        )
        head = f"<style>{style()}</style>" + (f"<defs>{markers}</defs>" if markers else "")
        # A page may be dark where the system is light: a drawing brings its own paper.
        head += '<rect width="100%" height="100%" rx="8" fill="var(--f-paper)"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="cone-figure" viewBox="0 0 {size}" '
            f'width="{number(self.width)}">\n{head}\n' + "\n".join(self.shapes) + "\n</svg>\n"
        )

    def file(self) -> str:
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + self.svg()

    def _add(self, element: str, **attributes: object) -> None:
        self.shapes.append(f"<{element}{_attributes(attributes)}/>")


def _colour(name: str) -> str:
    return f"var(--f-{name})" if name in COLOURS else name


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
