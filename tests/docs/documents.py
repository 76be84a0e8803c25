"""The project's documents as tests read them: their links, their headings, their commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = tuple(sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))))
# A word in capitals stands for something of the reader's own, dots for whatever is of no matter.
STANDS_FOR = {"METHOD": "cone", "NAME": "cone", "FORMAT": "safetensors"}
PROGRAM = r"(?:\w+=\S+ )*(?:python3? |make |sbatch |cone |(?:\S*/)?scripts/)"


class Link(NamedTuple):
    document: Path
    target: str


class Command(NamedTuple):
    document: Path
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}: {' '.join(self.words)}"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links(document: Path) -> Iterator[Link]:
    """Targets of all links and pictures, but those that leave the project."""
    text = re.sub(r"`[^`\n]*`", "", _without_blocks(document.read_text(encoding="utf-8")))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"\w+:", target):
            yield Link(document, target)


def anchors(document: Path) -> set[str]:
    """What stands after ``#`` in links to the headings of a document."""
    text = _without_blocks(document.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def python_blocks(document: Path) -> list[str]:
    """The contents of the blocks that are marked as Python."""
    text = document.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def file_names(document: Path) -> set[str]:
    """Paths within the project that are named in code type."""
    folders = "cone_jax|configs|docs|tests|benchmarks|examples|scripts"
    code = re.findall(r"`([^`\n]+)`", document.read_text(encoding="utf-8"))
    return {path for text in code for path in re.findall(rf"^((?:{folders})/[\w/.-]+)", text)}


def commands(document: Path) -> list[Command]:
    """Everything a reader may paste into a shell that starts something of this project."""
    text = document.read_text(encoding="utf-8")
    text = re.sub(r" *\\\n\s*", " ", text)
    fenced = re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in fenced for line in block.splitlines()]
    plain = _without_blocks(text)
    lines += [line for line in plain.splitlines() if line.startswith("    ")]
    lines += re.findall(r"`([^`\n]+)`", plain)
    wanted = [line.strip() for line in lines if re.match(PROGRAM, line.strip())]
    split = (shlex.split(line, comments=True) for line in wanted)
    return [Command(document, tuple(_without_variables(words))) for words in split]


def arguments(words: tuple[str, ...]) -> list[str]:
    """The flags of a command, with something real in the place of what stands for it."""
    kept = [word for word in words if not word.endswith("...")]
    return [
        re.sub(r"\b[A-Z]{4,}\b", lambda match: STANDS_FOR.get(match[0], match[0]), word)
        for word in kept
    ]


def _without_variables(words: list[str]) -> list[str]:
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words


def _without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
