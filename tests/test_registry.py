"""Registries: what this process adds, what installed distributions add, and what goes wrong."""

import sys
from pathlib import Path
from unittest import mock

import pytest

from cone_jax import spec_strings
from cone_jax.data.sources.registry import SOURCES
from cone_jax.errors import UserError
from cone_jax.evaluation.registry import KINDS
from cone_jax.models.registry import BACKBONES
from cone_jax.objectives.objective import OBJECTIVES
from cone_jax.spec_strings import Registry

GROUP = "cone_jax.examples"


def small(name="small"):
    return name


def large():
    return "large"


@pytest.fixture
def sizes() -> Registry:
    return Registry("size", GROUP, {"small": small})


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution beside the installed ones: its code, and its entry points."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(distribution: str, code: str = "", group: str = GROUP, **entry_points: str) -> None:
        module = distribution.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]))
        spec_strings.installed.cache_clear()

    yield add
    spec_strings.installed.cache_clear()
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_a_registry_is_a_mapping(sizes):
    assert sizes["small"] is small
    assert list(sizes) == ["small"]
    assert len(sizes) == 1
    assert "small" in sizes
    assert "large" not in sizes
    with pytest.raises(KeyError):
        sizes["large"]


def test_register_works_as_decorator_and_as_function(sizes):
    @sizes.register("middle")
    def middle():
        return "middle"

    sizes.register("large")(large)
    assert middle() == "middle"
    assert dict(sizes) == {"small": small, "middle": middle, "large": large}


def test_a_name_that_is_taken_is_refused_with_both_owners(sizes):
    with pytest.raises(UserError) as error:
        sizes.register("small")(large)
    message = str(error.value)
    assert f"size 'small' is given twice: by {__name__}.small, by {__name__}.large" in message


def test_the_same_definition_may_come_again(sizes):
    """A cell of a notebook that is run twice."""
    for number in (1, 2):
        exec(f"def again():\n    return {number}", space := {"__name__": "notebook"})
        sizes.register("again")(space["again"])
    assert sizes["again"]() == 2


def test_only_what_has_the_right_form_is_taken(sizes):
    with pytest.raises(UserError, match=r"'odd' of .*int must be a function"):
        sizes.register("odd")(3)
    with pytest.raises(UserError, match=r"'a-b' of .*large must be named by one plain word"):
        sizes.register("a-b")(large)


def test_tests_can_patch_a_registry(sizes):
    with mock.patch.dict(sizes, large=large, small=large):
        assert sizes["large"] is sizes["small"] is large
    assert dict(sizes) == {"small": small}


def test_a_distribution_adds_by_an_entry_point(install, sizes):
    install("more-sizes", "def huge():\n    return 'huge'\n", huge="more_sizes:huge")
    assert list(sizes) == ["small", "huge"]
    assert "huge" in sizes
    assert "more_sizes" not in sys.modules, "a listing imports nothing"
    assert sizes["small"] is small
    assert "more_sizes" not in sys.modules, "nor does another name"
    assert sizes["huge"]() == "huge"
    assert sizes["huge"] is sys.modules["more_sizes"].huge
    assert len(sizes) == 2


def test_a_plugin_may_register_as_well(install, sizes, monkeypatch):
    """A module that decorates its things works with and without entry points."""
    holder = type(sys)("holder")
    holder.SIZES = sizes
    monkeypatch.setitem(sys.modules, "holder", holder)
    code = "import holder\n@holder.SIZES.register('huge')\ndef huge():\n    return 'huge'\n"
    install("more-sizes", code, huge="more_sizes:huge")
    assert sizes["huge"]() == "huge"
    assert list(sizes) == ["small", "huge"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named"),
        ("x = 1", "AttributeError: module 'broken_part' has no attribute 'huge'"),
        ("def huge(:", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    ],
)
def test_a_broken_plugin_is_one_line_with_its_distribution(install, sizes, code, reason):
    install("broken-part", code, huge="broken_part:huge")
    assert sizes["small"] is small
    with pytest.raises(UserError) as error:
        sizes["huge"]
    message = str(error.value)
    assert "size 'huge' of broken-part 1.0 (broken_part:huge) cannot be loaded: " in message
    assert reason in message
    assert "\n" not in message


def test_a_plugin_of_the_wrong_form_is_refused(install, sizes):
    install("wrong-part", "huge = 3", huge="wrong_part:huge")
    with pytest.raises(UserError, match=r"'huge' of wrong-part 1.0 .* must be a function"):
        sizes["huge"]


def test_a_plugin_that_takes_a_name_of_the_package_is_refused(install, sizes):
    install("other-sizes", "def small():\n    pass\n", small="other_sizes:small")
    with pytest.raises(UserError) as error:
        sizes["small"]
    assert f"by {__name__}.small, by other-sizes 1.0 (other_sizes:small)" in str(error.value)
    assert list(sizes) == ["small"]


def test_two_plugins_of_one_name_are_refused(install, sizes):
    for distribution in ("one-part", "another-part"):
        module = distribution.replace("-", "_")
        install(distribution, "def huge():\n    pass\n", huge=f"{module}:huge")
    with pytest.raises(UserError) as error:
        sizes["huge"]
    assert "one-part 1.0 (one_part:huge)" in str(error.value)
    assert "another-part 1.0 (another_part:huge)" in str(error.value)


@pytest.mark.parametrize(
    ("parts", "wrong", "reason"),
    [
        (OBJECTIVES, "def huge(): pass", "a subclass of cone_jax.objectives.Objective"),
        (BACKBONES, "huge = 3", "a function"),
        (SOURCES, "huge = 3", "a function"),
        (KINDS, "class huge: pass", "a subclass of cone_jax.evaluation.registry.Evaluator"),
    ],
    ids=["objectives", "models", "sources", "evaluators"],
)
def test_each_registry_says_what_it_takes(parts, wrong, reason):
    exec(wrong, space := {})
    with pytest.raises(UserError, match=f"'huge' of .* must be {reason}"):
        parts.register("huge")(space["huge"])


def test_nothing_is_installed_for_the_tests():
    """They would not be those of the package alone."""
    for group in ("objectives", "models", "sources", "evaluators"):
        assert not spec_strings.installed().select(group=f"cone_jax.{group}")
    assert Path(spec_strings.__file__).parent.name == "cone_jax"
