"""What MkDocs does to the pages beside rendering them.

The pages are written for GitHub, too, where they are read in the repository. Here they become a
site that stands alone. Links to source files lead to the repository if its address is known, and
are plain text otherwise. Drawings are put into the page, so that they follow its colours. Diagrams
are drawn without a program from elsewhere. Notebooks, the changelog and the guide for contributors
are pages like the others.
"""

import html
import json
import os
import posixpath
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from docs.figures import flowchart  # noqa: E402

# Files of the root that are pages of the site.
FROM_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
FENCE = re.compile(r"^( *)```")
ITEM = re.compile(r"^(\d+\. |[*-] )")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = [_expanded(entry) for entry in config.nav]
    config.repo_url = repository()
    if os.environ.get("MIKE_DOCS_VERSION"):  # published: the reader may choose another version
        config.extra["version"] = {"provider": "mike"}
    return config


def repository() -> str:
    """The address of the repository: the project's own, that of the CI, or nothing."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    name = os.environ.get("GITHUB_REPOSITORY")
    return urls.get("Repository") or (f"https://github.com/{name}" if name else "")


def _expanded(entry: Any) -> Any:
    """The table of contents with each folder replaced by its pages."""
    if isinstance(entry, dict):
        return {title: _expanded(value) for title, value in entry.items()}
    if isinstance(entry, list):
        return [_expanded(value) for value in entry]
    if entry == "notebooks/":
        return ["notebooks/index.md", *(f"notebooks/{path.stem}.md" for path in notebooks())]
    if entry.endswith("/"):
        return [entry + path.name for path in sorted((ROOT / "docs" / entry).glob("*.md"))]
    return entry


def notebooks() -> list[Path]:
    """In the order of the page that lists them."""
    listed = (ROOT / "docs/notebooks/index.md").read_text(encoding="utf-8")
    return sorted((ROOT / "notebooks").glob("*.ipynb"), key=lambda path: listed.find(path.name))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in FROM_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\((?!\w+:|#|docs/)", "](../", text).replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    for path in notebooks():
        files.append(
            File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path))
        )
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
    return files


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its texts and its code, without badges, which are from elsewhere."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            parts.append(f"```python\n{source}\n```")
        else:
            parts.append(re.sub(r"^\[!\[.*\n?", "", source, flags=re.MULTILINE))
    title, *rest = "\n\n".join(parts).split("\n", 1)
    links = f"[Download the notebook]({path.name}){{ .md-button }}"
    if repository().startswith("https://github.com/"):
        name = repository().removeprefix("https://github.com/")
        colab = f"https://colab.research.google.com/github/{name}/blob/main/notebooks/{path.name}"
        links += f" [Open in Colab]({colab}){{ .md-button }}"
    return "\n".join([title, "", links, "", *rest])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = re.sub(r"^<details>", '<details markdown="1">', markdown, flags=re.MULTILINE)
    markdown = re.sub(r"^```mermaid\n(.*?)^```\n", _diagram, markdown, flags=re.M | re.S)
    markdown = markdown.replace("][:", "]\\[:")  # name[/config][:version] is not a link
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        return _link(match, folder)

    markdown = re.sub(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)", link, markdown)
    return "\n".join(indented(markdown.split("\n")))


def _diagram(match: re.Match[str]) -> str:
    return f'<div class="diagram">{flowchart.draw(match[1])}</div>\n'


def _link(match: re.Match[str], folder: str) -> str:
    """A link that leaves its folder: within the site, to the repository, or not at all."""
    text, target = match.groups()
    path, _, anchor = target.partition("#")
    place = posixpath.normpath(posixpath.join("docs", folder, path))
    if place.startswith("docs/"):
        return match[0]
    suffix = f"#{anchor}" if anchor else ""
    up = "../" * len(Path(folder).parts)
    if place in FROM_ROOT:
        return f"[{text}]({up}{FROM_ROOT[place]}{suffix})"
    if re.fullmatch(r"notebooks/\w+\.ipynb", place):
        return f"[{text}]({up}{place.removesuffix('ipynb')}md)"
    if not repository():
        return text
    kind = "tree" if (ROOT / place).is_dir() else "blob"
    return f"[{text}]({repository()}/{kind}/main/{place}{suffix})"


def indented(lines: list[str]) -> list[str]:
    """Lines that belong to an item of a list, four spaces in as Python's Markdown wants them.

    On GitHub they stand below the item's first letter.

    >>> indented(["1. One", "   two", "", "   | a |", "Three", "   four"])
    ['1. One', '    two', '', '    | a |', 'Three', '   four']
    >>> indented(["* One", "  ```", "  code", "  ```", "```", "* code", "```"])
    ['* One', '    ```', '    code', '    ```', '```', '* code', '```']
    """
    found, width, inside = [], 0, ""
    for line in lines:
        fence = FENCE.match(line)
        if not inside:
            item = ITEM.match(line)
            if item:
                width = len(item[1])
            elif line and not line.startswith(" " * (width or 1)):
                width = 0
        moved = " " * 4 + line[width:] if width and line.startswith(" " * width) else line
        found.append(moved if not (inside and not width) else line)
        if fence:
            inside = "" if inside else "```"
    return found


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Drawings of the project as a part of the page."""

    def drawing(match: re.Match[str]) -> str:
        alt = re.search(r'alt="([^"]*)"', match[0])
        path = ROOT / "docs/figures" / match[1]
        svg = path.read_text(encoding="utf-8").partition("?>")[2].strip()
        label = html.escape(html.unescape(alt[1])) if alt else ""
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        return f'<span class="figure">{svg}</span>'

    return re.sub(r'<img [^>]*src="[^"]*figures/(\w+\.svg)"[^>]*>', drawing, content)
