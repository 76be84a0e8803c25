"""The table of compiled recipes: every row can be compiled, and old cells are marked."""

import pytest

from benchmarks import compiled_table
from cone_jax import load_recipe
from cone_jax.compilation import programs
from cone_jax.compilation.accelerators import parse_topology

CELL = {"fits": True, "needed": 3 * 2**30, "estimate_ms": 60.0, "sources": "now"}


def test_every_recipe_can_run_on_every_machine():
    listed = list(compiled_table.rows())
    assert len({row.recipe for row in listed}) == len(listed) == 2 * 10 + 2 * 2 + 10
    for row in listed:
        config = load_recipe(*row.recipe.partition(":")[::2])
        for topology in compiled_table.MACHINES.values():
            programs.check(config, parse_topology(topology).num_devices)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "3.0 GiB, 60.0 ms, 1.50 x"),
        ({"sources": "before"}, "3.0 GiB, 60.0 ms, 1.50 x*"),
        ({"estimate_ms": None}, "3.0 GiB"),
        ({"fits": False}, "**does not fit** (at least 3.0 GiB)"),
    ],
)
def test_a_cell_says_memory_estimate_and_ratio(changes, text):
    row = compiled_table.Row("a", against="b")
    known = {("a", "v5e"): CELL | changes, ("b", "v5e"): CELL | {"estimate_ms": 40.0}}
    assert compiled_table.shown(known, row, "v5e", "now") == text
    assert compiled_table.shown(known, row, "h100", "now") == ""


def test_the_table_stands_between_its_marks(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{compiled_table.BEGIN}\nold\n{compiled_table.END}\nafter\n")
    monkeypatch.setattr(compiled_table, "PAGE", page)
    monkeypatch.setattr(compiled_table, "fingerprint", lambda: "now")
    first = next(compiled_table.rows()).recipe
    for _ in range(2):  # the second time in its own place
        compiled_table.write_table({(first, "v5e"): CELL})
        before, table, after = page.read_text().partition(f"| {first} | 3.0 GiB, 60.0 ms |")
        assert before.startswith("before")
        assert table
        assert after.endswith("after\n")
        assert "old" not in before + after
