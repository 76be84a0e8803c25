"""``import cone_jax``: light, and complete when asked."""

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cone_jax

ROOT = Path(__file__).parent.parent
HEAVY = ("jax", "flax", "numpy", "ml_collections", "rich", "absl")


def in_a_fresh_process(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_nothing_of_it_and_no_library():
    program = (
        "import json, sys, time\n"
        "began = time.perf_counter()\n"
        "import cone_jax\n"
        "assert 'train' in dir(cone_jax)\n"
        "seconds = time.perf_counter() - began\n"
        "json.dump([seconds, list(sys.modules)], sys.stdout)"
    )
    seconds, modules = json.loads(in_a_fresh_process(program))
    assert [name for name in modules if name.startswith("cone_jax")] == ["cone_jax"]
    assert not set(HEAVY) & {name.partition(".")[0] for name in modules}
    assert seconds < 0.5  # milliseconds on an idle machine


def test_jax_can_be_set_up_after_the_import():
    program = (
        "import sys, cone_jax\n"
        "cone_jax.runtime.set_up()\n"
        "assert 'jax' not in sys.modules\n"
        "cone_jax.losses\n"
        "assert 'jax' in sys.modules"
    )
    in_a_fresh_process(program)


def test_every_public_name_is_there():
    listed = dir(cone_jax)
    for name in cone_jax.__all__:
        assert name in listed
        value = getattr(cone_jax, name)
        if inspect.ismodule(value):
            assert value.__name__ == f"cone_jax.{name}"
    assert cone_jax.train is cone_jax.training.train
    assert cone_jax.load_recipe is cone_jax.config.load_recipe
    assert cone_jax.open_model is cone_jax.prediction.open_model


def test_every_module_of_the_reference_is_a_name_of_the_package():
    index = (ROOT / "docs/reference/index.md").read_text()
    documented = re.findall(r"^\| \[`(\w+)`\]", index, re.MULTILINE)
    assert {"losses", "detection"} <= set(documented) <= set(cone_jax.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'cone_jax' has no attribute 'tran'"):
        cone_jax.tran  # noqa: B018


def test_type_checkers_see_the_same_names():
    """What stands below TYPE_CHECKING is what `__getattr__` gives."""
    tree = ast.parse((ROOT / "cone_jax/__init__.py").read_text())
    (seen,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {
        alias.name: node.module
        for node in seen.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted([*names, "__version__"]) == cone_jax.__all__
    for name, module in names.items():
        home = sys.modules[module]
        assert getattr(cone_jax, name) is getattr(home, name)
