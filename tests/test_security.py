"""What the code never does with input, and what its dependencies are."""

import ast
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
SOURCES = [
    ROOT / "main.py",
    *(
        path
        for name in ("cone_jax", "configs", "benchmarks")
        for path in (ROOT / name).rglob("*.py")
    ),
]
# Calls that run what they read, or hand a string to a shell.
FORBIDDEN = {
    "eval",
    "exec",
    "compile",
    "os.system",
    "os.popen",
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "marshal.loads",
    "shelve.open",
    "yaml.load",
    "yaml.unsafe_load",
    "subprocess.getoutput",
}
# Calls that are safe with one argument only.
REQUIRED = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}


def dangerous_calls(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        constants = {
            keyword.arg: keyword.value.value
            for keyword in node.keywords
            if isinstance(keyword.value, ast.Constant)
        }
        if name in FORBIDDEN or constants.get("shell") is True:
            found.append(f"line {node.lineno}: {name}")
        if name in REQUIRED:
            argument, value = REQUIRED[name]
            if constants.get(argument) is not value:
                found.append(f"line {node.lineno}: {name} without {argument}={value}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "pickle.loads(b'')",
        "subprocess.run('ls', shell=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
    ],
)
def test_the_check_sees_what_it_is_for(source):
    assert dangerous_calls(source)


def test_nothing_runs_what_it_reads():
    found = {
        str(path.relative_to(ROOT)): calls
        for path in SOURCES
        if (calls := dangerous_calls(path.read_text()))
    }
    assert not found
    assert len(SOURCES) > 150


def pins(name: str) -> list[tuple[str, str]]:
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [
        tuple(part.strip() for part in line.split(";")[0].split("=="))
        for line in lines
        if line and not line.startswith("-")
    ]


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-buckets.txt", "requirements-dev.txt"]
)
def test_requirements_are_pinned_once_and_are_what_is_installed(name):
    names = [package.lower().replace("_", "-") for package, _ in pins(name)]
    assert len(names) == len(set(names))
    installed = {package: metadata.version(package.split("[")[0]) for package, _ in pins(name)}
    # A local part such as +cpu says how a version was built.
    assert {package: version.split("+")[0] for package, version in installed.items()} == dict(
        pins(name)
    )


def test_everything_that_comes_along_is_pinned_too_and_fits():
    """What the pinned packages need is pinned itself, in a version they accept."""
    pinned = {
        canonicalize_name(package.split("[")[0]): version
        for package, version in (*pins("requirements.txt"), *pins("requirements-buckets.txt"))
    }
    wrong = set()
    for package in pinned:
        for text in metadata.requires(package) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                version = pinned.get(canonicalize_name(needed.name))
                if version is None or not needed.specifier.contains(version, prereleases=True):
                    wrong.add(f"{package} needs {needed}, pinned is {version}")
    # setuptools, which a freeze leaves out
    assert {line for line in wrong if " needs setuptools" not in line} == set()


def test_all_pins_install_on_the_oldest_python_that_is_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=")
    names = ("requirements.txt", "requirements-buckets.txt", "requirements-dev.txt")
    for package, _ in (pin for name in names for pin in pins(name)):
        accepted = metadata.metadata(package.split("[")[0])["Requires-Python"] or ""
        assert SpecifierSet(accepted).contains(f"{oldest}.99"), package


def test_make_audit_fails_where_it_audits_nothing():
    """Without --strict, pip-audit skips what it cannot look up, and finds no vulnerabilities."""
    recipe = (ROOT / "Makefile").read_text().split("\naudit:")[1].split("\n\n")[0]
    assert "pip-audit --strict" in recipe
    assert "requirements.txt" in recipe
    assert "requirements-buckets.txt" in recipe
    assert ("pip_audit", "2.10.1") in pins("requirements-audit.txt")
