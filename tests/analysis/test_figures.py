"""Figures: labelled, readable without colour, the same every time, at home in any page."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from cone_jax.analysis import figure_style, figures, page
from cone_jax.analysis.figures import Line, MapPanel, Matrix, PullRow
from cone_jax.data import contact_sheet

STEPS = np.arange(1, 6)
LINES = [Line(f"run <{i}>", STEPS, np.linspace(0.1, 1, 5) * (i + 1)) for i in range(3)]


def examples():
    band = Line("mean", STEPS, STEPS / 5, np.full(5, 0.1))
    points = np.random.default_rng(0).normal(size=(24, 2))
    names = [f"class {i}" for i in range(12)]
    picture = np.zeros((4, 4, 3), np.uint8)
    grid = np.array([[1.0, np.nan], [3.0, 4.0]])
    panel = Matrix("here", grid, ["a", "b"], ["x", "y"], "down", "across")
    pull = PullRow("owl", picture, [(picture, "near"), (None, "far")], STEPS / 6, STEPS / 9)
    return {
        "curves": figures.curves([*LINES, band], y_label="loss"),
        "one value": figures.curves([Line("a", STEPS[:1], STEPS[:1])], y_label="loss"),
        "flat": figures.curves([Line("a", STEPS, np.zeros(5))], y_label="loss"),
        "many classes": figures.embedding_maps([MapPanel("a", points, np.arange(24) % 12, names)]),
        "two maps": figures.embedding_maps(
            [MapPanel(t, points, np.arange(24) % 2, ["right", "wrong"]) for t in "ab"]
        ),
        "matrix": figures.matrices([panel, panel], number="{:.1f}", title="title"),
        "large matrix": figures.matrices(
            [
                Matrix(
                    "", np.eye(20), list(map(str, range(20))), list(map(str, range(20))), "r", "c"
                )
            ],
            number="{:.0f}",
            colour_label="share",
        ),
        "pull": figures.positive_pull([pull, pull], alpha_scale=1000.0),
    }


@pytest.fixture(scope="module")
def drawn():
    return examples()


def test_every_axis_is_labelled(drawn):
    for name, figure in drawn.items():
        for axes in figure.axes:
            if axes.axison and axes.get_label() != "<colorbar>":
                assert axes.get_xlabel(), name
                assert axes.get_ylabel(), name
            elif axes.axison:
                assert axes.get_ylabel() == "share"


def test_curves_differ_in_more_than_colour(drawn):
    lines = drawn["curves"].axes[0].get_lines()
    assert len({line.get_linestyle() for line in lines[:3]} | {str(lines[0]._dash_pattern)}) > 1
    looks = {(line.get_color(), str(line._dash_pattern)) for line in lines}
    assert len(looks) == len(lines)
    groups = drawn["many classes"].axes[0].collections
    shapes = {(str(g.get_facecolor()), str(g.get_paths()[0].vertices.tolist())) for g in groups}
    assert len(shapes) == len(groups) == 12


def css_palettes():
    """The series colours of the page, light and dark."""
    light, dark = page._STYLE.read_text().split("@media (prefers-color-scheme: dark)")
    return [re.findall(r"--series-\d: (#\w{6})", part) for part in (light, dark)]


@pytest.mark.parametrize("palette", [figure_style.SERIES, *css_palettes()])
def test_colours_are_told_apart_with_red_green_blindness(palette):
    """Every pair differs in what that leaves: lightness and blue against yellow (Lab's L and b)."""
    assert len(palette) == len(figure_style.SERIES)

    def remaining(colour):
        rgb = np.array(to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        y, z = np.array([[0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
        root_y, root_z = np.cbrt([y, z / 1.089])
        return np.array([116 * root_y - 16, 200 * (root_y - root_z)])

    for first, second in itertools.combinations(palette, 2):
        assert np.linalg.norm(remaining(first) - remaining(second)) > 10, (first, second)


def test_a_matrix_prints_its_numbers_and_leaves_gaps_empty(drawn):
    texts = [text.get_text() for text in drawn["matrix"].axes[0].texts]
    assert texts == ["1.0", "3.0", "4.0"]
    assert not drawn["large matrix"].axes[0].texts


def test_files_are_whole_and_the_same_every_time(tmp_path):
    for place in ("first", "second"):
        drawn = examples()
        for name in ("curves", "two maps", "matrix", "pull"):
            png, svg = figure_style.save(drawn[name], tmp_path / place / name.replace(" ", "_"))
            with Image.open(png) as image:
                assert min(image.size) > 300
            assert "<svg" in svg.read_text()
    for file in sorted((tmp_path / "first").iterdir()):
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes(), file.name


def test_inline_figures_take_colours_and_typeface_from_their_page(drawn):
    for name, figure in drawn.items():
        text = figure_style.inline_svg(figure, name.replace(" ", "-"), "a <b> figure")
        assert text.startswith("<svg")
        assert 'aria-label="a &lt;b&gt; figure"' in text
        assert "font-family" not in text
        assert "<style" not in text
        assert "<metadata" not in text
        assert "var(--ink)" in text or "var(--muted)" in text
        for colour in figure_style.CSS_COLOURS:
            assert colour not in text
        ids = set(re.findall(r'\sid="([^"]*)"', text))
        assert all(identity.startswith(name.replace(" ", "-")) for identity in ids)
        assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', text)) <= ids
    legend = figure_style.inline_svg(drawn["curves"], "x", "")
    assert "run &lt;0&gt;" in legend


def test_names_of_any_kind():
    """Formulas that are none, names that matplotlib would hide, other scripts, endless ones."""
    names = [r"$\frac{", "_background", "犬", "a" * 60, "<&>"]
    lines = [Line(name, STEPS, STEPS * (i + 1.0)) for i, name in enumerate(names)]
    points = np.random.default_rng(0).normal(size=(20, 2))
    square = Matrix("", np.eye(5), names, names, "r", "c")
    for figure in (
        figures.curves(lines, y_label="loss"),
        figures.embedding_maps([MapPanel("$", points, np.arange(20) % 5, names)]),
        figures.embedding_maps([MapPanel("$", points, np.arange(20) % 3, names[:3])]),
        figures.matrices([square], number="{:.0f}"),
    ):
        text = figure_style.inline_svg(figure, "x", "")
        for name in (r"$\frac{", "_background", "犬"):
            assert name in text


def test_the_page_knows_every_colour():
    light, dark = page._STYLE.read_text().split("@media (prefers-color-scheme: dark)")
    for variable in figure_style.CSS_COLOURS.values():
        assert f"{variable}:" in light
        assert f"{variable}:" in dark


def test_names_that_begin_alike_are_told_apart_in_a_matrix():
    names = [f"a_very_long_name_of_a_breed_of_dogs_{end}" for end in ("male", "female")]
    panel = Matrix("", np.eye(2), names, names, "r", "c")
    (axes,) = figures.matrices([panel], number="{:.0f}").axes
    for labels, most in ((axes.get_yticklabels(), 28), (axes.get_xticklabels(), 16)):
        texts = [label.get_text() for label in labels]
        assert len(set(texts)) == 2
        assert all(len(text) <= most for text in texts)


def test_a_figure_takes_a_font_of_the_system_for_what_its_own_lacks(monkeypatch, tmp_path):
    """Letters that STIX has and DejaVu Sans lacks are not all the same box."""
    from matplotlib import get_data_path

    fonts = [f"{get_data_path()}/fonts/ttf/{name}.ttf" for name in ("DejaVuSans", "STIXGeneral")]
    drawn = []
    for known in (fonts[:1], fonts):
        monkeypatch.setattr(contact_sheet, "_fonts", lambda known=known: iter(known))
        for letter in "\u1d84\u1d8a":
            panel = Matrix("", np.eye(1), [letter], ["é"], "r", "c")
            figure = figures.matrices([panel], number="{:.0f}")
            drawn.append(figure_style.save(figure, tmp_path / "x")[0].read_bytes())
    assert drawn[0] == drawn[1]  # boxes
    assert drawn[2] != drawn[3]
