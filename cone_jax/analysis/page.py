"""The HTML of a page that stands alone: no script, no network, light and dark, any width.

Everything here is `Markup`, which escapes whatever text is put into it.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from cone_jax.analysis import figure_style

_STYLE = Path(__file__).with_name("page.css")
# Pictures are shown about 90 pixels wide; twice that is sharp on any screen.
_LARGEST = 180


class Section(NamedTuple):
    """A part of the page with an entry in its table of contents."""

    anchor: str
    title: str
    body: Markup
    folded: str = ""  # what a person opens it for; "": it is open


def page(title: str, kicker: str, opening: Markup, sections: Sequence[Section]) -> str:
    """The whole document."""
    links = join(
        Markup('<a href="#{}">{}</a>').format(section.anchor, section.title) for section in sections
    )
    parts = join(
        Markup('<section id="{}"><h2>{}</h2>{}</section>').format(
            section.anchor, section.title, _folded(section)
        )
        for section in sections
    )
    # The style sheet is part of this package, not of anybody's data.
    style = Markup(_STYLE.read_text())
    return str(
        Markup(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<link rel="icon" href="data:,"><title>{title}</title><style>{style}</style></head>\n'
            '<body><header><p class="kicker">{kicker}</p><h1>{title}</h1>{opening}</header>\n'
            "<nav>{links}</nav>\n{parts}\n<footer>Written by cone_jax. This file is "
            "self-contained.</footer></body></html>\n"
        ).format(title=title, style=style, kicker=kicker, opening=opening, links=links, parts=parts)
    )


def _folded(section: Section) -> Markup:
    if not section.folded:
        return section.body
    return Markup("<details><summary>{}</summary>{}</details>").format(section.folded, section.body)


def join(parts: Iterable[Markup]) -> Markup:
    return Markup("\n").join(parts)


def paragraph(text: str | Markup, *, quiet: bool = True) -> Markup:
    return Markup('<p class="{}">{}</p>').format("quiet" if quiet else "", text)


def tiles(values: Sequence[tuple[str, str]]) -> Markup:
    """The few numbers that matter, large; each a value and what it is."""
    each = join(
        Markup('<div class="tile"><b>{}</b><span>{}</span></div>').format(*v) for v in values
    )
    return Markup('<div class="tiles">{}</div>').format(each)


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str | Markup]],
    *,
    numbers: Iterable[int] = (),
    kind: str = "",
) -> Markup:
    """A table that scrolls by itself where it is wider than the page."""
    numeric = set(numbers)

    def cells(tag: str, values: Sequence[str | Markup]) -> Markup:
        return Markup("").join(
            Markup(
                '<{0} class="number">{1}</{0}>' if place in numeric else "<{0}>{1}</{0}>"
            ).format(Markup(tag), value)
            for place, value in enumerate(values)
        )

    head = Markup("<thead><tr>{}</tr></thead>").format(cells("th", header)) if header else ""
    body = join(Markup("<tr>{}</tr>").format(cells("td", row)) for row in rows)
    return Markup('<div class="scroll {}"><table>{}<tbody>{}</tbody></table></div>').format(
        kind, head, body
    )


def chart(figure: Figure, name: str, title: str, caption: str = "") -> Markup:
    """A figure with its heading and, below, how to read it."""
    return Markup("<figure><h3>{}</h3>{}<figcaption>{}</figcaption></figure>").format(
        title, figure_style.inline_svg(figure, name, title), caption
    )


def grid(parts: Iterable[Markup], *, wide: bool = False) -> Markup:
    return Markup('<div class="grid{}">{}</div>').format(" wide" if wide else "", join(parts))


def bar(fraction: float) -> Markup:
    return Markup('<span class="bar"><i style="width:{:.1f}%"></i></span>').format(100 * fraction)


def thumbnail(pixels: np.ndarray | None, name: str, lines: Sequence[str], kind: str = "") -> Markup:
    """A small picture uint8 [H, W, 3] with its name and further lines below."""
    if pixels is None:
        image = Markup('<div class="gone">no picture</div>')
    else:
        tiny = " class=tiny" if max(pixels.shape[:2]) < 64 else ""
        image = Markup('<img{} src="{}" alt="{}">').format(Markup(tiny), _data_uri(pixels), name)
    texts = Markup("").join(Markup("<span>{}</span>").format(line) for line in lines)
    return Markup('<div class="thumb {}" title="{}">{}<b>{}</b>{}</div>').format(
        kind, name, image, name, texts
    )


def sheet(query: Markup, others: Iterable[Markup]) -> Markup:
    """A row of a contact sheet: one picture, and those that belong to it."""
    return Markup('<div class="sheet">{}<div class="others">{}</div></div>').format(
        query, join(others)
    )


def group(title: str, thumbnails: Iterable[Markup]) -> Markup:
    """Pictures of a sheet that belong together."""
    return Markup('<div class="group"><p>{}</p>{}</div>').format(title, join(thumbnails))


def _data_uri(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels)
    image.thumbnail((_LARGEST, _LARGEST))
    file = io.BytesIO()
    # PNG keeps the pixels of tiny pictures; of photographs JPEG takes a tenth of the room.
    kind = "png" if max(image.size) < 64 else "jpeg"
    image.save(file, kind, **({} if kind == "png" else {"quality": 85}))
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
