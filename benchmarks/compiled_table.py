"""What the compilers of four machines say about every recipe of the paper, as one table.

    python benchmarks/compiled_table.py --output=compiled [--rows=resnet50,deit] [--machines=v5e]

Each cell is a `--mode=compile` of its own in a folder below `--output`. What is there already is
not compiled again, so the program may be stopped at any time and goes on when it is started again;
`table.md` has what is known so far. A cell takes one to five minutes on two idle cores.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cone_jax.analysis.tables import markdown_table

# Eight chips of each; a whole number of images per chip in every recipe.
MACHINES = {"v5e": "v5e:2x4", "v6e": "v6e:2x4", "v5p": "v5p:2x2x2", "h100": "h100:8"}
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet200")
LIGHT = ("regnetx_400mf", "mobilenet_v2", "shufflenet_v2", "deit_tiny")
OBJECTIVES = (
    *("binary_cross_entropy", "cmsf", "joint_supcon", "l_softmax", "large_margin", "nnclr"),
    *("paco", "simclr", "supcon", "supcon_bank"),
)


class Row(NamedTuple):
    """A recipe, and the row that it is compared with."""

    recipe: str
    against: str = ""


def rows() -> Iterator[Row]:
    """Networks by cross-entropy and by CoNe, long recipes, then every other objective."""
    for file, networks in (("imagenet", RESNETS), ("imagenet_light", LIGHT)):
        for network in networks:
            yield Row(f"{file}:{network},cross_entropy")
            yield Row(f"{file}:{network}", f"{file}:{network},cross_entropy")
    for recipe in ("long", "timm"):
        yield Row(f"imagenet:resnet50,{recipe},cross_entropy")
        yield Row(f"imagenet:resnet50,{recipe}", f"imagenet:resnet50,{recipe},cross_entropy")
    for name in OBJECTIVES:
        yield Row(f"imagenet:resnet50,{name}", "imagenet:resnet50,cross_entropy")


def folder(output: Path, recipe: str, machine: str) -> Path:
    return output / re.sub(r"\W+", "-", recipe) / machine


def compile_cell(directory: Path, recipe: str, topology: str) -> str:
    """Asks the compiler; returns what went wrong, if it was not the memory."""
    command = [sys.executable, str(ROOT / "main.py"), "compile", f"--config={recipe}"]
    flags = [f"--topology={topology}", f"--workdir={directory}"]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, check=False)
    if (directory / "compile.json").exists():
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def known(output: Path, recipe: str, machine: str) -> dict[str, Any] | None:
    path = folder(output, recipe, machine) / "compile.json"
    return json.loads(path.read_text()) if path.exists() else None


def cell(output: Path, row: Row, machine: str) -> str:
    """Memory, estimate, and how much longer than the row it is compared with."""
    found = known(output, row.recipe, machine)
    if found is None:
        return ""
    memory = f"{found['memory']['needed'] / 2**30:.1f} GiB"
    if not found["fits"]:
        return f"**does not fit** (at least {memory})"
    parts = [memory]
    if found["estimate_ms"]:
        parts.append(f"{found['estimate_ms']:.1f} ms")
        other = known(output, row.against, machine) if row.against else None
        if other and other["estimate_ms"]:
            parts.append(f"{found['estimate_ms'] / other['estimate_ms']:.2f} x")
    return ", ".join(parts)


def write_table(output: Path, chosen: list[Row], machines: list[str]) -> None:
    lines = [[row.recipe, *(cell(output, row, name) for name in machines)] for row in chosen]
    heads = ["recipe", *(MACHINES[name] for name in machines)]
    (output / "table.md").write_text(markdown_table(heads, lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("compiled"))
    parser.add_argument("--rows", default="", help="words, one of which a recipe must contain")
    parser.add_argument("--machines", default=",".join(MACHINES))
    arguments = parser.parse_args()
    words, machines = arguments.rows.split(","), arguments.machines.split(",")
    chosen = [row for row in rows() if any(word in row.recipe for word in words)]
    arguments.output.mkdir(parents=True, exist_ok=True)
    for machine in machines:
        for row in chosen:
            directory = folder(arguments.output, row.recipe, machine)
            if not (directory / "compile.json").exists():
                problem = compile_cell(directory, row.recipe, MACHINES[machine])
                print(f"{row.recipe} on {MACHINES[machine]}: {problem or 'done'}", flush=True)
            write_table(arguments.output, chosen, machines)
    print((arguments.output / "table.md").read_text())


if __name__ == "__main__":
    main()
