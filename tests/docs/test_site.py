"""The site: built without a warning, complete, alone with itself, and readable on any screen."""

import ast
import html.parser
import importlib
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cone_jax
from cone_jax import losses
from tests.analysis import browser
from tests.docs.documents import ROOT

MKDOCS = ROOT / ".venv/docs/bin/mkdocs"
# Modules whose public names have a page; `cone_jax.__all__` names all but the detector's.
MODULES = sorted(
    path.stem for path in (ROOT / "docs/reference").glob("*.md") if path.stem != "index"
)


class Page(NamedTuple):
    ids: set[str]
    links: list[str]  # what a reader may click on
    loads: list[str]  # what a browser fetches by itself
    text: str


class Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page(set(), [], [], "")
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.page.ids.update(filter(None, (values.get("id"), values.get("name"))))
        if tag == "a" and values.get("href"):
            self.page.links.append(values["href"])
        loaded = values.get("src") or (values.get("href") if tag == "link" else None)
        if loaded and values.get("rel") not in ("canonical", "prev", "next"):
            self.page.loads.append(loaded)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Built as `make docs` builds it, where any warning is an error."""
    if not MKDOCS.exists():
        if os.environ.get("CI") == "true":
            pytest.fail("no MkDocs on a CI machine; make .venv/docs.stamp")
        pytest.skip("no MkDocs; make .venv/docs.stamp")
    place = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    environment.pop("GITHUB_REPOSITORY", None)
    result = subprocess.run(
        [MKDOCS, "build", "--strict", "--site-dir", place],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    warnings = [line for line in result.stderr.splitlines() if not line.startswith("INFO")]
    assert result.returncode == 0, "\n".join(warnings)
    return place


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    found = {}
    for path in sorted(site.rglob("*.html")):
        reader = Reader()
        reader.feed(path.read_text(encoding="utf-8"))
        found[path] = reader.page._replace(text=" ".join(reader.words))
    return found


@pytest.mark.parametrize("name", ["hooks", "examples"])
def test_examples_of_the_sites_own_programs(name, site):
    """Where MkDocs is: in an environment of its own."""
    program = f"import doctest, sys; sys.path[:0] = ['docs/site', '.']; import {name}; "
    program += f"found = doctest.testmod({name}); sys.exit(found.failed or not found.attempted)"
    command = [MKDOCS.parent / "python", "-c", program]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_links_and_anchors_lead_somewhere(site, pages):
    assert len(pages) > 40
    for path, page in pages.items():
        if path.name == "404.html":  # written for a server's root
            continue
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            target, _, anchor = link.partition("#")
            aim = (path.parent / target).resolve() if target else path
            assert aim.is_relative_to(site), f"{path}: {link}"
            assert aim.exists(), f"{path}: {link}"
            if anchor and aim in pages and not anchor.startswith("__"):
                assert anchor in pages[aim].ids, f"{path}: {link}"


def test_nothing_is_fetched_from_elsewhere(site, pages):
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for loaded in page.loads:
            assert not re.match(r"\w+:|//", loaded), f"{path}: {loaded}"
            assert (path.parent / loaded.partition("?")[0]).exists(), f"{path}: {loaded}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:|//)", sheet.read_text(encoding="utf-8")), sheet


def test_no_markdown_is_left_over(pages):
    """Lists, tables and links that GitHub understands and Python's Markdown does not."""
    for path in pages:
        if "notebooks" in path.parts or "reference" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        for paragraph in re.findall(r"<p>(.*?)</p>", text, re.DOTALL):
            for line in paragraph.splitlines()[1:]:
                assert not re.match(r"\s*([*-] |1\. |\|)", line), f"{path.name}: {line}"
            assert "](" not in re.sub(r"<code>.*?</code>", "", paragraph), (
                f"{path.name}: {paragraph}"
            )


def public_names(module: str) -> list[str]:
    imported = importlib.import_module(f"cone_jax.{module}")
    listed = getattr(imported, "__all__", None)
    if listed is None:
        tree = ast.parse(Path(imported.__file__).read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.ClassDef)
        listed = [node.name for node in tree.body if isinstance(node, kinds)]
    return [name for name in listed if not name.startswith("_")]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module, site, pages):
    page = pages[site / "reference" / f"{module}.html"]
    missing = [name for name in public_names(module) if f"cone_jax.{module}.{name}" not in page.ids]
    assert not missing
    text = (site / "reference" / f"{module}.html").read_text(encoding="utf-8")
    assert "<blockquote>" not in text  # an example that is not shown as code


