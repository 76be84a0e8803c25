"""The shape of the tree: which module may know which, how long things are, what they are called."""

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cone_jax"
TREES = ("cone_jax", "configs", "benchmarks", "examples", "tests")
# Names that fit anything say nothing.
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc", "core", "base", "tools", "shared"}
# What drops into any loop: arrays, and nothing that has modules, data or files.
ARRAY_LIBRARIES = ("jax", "jaxtyping", "optax", "flax.struct", "typing", "collections.abc", "math")


def sources(*trees: str) -> Iterator[Path]:
    yield from (path for tree in trees for path in sorted((ROOT / tree).rglob("*.py")))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sources("cone_jax")}


def imports(path: Path) -> set[str]:
    """Modules, or names of modules, that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def known_modules(path: Path) -> set[str]:
    """The modules of the package that a file imports."""
    found = imports(path)
    return {name if name in MODULES else name.rpartition(".")[0] for name in found} & set(MODULES)


def part(module: str) -> str:
    """The package or file directly below `cone_jax` that a module belongs to."""
    return module.split(".")[1] if "." in module else ""


def layers() -> dict[str, tuple[set[str], set[str]]]:
    """The table of docs/design.md: layer -> its parts, and the layers it knows."""
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    table = text.partition("| layer | parts | knows |")[2]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:] if line.startswith("|")]
    return {
        layer.strip(): (
            set(re.findall(r"`(\w+)`", parts)),
            set(filter(None, re.split(r"[,\s]+", knows.replace("–", "")))),
        )
        for layer, parts, knows in rows
    }


def test_layers_know_what_the_design_says_and_nothing_else():
    table = layers()
    parts = {name for names, _ in table.values() for name in names}
    assert parts == {part(module) for module in MODULES} - {""}
    layer_of = {name: layer for layer, (names, _) in table.items() for name in names}
    actual: dict[str, set[str]] = {layer: set() for layer in table}
    for module, path in MODULES.items():
        if part(module):
            known = {layer_of[part(other)] for other in known_modules(path) if part(other)}
            actual[layer_of[part(module)]] |= known
    for layer, (_, stated) in table.items():
        assert actual[layer] - {layer} == stated, layer


def test_a_layer_knows_only_layers_above_it_in_the_table():
    table = layers()
    order = list(table)
    for layer, (_, known) in table.items():
        assert all(order.index(other) < order.index(layer) for other in known), layer


def test_no_import_goes_in_a_circle():
    """Neither between modules nor between the packages that they are in."""
    # What the root names, it imports only when asked.
    modules = {name: known_modules(path) - {name} for name, path in MODULES.items() if part(name)}
    list(graphlib.TopologicalSorter(modules).static_order())
    parts: dict[str, set[str]] = {}
    for name, known in modules.items():
        parts.setdefault(part(name), set()).update(map(part, known))
    graph = {name: known - {name, ""} for name, known in parts.items() if name}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_the_method_needs_nothing_but_arrays():
    for name in ("losses", "momentum", "memory_bank"):
        for module, path in MODULES.items():
            if part(module) == name:
                allowed = (*ARRAY_LIBRARIES, "cone_jax.losses", "cone_jax.memory_bank")
                above = {m for m in imports(path) if not f"{m}.".startswith(_dotted(allowed))}
                assert not above, module


def test_objectives_know_of_networks_only_what_comes_out():
    for module, path in MODULES.items():
        if part(module) == "objectives":
            found = imports(path)
            of_models = {name for name in found if name.startswith("cone_jax.models")}
            assert of_models <= {"cone_jax.models.EncoderOutput"}, module
            assert not {name for name in found if name.startswith("flax.linen")}, module


def test_nothing_imports_the_entry_point_or_what_is_built_on_the_package():
    above = _dotted(("main", "configs", "cone_jax.recipes", "benchmarks", "examples", "tests"))
    for path in sources("cone_jax"):
        assert not {name for name in imports(path) if f"{name}.".startswith(above)}, path


def test_what_writes_files_computes_nothing_on_a_device():
    for module, path in MODULES.items():
        found = {f"{name}." for name in imports(path)}
        if "storage.replacing(" in path.read_text() or "storage.AppendedFile" in path.read_text():
            assert not {name for name in found if name.startswith("jax.")}, module


def test_few_modules_stand_beside_the_packages():
    assert len(list(PACKAGE.glob("*.py"))) <= 13


def test_a_small_file_has_several_importers_or_joins_its_neighbour():
    importers: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, path in MODULES.items():
        for known in known_modules(path):
            importers[known].add(module)
    for module, path in MODULES.items():
        exempt = part(module) in ("modes", "objectives") or path.name == "__init__.py"
        if not exempt and len(path.read_text(encoding="utf-8").splitlines()) < 40:
            assert len(importers[module]) != 1, f"{module} is for {importers[module]} alone"


def test_files_have_at_most_400_lines():
    for path in (*sources(*TREES), ROOT / "main.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path


def test_functions_have_at_most_60_lines():
    for path in (*sources(*TREES), ROOT / "main.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                assert lines <= 60, f"{path}: {node.name} has {lines} lines"


def test_no_file_has_a_name_that_fits_anything():
    for path in sources(*TREES):
        names = {path.stem, *path.relative_to(ROOT).parts[:-1]}
        assert not {word for name in names for word in name.split("_")} & VAGUE, path


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*/**/__init__.py")), ids=module_name)
def test_init_files_export_public_names_and_nothing_else(path):
    docstring, *rest = ast.parse(path.read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr), "says what the package is for"
    if not rest:
        return
    *statements, exported = rest
    assert all(isinstance(each, ast.ImportFrom) for each in statements)
    names = [alias.asname or alias.name for each in statements for alias in each.names]
    assert isinstance(exported, ast.Assign)
    assert ast.unparse(exported.targets[0]) == "__all__"
    assert sorted(ast.literal_eval(exported.value)) == sorted(names)
    assert not [name for name in names if name.startswith("_")]
    own = _dotted((module_name(path),))
    assert all(f"{each.module}.".startswith(own) for each in statements)


def _dotted(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)
