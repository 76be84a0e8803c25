"""What decides the program of a recipe's training step, as a short mark: its config and its code.

The code is the training step's module and all that it imports, without comments, docstrings and
descriptions of fields. Of the parts that a registry knows by name (networks, objectives) only the
recipe's own count, with what they import: an edit of DeiT leaves a ResNet's mark as it was.

Equal marks promise equal programs. Different ones promise nothing, since much of a config and of
the code never reaches a program: then the traced program itself has to be compared.
"""

import ast
import hashlib
import inspect
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cone_jax.models.registry import BACKBONES
from cone_jax.objectives.objective import OBJECTIVES
from cone_jax.spec_strings import Registry

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "cone_jax"
# The step, and what reads the compiler's answer.
START = ("cone_jax.training.train_step", "cone_jax.compilation.program_text")
# Forms that no accelerator's program has, and what is written for people.
ELSEWHERE = ("cone_jax.models.cpu", "cone_jax.console")
# Sections of a config that begin after, beside or around a training step.
BESIDE = ("evaluation", "checkpoint", "linear_stage", "transfer", "derive", "budget", "log_every")
BESIDE += ("profile_steps", "wandb_project", "init_from", "init_strict", "seed")


def mark(config: ConfigDict) -> str:
    """Of everything that can decide the program of this config's training step."""
    digest = hashlib.sha256(json.dumps(settings(config), sort_keys=True).encode())
    for module in sources(config):
        digest.update(f"\n{module}\n{code(module)}".encode())
    return digest.hexdigest()[:12]


def settings(config: ConfigDict) -> dict[str, Any]:
    """The config without what no training step depends on."""
    kept = {name: value for name, value in _plain(config).items() if name not in BESIDE}
    chosen = config.objective.name
    kept["objective"] = {"name": chosen, chosen: kept["objective"].get(chosen)}
    return kept


def _plain(config: ConfigDict) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(config.to_json_best_effort())
    return plain


def sources(config: ConfigDict) -> list[str]:
    """The modules that the training step is made of, in order of their names."""
    chosen = ((BACKBONES, config.model.name), (OBJECTIVES, config.objective.name))
    own = _with_neighbours([_module(registry, name) for registry, name in chosen])
    others = {_module(registry, name) for registry, _ in chosen for name in registry} - own
    return sorted(_reached([*START, *own], lambda module: module not in others))


def _with_neighbours(modules: list[str]) -> set[str]:
    """With what they are built of in their own package, as RegNets are of a ResNet's block."""
    packages = {module.rpartition(".")[0] for module in modules}
    return _reached(modules, lambda module: module.rpartition(".")[0] in packages)


def _reached(start: list[str], counts: Callable[[str], bool]) -> set[str]:
    """All that is imported from these on, through modules that count."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        module = waiting.pop()
        if module not in found and counts(module) and not module.startswith(ELSEWHERE):
            found.add(module)
            waiting += imports(module)
    return found


def _module(registry: Registry[Any], name: str) -> str:
    return inspect.unwrap(registry[name]).__module__


@cache
def imports(module: str) -> tuple[str, ...]:
    """The package's modules that a module names in its imports, wherever they stand in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(_file(module).read_text())):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = [f"{node.module}.{each.name}" for each in node.names]
            # A package that a module is taken from is not what is imported.
            found += [name if _exists(name) else node.module for name in whole]
    return tuple(name for name in found if name.startswith(f"{PACKAGE}.") and _exists(name))


@cache
def code(module: str) -> str:
    """A module's code, without comments, docstrings and what `settings.field` says of a field."""
    tree = ast.parse(_file(module).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            body = node.body
            if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
                node.body = body[1:] or [ast.Pass()]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
            node.args = node.args[:1]
    return ast.unparse(tree)


def _file(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _exists(module: str) -> bool:
    return _file(module).is_file()
