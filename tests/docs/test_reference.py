"""Every public name says what it is, what it takes and gives, and how it is used."""

import dataclasses
import importlib
import inspect
import re
from typing import Any

from cone_jax import losses
from tests.docs.documents import ROOT

MODULES = sorted(
    path.stem for path in (ROOT / "docs/reference").glob("*.md") if path.stem != "index"
)
# The example of `leave_open`, and the page on extending, show how these are used.
SHOWN_WITH = {"config.open_fields", "objectives.Objective"}


def public(kind: Any) -> list[tuple[str, Any]]:
    found = []
    for module in MODULES:
        imported = importlib.import_module(f"cone_jax.{module}")
        own = [n for n, each in vars(imported).items() if _of(each, imported.__name__)]
        for name in getattr(imported, "__all__", own):
            value = getattr(imported, name)
            if kind(value) and not name.startswith("_"):
                found.append((f"{module}.{name}", value))
    return found


def _of(value: Any, module: str) -> bool:
    return getattr(value, "__module__", "") == module


def documented(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def section(text: str, name: str) -> str:
    match = re.search(rf"^{name}:\n((?:    .*\n?|\n(?=    ))*)", text, re.MULTILINE)
    return match[1] if match else ""


def test_each_name_begins_with_what_it_is():
    for name, thing in public(lambda each: inspect.isfunction(each) or inspect.isclass(each)):
        assert documented(thing).partition("\n")[0].strip().endswith((".", ":")), name


def test_functions_say_what_each_argument_is():
    """In a section of their own, in the text, or by the name of a function with the same ones."""
    missing = []
    for name, function in public(inspect.isfunction):
        text = documented(function)
        said = set(re.findall(r"^    (\w+): ", section(text, "Args"), re.MULTILINE))
        said |= set(re.findall(r"`(\w+)`", text)) | {"config"}  # which is always a run's
        elsewhere = re.search(r"arguments are those of|as for `\w+`", text)
        arguments = inspect.signature(function).parameters
        missing += [f"{name}: {each}" for each in arguments if not (each in said or elsewhere)]
    assert not missing


def test_functions_say_what_they_return():
    missing = []
    for name, function in public(inspect.isfunction):
        # The page of losses says once for all that `Rows` are one value per row of a batch.
        obvious = inspect.signature(function).return_annotation in (None, bool, losses.Rows)
        text = documented(function)
        # A first line such as "The shapes of ..." says what comes back.
        said = section(text, "Returns") or section(text, "Yields") or re.match("(The|An?) ", text)
        if not (obvious or said):
            missing.append(name)
    assert not missing


def test_each_name_has_an_example():
    """One that runs, or a few lines of code where running it takes a network or a run."""
    lacking = set()
    for name, thing in public(lambda each: inspect.isfunction(each) or inspect.isclass(each)):
        if not re.search(r"^(>>> |    (import |[\w, ()]+ = ))", documented(thing), re.MULTILINE):
            lacking.add(name)
    assert lacking == SHOWN_WITH


def test_fields_of_public_classes_say_what_they_hold():
    """Beside the field, above it, or for a section of the config in its declaration."""
    missing = []
    for name, kind in public(inspect.isclass):
        source = inspect.getsource(kind)
        fields = getattr(kind, "_fields", None) or [
            each.name
            for each in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ())
        ]
        for field in fields:
            line = re.search(rf"^(    #.*\n)?    {field}: .*$", source, re.MULTILINE)
            if line and not (line[1] or "  # " in line[0]):
                missing.append(f"{name}.{field}")
    assert not missing