def test_every_module_of_the_package_has_a_page():
    homes = {"train": "training", "load_recipe": "config", "open_model": "prediction"}
    public = {homes.get(name, name) for name in cone_jax.__all__ if name != "__version__"}
    assert public | {"detection"} == set(MODULES)


def test_notebooks_stand_in_the_order_of_their_page(site):
    listed = (ROOT / "docs/notebooks/index.md").read_text(encoding="utf-8")
    wanted = re.findall(r"notebooks/(\w+)\.ipynb", listed)
    page = (site / "notebooks/index.html").read_text(encoding="utf-8")
    side = re.findall(r'<a href="(\w+)\.html" class="md-nav__link"', page)
    assert [name for name in side if name in wanted] == wanted


def test_search_knows_the_pages(site):
    index = (site / "search/search_index.js").read_text(encoding="utf-8")
    entries = json.loads(index.partition("=")[2])["docs"]
    assert any("explanation/method.html" in entry["location"] for entry in entries)
    assert any("sup_in" in entry["title"] for entry in entries)


def test_search_answers_from_a_disk(site):
    ask = """(() => {
        const field = document.querySelector("[data-md-component=search-query]");
        field.focus();
        field.value = "sup_in";
        field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
        return [...document.querySelectorAll(".md-search-result__link")].map((each) => each.href);
    })()"""
    found: list[str] = []
    with browser.started() as chromium:
        chromium.open(site / "index.html")
        for _ in range(100):
            found = chromium.evaluate(ask)
            if found:
                break
            time.sleep(0.1)
    assert any("reference/losses.html" in link for link in found)


def every_page(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "dark")])
def test_pages_look_right_in_a_browser(site, width, scheme):
    few = ("index", "explanation/method", "explanation/gradient", "fields")
    # On a phone every page: one wide table makes all of its text small.
    pages = [site / f"{name}.html" for name in few] if width > 600 else every_page(site)
    with browser.started() as chromium:
        chromium.look(width, scheme)
        for page in pages:
            chromium.open(page)
            chosen = chromium.evaluate("document.body.dataset.mdColorScheme")
            assert chosen == {"light": "default", "dark": "slate"}[scheme]
            wide = chromium.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{page} is {wide} pixels wide"
            raw = chromium.evaluate(
                "document.querySelectorAll('.arithmatex:not(:has(.katex))').length"
            )
            assert raw == 0, f"{page} has formulas that are not set"
        assert not chromium.complaints
        assert all(url.startswith(("file:", "data:", "blob:")) for url in chromium.requests)


# By the definition of WCAG 2.2: (lighter + 0.05) / (darker + 0.05) of relative luminances.
WEAKEST_CONTRASTS = """(() => {
    const parts = (colour) => {
        const [r, g, b, a] = colour.match(/[\\d.]+/g).map(Number);
        return [r, g, b, a ?? 1];
    };
    const over = (top, below) => below.map((v, i) => top[i] * top[3] + v * (1 - top[3]));
    const behind = (element) => {
        const layers = [];
        for (let each = element; each; each = each.parentElement)
            layers.unshift(parts(getComputedStyle(each).backgroundColor));
        return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
    };
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const luminance = (rgb) => rgb.map((v) => linear(v / 255))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const found = [];
    for (const element of document.querySelectorAll(".md-main *:not(svg *):not(option)")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        const seen = {visibilityProperty: true, opacityProperty: true};
        if (!own || !element.checkVisibility(seen)) continue;
        const paper = behind(element);
        const ink = luminance(over(parts(getComputedStyle(element).color), paper));
        const [dark, light] = [ink, luminance(paper)].sort((x, y) => x - y);
        found.push([(light + 0.05) / (dark + 0.05), element.textContent.trim().slice(0, 40)]);
    }
    return found.sort((x, y) => x[0] - y[0]).slice(0, 3);
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_background(site, scheme):
    """Material's palest comments in code have 4.4, which is the least here."""
    names = ("index", "explanation/gradient", "notebooks/first_run", "reference/losses", "fields")
    with browser.started() as chromium:
        chromium.look(1280, scheme)
        for name in names:
            chromium.open(site / f"{name}.html")
            time.sleep(0.5)  # colours fade in
            weakest = chromium.evaluate(WEAKEST_CONTRASTS)
            assert weakest[0][0] > 4.3, f"{name}: {weakest}"


