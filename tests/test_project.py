"""Facts about the project as a whole."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent


def test_nothing_imports_tensorflow_or_pytorch():
    """Every module of the package and the entry point, in a process of their own."""
    program = """
import importlib, pkgutil, sys
import cone_jax, main
for module in pkgutil.walk_packages(cone_jax.__path__, "cone_jax."):
    importlib.import_module(module.name)
loaded = [name for name in sys.modules if name.split(".")[0] in ("tensorflow", "torch")]
sys.exit(f"imported: {loaded[:3]}" if loaded else 0)
"""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_tensorflow_is_in_no_requirements_file():
    for path in ROOT.glob("requirements*.txt"):
        names = {line.split("==")[0].strip().lower() for line in path.read_text().splitlines()}
        assert not {"tensorflow", "tensorflow-cpu", "tf-nightly"} & names
        if path.name == "requirements.txt":
            assert "torch" not in names


def test_requirements_are_exact():
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        assert not line or "==" in line, line


def test_what_the_package_imports_it_requires():
    """But for what some formats or Weights & Biases need, who say so where it is missing."""
    optional = {"torch", "pyarrow", "wandb"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[^\w.-]", each)[0] for each in project["dependencies"]}
    required = {name.lower().replace("_", "-") for name in required}
    distributions = metadata.packages_distributions()
    for path in (ROOT / "cone_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            tops = {name.split(".")[0] for name in names} - sys.stdlib_module_names - optional
            for top in tops - {"cone_jax"}:
                known = {name.lower().replace("_", "-") for name in distributions[top]}
                assert known & required, f"{path} imports {top}"


def test_stablehlo_is_written_with_what_requirements_install():
    """jax.export needs a package that JAX does not require. Here only what is pinned is found."""
    program = """
import sys
from importlib import metadata

pinned = set(sys.argv[1].split(","))
owners = {
    module: {name.lower().replace("_", "-") for name in names}
    for module, names in metadata.packages_distributions().items()
}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if owners.get(name.partition(".")[0], pinned).isdisjoint(pinned):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import jax
from jax import export
assert export.export(jax.jit(lambda x: x + 1))(1.0).serialize()
"""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    names = [line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line]
    command = [sys.executable, "-c", program, ",".join(names)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_one_version_everywhere():
    import cone_jax

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "cone_jax.__version__"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == cone_jax.__version__
    assert f"## {cone_jax.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_hooks_before_a_commit_are_those_of_lint():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    recipe = (
        (ROOT / "Makefile").read_text().replace("$(BIN)", "$(VENV)/bin").replace("$(VENV)", ".venv")
    )
    for hook in hooks[0]["hooks"]:
        assert f"\t{hook['entry']}" in recipe


@pytest.mark.parametrize(
    "name",
    [
        *(f"losses.{name}" for name in ("cross_entropy", "sup_in", "sup_out", "soft_labels")),
        *(f"losses.{name}" for name in ("distributional_consistency", "normalise")),
        "losses.positive_gradient_coefficients",
        *(f"memory_bank.{name}" for name in ("init", "enqueue", "neighbours", "soft_labels")),
        "momentum.update",
        "momentum.cosine_to_one",
        "models.create",
        "models.names",
        "objectives.create",
        "training.init_state",
        "config.load_recipe",
        "config.validate",
        "interop.export",
        "prediction.Predictor",
        "prediction.find_images",
        *(f"sweeps.{name}" for name in ("base_config", "grid", "load_sweep")),
        *(f"detection.{name}" for name in ("iou", "multilevel_roi_align", "nms", "roi_align")),
    ],
)
def test_functions_for_loops_of_ones_own_have_an_example(name):
    """pytest runs the examples of the package, so they are true."""
    module, _, function = name.partition(".")
    public = getattr(importlib.import_module(f"cone_jax.{module}"), function)
    assert ">>> " in (public.__doc__ or "")


def test_every_module_says_what_it_is_for():
    import cone_jax

    for module in pkgutil.walk_packages(cone_jax.__path__, "cone_jax."):
        assert importlib.import_module(module.name).__doc__, module.name
