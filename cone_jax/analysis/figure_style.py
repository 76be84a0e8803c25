"""The style of all figures, and how they are written: PNG and SVG files, or inline in a page.

Equal figures give equal bytes: no dates, no random ids. Colours are those of Okabe and Ito, which
readers with any kind of colour vision tell apart; lines differ in their dashes as well.
"""

import contextlib
import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

from cone_jax import storage
from cone_jax.data import contact_sheet

PAPER, INK, MUTED, GRID = "#fefefe", "#1c2127", "#5b6672", "#dfe4ea"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#44484f")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")

# What stands for each colour inside a page, where light and dark need different shades.
CSS_COLOURS = {
    PAPER: "--paper",
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    **{colour: f"--series-{index}" for index, colour in enumerate(SERIES)},
}

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$x"
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.limits": (-3, 5),
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "legend.handlelength": 2.2,
    "figure.facecolor": "white",
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "cone_jax",
}

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """The context in which figures are made."""
    with mpl.rc_context(_RC), warnings.catch_warnings():
        # Names in a script that no font here has are boxes in a PNG, and right in a page.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        yield


def file_name(name: str) -> str:
    """`name` reduced to letters, digits and ``-_.``, and short enough for a file name.

    >>> file_name("../CE + head")
    '..-CE---head'
    """
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:100]


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Writes ``stem.png`` and ``stem.svg``; returns their paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    _find_fonts(figure)
    paths = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    for path, metadata in zip(paths, ({"Software": None}, {"Date": None}), strict=True):
        with styled(), storage.replacing(path) as unfinished:
            figure.savefig(unfinished, format=path.suffix[1:], metadata=metadata)
    return paths


def _find_fonts(figure: Figure) -> None:
    """Lets texts fall back on system fonts for scripts that the typeface lacks."""
    texts = [text for text in figure.findobj(Text) if not text.get_text().isascii()]
    families = []
    for path in contact_sheet.font_files(text.get_text() for text in texts):
        font_manager.fontManager.addfont(path)
        families.append(font_manager.FontProperties(fname=path).get_name())
    for text in texts if families else ():
        text.set_fontfamily(["DejaVu Sans", *families])


def inline_svg(figure: Figure, name: str, description: str) -> Markup:
    """The figure as an ``<svg>`` element that takes colours and typeface from its page.

    `name` keeps its ids apart from those of other figures; `description` is read out to those
    who cannot see it.
    """
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    # A name may have characters that XML has not.
    root = ElementTree.fromstring(re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", b"?", file.getvalue()))
    for parent in (root, *root.findall(f"{{{_SVG}}}defs")):
        # Who made it, and style rules that would leak out into the page.
        for part in ("metadata", "style"):
            for element in parent.findall(f"{{{_SVG}}}{part}"):
                parent.remove(element)
    referenced = set(re.findall(rb"(?:#|url\(#)([\w.-]+)", file.getvalue()))
    for element in root.iter():
        _adapt(element, name, {reference.decode() for reference in referenced})
    for attribute in ("width", "height", "version"):
        del root.attrib[attribute]
    root.set("role", "img")
    root.set("aria-label", description)
    ElementTree.register_namespace("", _SVG)
    text = ElementTree.tostring(root, encoding="unicode")
    return Markup(re.sub(r"\s*\n\s*", " ", text))


def _adapt(element: ElementTree.Element, name: str, referenced: set[str]) -> None:
    """Adapts one element to a page that holds other figures."""
    own = element.attrib.pop("id", None)
    if own in referenced:
        element.set("id", f"{name}-{own}")
    if _HREF in element.attrib:
        target = element.attrib.pop(_HREF)
        element.set("href", f"#{name}-{target[1:]}" if target.startswith("#") else target)
    if "clip-path" in element.attrib:
        element.set("clip-path", element.attrib["clip-path"].replace("(#", f"(#{name}-"))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    style = re.sub(r"font-family:[^;]*;?\s*", "", element.get("style", ""))
    for colour, variable in CSS_COLOURS.items():
        style = style.replace(colour, f"var({variable})")
    if style:
        element.set("style", style)
