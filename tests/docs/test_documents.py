"""Links lead somewhere, named files exist, and commands are ones that the programs understand."""

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys

import pytest

from cone_jax import interop, spec_strings
from cone_jax.evaluation import registry
from cone_jax.modes import MODES, command_line
from tests.docs import documents
from tests.docs.documents import DOCUMENTS, ROOT, Command

COMMANDS = [command for document in DOCUMENTS for command in documents.commands(document)]
CONE = r"(cone|python -m cone_jax)(?![.\w])"
HELP = {name: mode.help for name, mode in MODES.items()}

# Gives each program its own flags, and lets it say whether it knows them. Nothing is run: a
# program ends where it would read its flags.
READ_FLAGS = """
import argparse, json, os, runpy, sys

class Found(Exception):
    pass

def found(parser, *_):
    raise Found(parser)

real, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, found
wrong, parsers = [], {}
for program, arguments in json.load(sys.stdin):
    if program not in parsers:
        run = runpy.run_path if program.endswith(".py") else runpy.run_module
        before = list(sys.path)
        sys.path.insert(0, os.path.dirname(program))
        try:
            run(program, run_name="__main__")
        except Found as answer:
            parsers[program] = answer.args[0]
        sys.path[:] = before
    parsers[program].allow_abbrev = False
    parsers[program].error = lambda message: wrong.append(f"{program} {arguments}: {message}")
    real(parsers[program], arguments)
sys.exit("\\n".join(wrong) or 0)
"""


def programs(kind: str) -> list[Command]:
    return [command for command in COMMANDS if re.match(kind, " ".join(command.words))]


def test_there_are_commands_to_check():
    assert len(programs("python main.py")) > 30
    assert len(programs("python benchmarks/")) > 5
    assert len(programs("make")) > 2


@pytest.mark.parametrize("document", DOCUMENTS, ids=documents.name)
def test_links_lead_somewhere(document):
    for link in documents.links(document):
        path, _, anchor = link.target.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link.target
        assert target.is_relative_to(ROOT), link.target
        if anchor:
            assert anchor in documents.anchors(target), link.target


@pytest.mark.parametrize("document", DOCUMENTS, ids=documents.name)
def test_named_files_exist(document):
    missing = [path for path in documents.file_names(document) if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("command", programs(r"python main\.py|.*scripts/"), ids=str)
def test_main_understands_its_commands(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    program = next(i for i, word in enumerate(command.words) if word.endswith((".py", ".sh")))
    assert (ROOT / command.words[program]).is_file()
    flags = command.words[program + 1 :]
    if command.words[program].endswith("tpu_pod.sh"):
        flags = without_verb(command.words[program], flags)
    understand(flags)


def without_verb(script: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of main.py after a command of a script that has several."""
    if words in ((), ("--help",)):
        return ("--help",)
    usage = subprocess.run([ROOT / script, "--help"], capture_output=True, text=True).stdout
    verb, *flags = words[1:] if words[0] == "--dry-run" else words
    entry = re.search(rf"^  {verb}( FLAGS)? ", usage, re.MULTILINE)
    assert entry, f"{verb} is not a command of {script}"
    assert bool(flags) == bool(entry[1])
    return tuple(flags) or ("--help",)


# What extending.md names has to be written first; its own tests do so.
@pytest.mark.parametrize(
    "command",
    [each for each in programs(CONE) if each.document.name != "extending.md"],
    ids=str,
)
def test_the_command_cone_is_understood_anywhere(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    understand(command.words[1:] if command.words[0] == "cone" else command.words[3:])


def understand(flags: tuple[str, ...]) -> None:
    words = documents.arguments(flags)
    if "--help" in words:
        return
    given = command_line.parse(words, HELP)
    assert given.flags["format"] in interop.FORMATS
    if given.flags["evaluators"]:
        registry.parse(spec_strings.separate(given.flags["evaluators"]))


def test_other_programs_understand_their_flags():
    asked = []
    for command in programs(
        r"python (benchmarks/|examples/|-m (?!venv|pip|pytest|cone_jax\b(?!\.)))"
    ):
        words = documents.arguments(command.words)[1:]
        program, *flags = words[1:] if words[0] == "-m" else words
        found = (
            (ROOT / program).is_file()
            if program.endswith(".py")
            else importlib.util.find_spec(program)
        )
        assert found, command
        asked.append((program, flags))
    result = subprocess.run(
        [sys.executable, "-c", READ_FLAGS],
        cwd=ROOT,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def test_make_has_the_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in programs("make"):
        words = [word for word in command.words[1:] if "=" not in word]
        assert set(words) <= targets, command


def test_the_page_of_fields_is_as_the_fields_are_declared():
    listed = subprocess.run(
        [sys.executable, "scripts/list_fields.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert listed.stdout == (ROOT / "docs/fields.md").read_text(), "run scripts/list_fields.py"
    rows = [line.split(" | ") for line in listed.stdout.splitlines() if line.startswith("| `")]
    clipped = [row[0] for row in rows if row[-1].startswith("of ")]
    assert not clipped, "say what the field is: weight of L_ce, not: of L_ce"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_examples_import_from_the_package_is_there(document):
    blocks = documents.python_blocks(document)
    for block in (block for block in blocks if ">>>" not in block):  # those run as doctests
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cone_jax"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")


def test_lines_have_at_most_120_columns():
    """But for tables, commands and lines with nothing but a link."""
    long = []
    for document in DOCUMENTS:
        if document.parent.name == "results":  # written by the programs of the studies
            continue
        fenced = False
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            exempt = fenced or line.lstrip().startswith("|") or line.startswith("    ")
            if len(line) > 120 and not exempt and not re.fullmatch(r"[\[!]*\[.*\]\(.*\)\W*", line):
                long.append(f"{documents.name(document)}:{number}")
    assert not long
