"""What the compilers of four machines say about every recipe of the paper, as one table.

    python benchmarks/compiled_table.py [--rows=resnet50,deit] [--machines=v5e] [--cells=1]
        [--again]

Each cell is the training step of a recipe, compiled for a machine as `--mode=compile` does, and a
line in docs/results/compiled.jsonl once it is known. What is there is not compiled again, so the
program may be stopped at any time and goes on when it is started again; `--cells` stops it after
so many. The most telling cells come first. A line has the mark of the config and the sources it was
compiled from (`program_marks`): a cell whose recipe has another mark by now is shown with an
asterisk. `--again` traces such cells, which takes seconds, and compiles anew what has become
another program. At the end the table goes to docs/performance.md. A cell takes one to ten minutes
of a core.
"""

import argparse
import datetime
import json
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import jax
from ml_collections import ConfigDict

import cone_jax
from benchmarks import program_marks
from cone_jax import load_recipe
from cone_jax.analysis.tables import markdown_table
from cone_jax.compilation import compiler, environment, programs
from cone_jax.compilation.accelerators import parse_topology
from cone_jax.compilation.report import Findings
from cone_jax.errors import Failure, UserError

RESULTS = ROOT / "docs" / "results" / "compiled.jsonl"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- made by compiled_table.py: begin -->", "<!-- made by compiled_table.py: end -->"
# Eight chips of each; a whole number of images per chip in every recipe.
MACHINES = {"v5e": "v5e:2x4", "h100": "h100:8", "v6e": "v6e:2x4", "v5p": "v5p:2x2x2"}
RESNETS = ("resnet50", "resnet18", "resnet34", "resnet101", "resnet152", "resnet200")
LIGHT = ("mobilenet_v2", "deit_tiny", "shufflenet_v2", "regnetx_400mf")
OBJECTIVES = (
    *("binary_cross_entropy", "cmsf", "joint_supcon", "l_softmax", "large_margin", "nnclr"),
    *("paco", "simclr", "supcon", "supcon_bank"),
)

Cell = dict[str, Any]
Known = dict[tuple[str, str], Cell]


class Row(NamedTuple):
    """A recipe, and the row that it is compared with."""

    recipe: str
    against: str = ""


def rows() -> Iterator[Row]:
    """ResNet-50 and the light networks by both losses, the other networks, then the rest."""
    first, *others = RESNETS
    networks = [("imagenet", first), *(("imagenet_light", name) for name in LIGHT)]
    for file, network in (*networks, *(("imagenet", name) for name in others)):
        yield Row(f"{file}:{network},cross_entropy")
        yield Row(f"{file}:{network}", f"{file}:{network},cross_entropy")
    for recipe in ("long", "timm"):
        yield Row(f"imagenet:resnet50,{recipe},cross_entropy")
        yield Row(f"imagenet:resnet50,{recipe}", f"imagenet:resnet50,{recipe},cross_entropy")
    for name in OBJECTIVES:
        yield Row(f"imagenet:resnet50,{name}", "imagenet:resnet50,cross_entropy")


@cache
def mark(recipe: str) -> str:
    """Of the config and the sources that decide what this recipe's program is."""
    return program_marks.mark(load(recipe))


def load(recipe: str) -> ConfigDict:
    return load_recipe(*recipe.partition(":")[::2])


