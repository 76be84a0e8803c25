"""The built wheel in an environment of its own, used far from the clone."""

import json
import os
import shutil
import site
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from cone_jax import modes
from tests import plugin_distribution, tiny_run

ROOT = Path(__file__).parent.parent
# What a wheel is built from; in the clone itself building would leave files behind.
SOURCES = ("cone_jax", "configs", "docs/results", "pyproject.toml", "README.md", "LICENSE")
NEEDED_SETUPTOOLS = 77
TINY = (*tiny_run.FLAGS, "--config.steps=2", "--config.evaluation.every_epochs=0.0")


def _isolation() -> tuple[str, ...]:
    """Build with the setuptools that is there, if it will do; pip fetches one otherwise."""
    try:
        found = int(metadata.version("setuptools").partition(".")[0])
    except metadata.PackageNotFoundError:
        return ()
    return ("--no-build-isolation",) if found >= NEEDED_SETUPTOOLS else ()


class Installation:
    """An environment with the wheel and a plugin, beside the libraries of the tests."""

    def __init__(self, root: Path) -> None:
        self.root, self.place = root, root / "elsewhere"
        self.place.mkdir()
        clone = root / "clone"
        for name in SOURCES:
            path = ROOT / name
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, clone / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(path, clone / name)
        plugin = plugin_distribution.write(root / "plugin")
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
        wheels = str(root / "wheels")
        self.call(*pip, "wheel", "--no-deps", *_isolation(), "-w", wheels, str(clone), str(plugin))
        environment = root / "environment"
        self.call(sys.executable, "-m", "venv", "--without-pip", str(environment))
        (self.packages,) = environment.glob("lib/python*/site-packages")
        (self.packages / "libraries.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        self.python, self.cone = (str(environment / "bin" / name) for name in ("python", "cone"))
        built = sorted(str(path) for path in Path(wheels).glob("*.whl"))
        assert len(built) == 2
        self.call(*pip, f"--python={self.python}", "install", "--no-deps", "--no-index", *built)

    def call(self, *command: str, code: int = 0) -> str:
        """What a command prints, in a directory that has nothing of the project."""
        variables = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            command, cwd=self.place, env=variables, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installation:
    return Installation(tmp_path_factory.mktemp("wheel"))


def test_the_package_is_the_installed_one_and_light(installed):
    program = (
        "import sys, cone_jax; print(cone_jax.__file__)\n"
        "assert not {'jax', 'flax', 'numpy'} & set(sys.modules)\n"
        "assert {'train', 'load_recipe', 'open_model', 'losses'} <= set(dir(cone_jax))"
    )
    printed = installed.call(installed.python, "-W", "error", "-c", program)
    assert printed.strip() == str(installed.packages / "cone_jax/__init__.py")


def test_the_wheel_holds_what_is_no_code_and_only_the_package(installed):
    top = {path.name.partition("-")[0] for path in installed.packages.iterdir()}
    own = {"cone_jax", "spotted_parts", "spotted_parts.py", "libraries.pth"}
    assert top - {"__pycache__"} == own
    package = installed.packages / "cone_jax"
    for name in ("py.typed", "analysis/paper.csv", "analysis/page.css"):
        assert (package / name).read_bytes() == (ROOT / "cone_jax" / name).read_bytes()
    assert not [path for path in package.rglob("*") if path.is_symlink()]
    recipes = {path.relative_to(ROOT / "configs") for path in ROOT.glob("configs/**/*.py")}
    assert {path.relative_to(package / "recipes") for path in package.glob("recipes/**/*.py")} == (
        recipes
    )


def test_help_says_the_command_that_was_used(installed):
    assert "\n  cone evaluate --workdir=" in installed.call(installed.cone, "--help")
    module = installed.call(installed.python, "-m", "cone_jax", "--help")
    assert "\n  python -m cone_jax evaluate --workdir=" in module
    for name in modes.MODES:
        assert f"\n  {name} " in module


def test_train_and_evaluate_from_any_directory(installed):
    printed = installed.call(
        installed.cone, "--config=digits:cross_entropy", "--workdir=first", *TINY
    )
    assert "cone --mode=evaluate --workdir=first" in printed
    assert "python" not in printed
    scored = installed.call(installed.python, "-m", "cone_jax", "evaluate", "--workdir=first")
    assert "360" in scored
    assert (installed.place / "first/report.html").exists()
    refused = installed.call(installed.cone, "evalute", "--workdir=first", code=2)
    assert refused.startswith("error: mode ('evalute') is unknown; did you mean 'evaluate'?")


def test_a_plugin_is_known_to_the_command_its_data_workers_and_a_sweeps_processes(installed):
    flags = plugin_distribution.FLAGS
    workers = "--config.data.workers=1"
    printed = installed.call(installed.cone, "train", "--workdir=spots", workers, *flags)
    assert "worst/confidence" in printed
    (installed.place / "factors.py").write_text(plugin_distribution.SWEEP)
    sweep = ("--sweep=factors", "--workdir=table", *flags[1:])
    installed.call(installed.cone, "sweep", *sweep)
    result = json.loads((installed.place / "table/1.0/result.json").read_text())
    assert result["test/top1"] == 1.0
    assert 0.5 <= result["worst/confidence"] <= 1.0
