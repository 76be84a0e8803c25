"""The table of compiled recipes: every row can be compiled, and old cells are marked."""

import json
import shutil

import jax
import pytest

from benchmarks import compiled_table, program_marks
from cone_jax import load_recipe
from cone_jax.compilation import compiler, environment, programs
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
def test_a_cell_says_memory_estimate_and_ratio(changes, text, monkeypatch):
    monkeypatch.setattr(compiled_table, "mark", lambda recipe: "now")
    row = compiled_table.Row("a", against="b")
    known = {("a", "v5e"): CELL | changes, ("b", "v5e"): CELL | {"estimate_ms": 40.0}}
    assert compiled_table.shown(known, row, "v5e") == text
    assert compiled_table.shown(known, row, "h100") == ""


def test_the_table_stands_between_its_marks(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{compiled_table.BEGIN}\nold\n{compiled_table.END}\nafter\n")
    monkeypatch.setattr(compiled_table, "PAGE", page)
    monkeypatch.setattr(compiled_table, "mark", lambda recipe: "now")
    first = next(compiled_table.rows()).recipe
    for _ in range(2):  # the second time in its own place
        compiled_table.write_table({(first, "v5e"): CELL})
        before, table, after = page.read_text().partition(f"| {first} | 3.0 GiB, 60.0 ms |")
        assert before.startswith("before")
        assert table
        assert after.endswith("after\n")
        assert "old" not in before + after


def test_an_old_cell_whose_program_is_the_same_is_not_compiled_again(monkeypatch):
    recipe = "imagenet:resnet50"
    pins = f"jax=={jax.__version__} libtpu==0.0.42.1"
    cell = CELL | {"recipe": recipe, "machine": "v5e", "program": "p", "versions": pins}
    old = cell | {"sources": "before"}
    asked = []

    def identify(config, program, topology, data):
        asked.append((config.model.name, program, topology.text, *data))
        return "p"

    monkeypatch.setattr(compiler, "identify", identify)
    monkeypatch.setattr(environment, "install", lambda kind, say: None)
    assert compiled_table.refresh(old) == cell | {"sources": compiled_table.mark(recipe)}
    assert asked == [("resnet50", programs.TRAINING, "v5e:2x4", 1000, 1_281_167)]
    # Another program, another compiler, and a cell from when programs were not noted.
    assert compiled_table.refresh(old | {"program": "q"}) is None
    assert compiled_table.refresh(old | {"versions": "jax==0.4.0"}) is None
    assert compiled_table.refresh(CELL | {"recipe": recipe, "machine": "v5e"}) is None


def test_old_cells_are_refreshed_or_compiled_on_request_only(tmp_path, monkeypatch, capsys):
    results, page = tmp_path / "cells.jsonl", tmp_path / "page.md"
    page.write_text(f"{compiled_table.BEGIN}{compiled_table.END}")
    three = list(compiled_table.rows())[:3]
    first, second, third = (row.recipe for row in three)
    old = [CELL | {"recipe": name, "machine": "v5e", "sources": "old"} for name in (first, second)]
    results.write_text("".join(json.dumps(cell) + "\n" for cell in old))
    monkeypatch.setattr(compiled_table, "RESULTS", results)
    monkeypatch.setattr(compiled_table, "PAGE", page)
    monkeypatch.setattr(compiled_table, "rows", lambda: three)
    monkeypatch.setattr(compiled_table, "mark", lambda recipe: "now")
    compiled = []

    def compile_cell(recipe, machine):
        compiled.append(recipe)
        return CELL | {"recipe": recipe, "machine": machine, "estimate_ms": 30.0}

    def refresh(cell):
        return cell | {"sources": "now"} if cell["recipe"] == first else None

    monkeypatch.setattr(compiled_table, "compile_cell", compile_cell)
    monkeypatch.setattr(compiled_table, "refresh", refresh)

    def run(*flags):
        compiled.clear()
        monkeypatch.setattr("sys.argv", ["compiled_table.py", "--machines=v5e", *flags])
        compiled_table.main()
        return compiled, [json.loads(line)["sources"] for line in results.read_text().splitlines()]

    assert run("--cells=1") == ([third], ["old", "old", "now"])
    assert page.read_text().count("*") == 2
    assert run("--cells=2", "--rows=nothing_is_called_so") == ([], ["old", "old", "now"])
    assert run("--again") == ([second], ["old", "old", "now", "now", "now"])
    assert "*" not in page.read_text()


class TestMark:
    """What a recipe's mark depends on, told by edits of a copy of the sources."""

    @pytest.fixture(autouse=True)
    def sources(self, tmp_path, monkeypatch):
        shutil.copytree(
            program_marks.ROOT / "cone_jax",
            tmp_path / "cone_jax",
            ignore=shutil.ignore_patterns("__pycache__", "interop", "analysis"),
        )
        monkeypatch.setattr(program_marks, "ROOT", tmp_path)
        self.folder = tmp_path / "cone_jax"
        self.forget()
        yield
        self.forget()

    def forget(self):
        program_marks.imports.cache_clear()
        program_marks.code.cache_clear()

    def mark(self, recipe="resnet50", **fields):
        config = load_recipe("imagenet_light" if "_" in recipe else "imagenet", recipe).unlock()
        config.update_from_flattened_dict(
            {name.replace("__", "."): v for name, v in fields.items()}
        )
        return program_marks.mark(config)

    def edit(self, file, old, new):
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        self.forget()

    @pytest.mark.parametrize(
        ("file", "old", "new"),
        [
            ("models/resnet.py", "expansion = 4", "expansion = 2"),
            ("models/pointwise_norm.py", "lax.Precision.HIGHEST", "lax.Precision.HIGH"),
            ("models/layers.py", "epsilon: float = 1e-5", "epsilon: float = 1e-3"),
            ("objectives/cone.py", "jnp.mean(~keep)", "jnp.mean(keep)"),
            ("objectives/cone.py", "field(0.7, ", "field(0.8, "),
            ("memory_bank/lookup.py", "import math", "import math, string"),
            ("training/optimizers.py", "import re", "import re, string"),
            ("compilation/program_text.py", '("gradient"', '("the gradient"'),
        ],
    )
    def test_follows_the_code_of_its_own_parts(self, file, old, new):
        before = self.mark()
        self.edit(file, old, new)
        assert self.mark() != before

    @pytest.mark.parametrize(
        ("file", "old", "new"),
        [
            ("models/shufflenet.py", "LAST_WIDTH = 1024", "LAST_WIDTH = 512"),
            ("models/regnet.py", "GROUP_WIDTH = 16", "GROUP_WIDTH = 8"),
            ("objectives/supcon.py", "import", "import string\nimport"),
            ("models/cpu/layers.py", "import", "import string\nimport"),
            ("evaluation/accuracy.py", "import", "import string\nimport"),
            ("objectives/cone.py", "weight of the contrastive term", "another description"),
            ("console.py", "import", "import string\nimport"),
            ("models/resnet.py", "Residual networks, v1.5", "Residual networks"),
            ("models/resnet.py", "class Bottleneck", "# A comment.\nclass Bottleneck"),
        ],
    )
    def test_is_left_alone_by_everything_else(self, file, old, new):
        before = self.mark()
        self.edit(file, old, new)
        assert self.mark() == before

    def test_of_a_regnet_follows_the_block_it_is_built_of(self):
        before, other = self.mark("regnetx_400mf"), self.mark("deit_tiny")
        self.edit("models/resnet.py", "nn.relu(self.make.drop", "nn.silu(self.make.drop")
        assert self.mark("regnetx_400mf") != before
        assert self.mark("deit_tiny") == other

    def test_follows_the_settings_that_reach_a_step(self):
        before = self.mark()
        for name, value in {
            "batch_size": 512,
            "data__image_size": 160,
            "bank__size": 4096,
            "objective__cone__neighbours": 32,
            "optimizer__nesterov": True,
        }.items():
            assert self.mark(**{name: value}) != before, name
        for name, value in {
            "evaluation__batch_size": 10,
            "log_every": 7,
            "objective__paco__alpha": 0.5,
        }.items():
            assert self.mark(**{name: value}) == before, name
