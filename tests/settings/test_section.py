"""A field is declared once: default, meaning, limits; and what is outside them is refused."""

import dataclasses
import math
from typing import Literal

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import settings
from cone_jax.errors import UserError
from cone_jax.objectives.objective import OBJECTIVES
from cone_jax.settings import FieldEntry, Section, Settings, field

ENTRIES = [*Settings().entries(), *(e for each in OBJECTIVES.values() for e in each().entries())]
LIMITED = [entry for entry in ENTRIES if entry.declaration.limits]
CHOSEN = [entry for entry in ENTRIES if entry.choices]


@dataclasses.dataclass(frozen=True)
class Inner(Section, path="inner"):
    rate: float = field(0.5, "a share", low=0.0, high=1.0)


@dataclasses.dataclass(frozen=True)
class Outer(Section, path="outer"):
    kind: Literal["plain", "fancy"] = field("plain", "a choice")
    count: int = field(1, "a number", above=0)
    sizes: tuple[int, ...] = field((), "each of them", low=2)
    layers: tuple[Literal["first", "last"], ...] = field(("first",), "at least one")
    anything: float = field(0.0, "without limits")
    width: int | None = field(None, "optional", low=4)
    inner: Inner = field(Inner(rate=0.25), "a section with another default")


def refusal(make) -> str:
    with pytest.raises(UserError) as caught:
        make()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def validated(entry: FieldEntry, value) -> str:
    """What is said about a complete config with one field changed."""
    config = config_lib.default()
    section, _, name = entry.name.rpartition(".")
    if section.startswith("objective."):
        config.objective.name = section.removeprefix("objective.")
    with config.ignore_type():
        target = config_lib.get_field(config, section) if section else config
        target[name] = (value,) if isinstance(entry.default, tuple) else value
    return refusal(lambda: config_lib.validate(config))


def outside(entry: FieldEntry) -> st.SearchStrategy[float]:
    """Numbers beyond the limits, of the field's own kind."""
    declared, whole = entry.declaration, isinstance(entry.default, int)
    numbers = (
        st.integers
        if whole
        else lambda low=None, high=None: st.floats(low, high, allow_nan=False, allow_infinity=False)
    )
    beyond = []
    if declared.above is not None:
        beyond.append(numbers(None, declared.above))
    if declared.low is not None:
        beyond.append(numbers(None, declared.low).filter(lambda x: x < declared.low))
    if declared.high is not None:
        beyond.append(numbers(declared.high, None).filter(lambda x: x > declared.high))
    return st.one_of(beyond)


@given(st.data())
def test_a_value_outside_its_limits_is_refused_with_field_value_and_cure(data):
    entry = data.draw(st.sampled_from(LIMITED))
    value = data.draw(outside(entry))
    assert validated(entry, value) == (f"{entry.name} ({value}) must be {entry.declaration.limits}")


@given(st.sampled_from([e for e in ENTRIES if isinstance(e.default, float) or e in LIMITED]))
def test_what_is_not_a_number_is_refused_everywhere(entry):
    assert f"{entry.name} (nan) must be" in validated(entry, math.nan)


@given(st.sampled_from(CHOSEN), st.text("abcdefgh_", min_size=1))
def test_a_value_that_is_no_choice_is_refused_with_the_choices(entry, text):
    message = validated(entry, f"{text}?")
    assert message.startswith(f"{entry.name} (")
    assert "is unknown; " in message
    assert all(choice in message for choice in entry.choices)


@hypothesis.settings(deadline=None)
@given(
    kind=st.sampled_from(["plain", "fancy"]),
    count=st.integers(1),
    sizes=st.lists(st.integers(2), max_size=3).map(tuple),
    anything=st.floats(allow_nan=False),
    width=st.none() | st.integers(4),
    rate=st.floats(0.0, 1.0),
)
def test_a_section_survives_its_config(rate, **fields):
    section = Outer(**fields, inner=Inner(rate))
    config = section.to_config()
    assert isinstance(config.inner, ConfigDict)
    again = Outer.read(config)
    assert again == section
    assert hash(again) == hash(section)


def test_defaults_are_those_of_the_declaration_and_of_what_holds_a_section():
    config = Outer().to_config()
    assert (config.kind, config.count, config.inner.rate) == ("plain", 1, 0.25)
    config.width = 8  # optional, and of its type
    assert Outer.read(config).width == 8
    with pytest.raises(TypeError):
        config.width = "wide"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "fanci"}, "outer.kind ('fanci') is unknown; did you mean 'fancy'?"),
        ({"count": 0}, "outer.count (0) must be positive"),
        ({"sizes": (3, 1)}, "outer.sizes (1) must be at least 2"),
        ({"layers": ("first", "middle")}, "outer.layers (('first', 'middle')) is unknown; "),
        ({"layers": ()}, "outer.layers (()) is unknown; "),
        ({"anything": math.nan}, "outer.anything (nan) must be a number"),
        ({"width": 3}, "outer.width (3) must be at least 4"),
        ({"count": "many"}, "outer.count (many) must be positive"),
    ],
)
def test_refusals_of_a_section(fields, message):
    assert refusal(lambda: Outer(**fields)).startswith(message)


def test_a_section_in_another_is_named_by_both():
    message = refusal(lambda: Outer.read({"inner": {"rate": 2.0}}))
    assert message == "outer.inner.rate (2.0) must be between 0.0 and 1.0"
    stage = {"optimizer": {"momentum": -1.0}}
    assert refusal(lambda: Settings.read({"linear_stage": stage})).startswith(
        "linear_stage.optimizer.momentum (-1.0) must be"
    )


def test_names_of_older_versions_are_passed_over_and_lists_become_tuples():
    section = Outer.read({"count": 2, "colour": "red", "sizes": [2, 3]})
    assert section == Outer(count=2, sizes=(2, 3))


def test_every_field_of_the_default_config_is_declared_with_a_meaning():
    def names(config, prefix=""):
        for name, value in config.items():
            if isinstance(value, ConfigDict):
                yield from names(value, f"{prefix}{name}.")
            else:
                yield prefix + name

    assert sorted(names(config_lib.default())) == sorted(entry.name for entry in ENTRIES)
    assert all(entry.declaration.meaning for entry in ENTRIES)


def test_what_may_change_while_a_run_goes_on():
    assert settings.free_fields() == {
        "data.path",
        "data.stage",
        "data.threads",
        "data.prefetch",
        "data.workers",
        "bank.sharding",
        "model.sharding",
        "checkpoint.keep",
        "checkpoint.store_timeout",
        "profile_steps",
        "wandb_project",
        "nonfinite.policy",
        "nonfinite.skip_limit",
    }