def test_figures_follow_the_colours_of_the_page(site):
    ask = "getComputedStyle(document.querySelector('.cone-figure')).getPropertyValue('--f-ink')"
    with browser.started() as chromium:
        chromium.look(1280, "light")
        chromium.open(site / "index.html")
        inks = []
        for scheme in ("default", "slate"):  # whatever the system prefers
            chromium.evaluate(f"document.body.dataset.mdColorScheme = '{scheme}'")
            inks.append(chromium.evaluate(ask).strip())
    assert inks == ["#1c2127", "#e7eaee"]


@pytest.mark.parametrize(("form", "loss"), [("in", losses.sup_in), ("out", losses.sup_out)])
def test_the_playground_pulls_as_the_losses_do(site, form, loss):
    rng = np.random.default_rng(0)
    cosines, positive = rng.uniform(-1, 1, 7), np.array([1, 0, 1, 1, 0, 0, 1], bool)

    def value(u: jax.Array) -> jax.Array:
        return loss(u[None], jnp.asarray(positive)[None], temperature=0.2)[0]

    expected = -0.2 * jax.grad(value)(jnp.asarray(cosines, jnp.float32))
    with browser.started() as chromium:
        chromium.open(site / "explanation/gradient.html")
        given = f"{cosines.tolist()}, {json.dumps(positive.tolist())}, 0.2, '{form}'"
        shown = chromium.evaluate(f"coneGradient.pulls({given})")
        before = chromium.evaluate("document.querySelector('.playground tbody').textContent")
        chromium.evaluate("document.querySelector('[data-do=step]').click()")
        after = chromium.evaluate("document.querySelector('.playground tbody').textContent")
    np.testing.assert_allclose(shown, expected, atol=1e-5)
    assert before != after


def test_figures_are_those_that_their_programs_draw():
    """Text for text; numbers may differ in the last digit between machines."""
    names = sorted(path.stem for path in (ROOT / "docs/figures").glob("*.svg"))
    assert names == sorted(importlib.import_module("docs.figures.__main__").NAMES)
    number = re.compile(r"-?\d+\.?\d*")
    for name in names:
        drawn = importlib.import_module(f"docs.figures.{name}").draw()
        kept = (ROOT / f"docs/figures/{name}.svg").read_text(encoding="utf-8")
        assert number.sub("#", drawn) == number.sub("#", kept), f"{name}: python -m docs.figures"
        new, old = (np.array(number.findall(text), float) for text in (drawn, kept))
        np.testing.assert_allclose(new, old, atol=0.06, err_msg=name)


def test_versions_stand_beside_each_other(tmp_path):
    """Published twice into a repository of its own, as the workflow does it."""
    if not MKDOCS.exists():
        pytest.skip("no MkDocs; make .venv/docs.stamp")
    git = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    who = {
        f"GIT_{role}_{what}": "x@y"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    environment = {**os.environ, **git, **who}
    work = tmp_path / "work"
    (work / "docs").mkdir(parents=True)
    (work / "docs/index.md").write_text("# Page\n")
    (work / "mkdocs.yml").write_text("site_name: x\ntheme: {name: material, font: false}\n")
    (work / "scripts").mkdir()
    (work / "scripts/publish_docs.sh").symlink_to(ROOT / "scripts/publish_docs.sh")

    def run(*command: str) -> str:
        result = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    run("git", "init", "--quiet", "--initial-branch=main")
    run("git", "commit", "--quiet", "--allow-empty", "--message=first")
    (work / ".venv").symlink_to(ROOT / ".venv")
    for ref in ("refs/heads/main", "refs/tags/v0.2.0"):
        run("bash", "scripts/publish_docs.sh", ref)
    versions = json.loads(run("git", "show", "gh-pages:versions.json"))
    assert {each["version"]: each["aliases"] for each in versions} == {"dev": [], "0.2": ["latest"]}
    files = run("git", "ls-tree", "-r", "--name-only", "gh-pages").splitlines()
    assert {"dev/index.html", "0.2/index.html", "latest", "index.html"} <= set(files)
    unknown = subprocess.run(
        ["bash", ROOT / "scripts/publish_docs.sh", "refs/heads/other"],
        cwd=work, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert unknown.returncode == 2
    assert unknown.stderr.count("\n") == 1