def read() -> Known:
    """The cells that have been compiled; of several lines about one the last counts."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    cells = map(json.loads, lines)
    return {(cell["recipe"], cell["machine"]): cell for cell in cells}


def refresh(cell: Cell) -> Cell | None:
    """The cell with today's mark, if today's sources still make the program it is about."""
    config, topology = load(cell["recipe"]), parse_topology(MACHINES[cell["machine"]])
    pins = versions(topology.accelerator.kind)
    if "program" not in cell or cell["versions"] != pins:
        return None
    environment.install(topology.accelerator.kind, print)
    data = compiler.describe_data(config, "")
    if compiler.identify(config, programs.TRAINING, topology, data) != cell["program"]:
        return None
    return cell | {"sources": mark(cell["recipe"])}


def versions(kind: str) -> str:
    """JAX and the packages of a compiler."""
    lines = environment.requirements(kind).read_text().splitlines()
    pins = (line for line in lines if not line.startswith("#"))
    return " ".join((f"jax=={jax.__version__}", *pins))


def compile_cell(recipe: str, machine: str) -> Cell:
    """Asks the compiler."""
    topology = parse_topology(MACHINES[machine])
    config = load(recipe)
    data = compiler.describe_data(config, "")
    programs.check(config, topology.num_devices)
    environment.install(topology.accelerator.kind, print)
    answer = compiler.ask(config, programs.TRAINING, topology, data, lambda *_: None)
    record = Findings(recipe, config, topology, data, {programs.TRAINING: answer}).record()
    return {
        "recipe": recipe,
        "machine": machine,
        "topology": topology.text,
        "fits": record["fits"],
        "needed": record["memory"]["needed"],
        "temporaries": answer.get("temporaries"),
        "estimate_ms": record["estimate_ms"],
        "estimate_ms_by_part": record["estimate_ms_by_part"],
        "flops": record["flops"],
        "bytes_accessed": record["bytes_accessed"],
        "collectives": sum(each["times"] for each in record["collectives"]),
        "state_copies": len(record["state_copies"]),
        "version": cone_jax.__version__,
        "sources": mark(recipe),
        "program": answer["source"],
        "date": datetime.date.today().isoformat(),
        "versions": versions(topology.accelerator.kind),
    }


def shown(known: Known, row: Row, machine: str) -> str:
    """Memory, estimate, and how much longer than the row it is compared with."""
    found = known.get((row.recipe, machine))
    if found is None:
        return ""
    old = "" if found["sources"] == mark(row.recipe) else "*"
    memory = f"{found['needed'] / 2**30:.1f} GiB"
    if not found["fits"]:
        return f"**does not fit** (at least {memory}){old}"
    parts = [memory]
    if found["estimate_ms"]:
        parts.append(f"{found['estimate_ms']:.1f} ms")
        other = known.get((row.against, machine))
        if other and other["estimate_ms"]:
            parts.append(f"{found['estimate_ms'] / other['estimate_ms']:.2f} x")
    return ", ".join(parts) + old


def write_table(known: Known) -> None:
    """Puts the table of all that is known between its marks on the page."""
    machines = [name for name in MACHINES if any(machine == name for _, machine in known)]
    table = [[row.recipe, *(shown(known, row, name) for name in machines)] for row in rows()]
    filled = [line for line in table if any(line[1:])]
    text = markdown_table(["recipe", *(MACHINES[name] for name in machines)], filled)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="words, one of which a recipe must contain")
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--cells", type=int, default=0, help="compile so many; 0: all")
    parser.add_argument("--again", action="store_true", help="also what other sources compiled")
    arguments = parser.parse_args()
    words, known = arguments.rows.split(","), read()
    chosen = [row.recipe for row in rows() if any(word in row.recipe for word in words)]
    wanted = [(recipe, name) for name in arguments.machines.split(",") for recipe in chosen]
    missing = [cell for cell in wanted if cell not in known]
    if arguments.again:
        missing += [
            cell for cell in wanted if cell in known and known[cell]["sources"] != mark(cell[0])
        ]
    for recipe, machine in missing[: arguments.cells or None]:
        began = time.monotonic()
        try:
            found = known.get((recipe, machine))
            known[recipe, machine] = (found and refresh(found)) or compile_cell(recipe, machine)
        except (UserError, Failure) as error:
            print(f"{recipe} on {machine}: {error}", flush=True)
            continue
        with RESULTS.open("a") as lines:
            lines.write(json.dumps(known[recipe, machine]) + "\n")
        print(f"{recipe} on {machine}: {time.monotonic() - began:.0f} s", flush=True)
    write_table(known)


if __name__ == "__main__":
    main()
