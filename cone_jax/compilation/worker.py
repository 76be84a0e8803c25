"""Compiles one program in a process of its own, which alone has the compiler on its path.

The request comes as a folder with the config and a line of JSON on standard input. First the answer
is a key that identifies the program and its compiler, and one of the program alone. If the next
line asks for it, the program is compiled, and what the compiler says of it is a second line.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import jax

from cone_jax import workdir
from cone_jax.compilation import environment, programs
from cone_jax.compilation.accelerators import Gpu, Topology, Tpu, parse_topology
from cone_jax.compilation.program_text import Program
from cone_jax.compilation.programs import Traced
from cone_jax.distributed import make_mesh

# A GPU's sort asks a device while it is compiled, unless it is XLA's own.
_GPU_OPTIONS = {"xla_gpu_enable_cub_radix_sort": False}
_EXHAUSTED = "RESOURCE_EXHAUSTED"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def main(directory: str) -> None:
    """Answers one request."""
    request = json.loads(sys.stdin.readline())
    topology = parse_topology(request["topology"], request["slices"])
    traced = programs.trace(
        workdir.load_config(Path(directory)),
        request["program"],
        make_mesh(topology.devices()),
        num_classes=request["num_classes"],
        train_images=request["train_images"],
    )
    text = traced.lowered.as_text()
    program = hashlib.sha256(text.encode()).hexdigest()
    _answer({"key": identify(text, topology), "program": program})
    if sys.stdin.readline().strip() == "compile":
        _answer(compile_for(traced, topology))


def identify(program: str, topology: Topology) -> str:
    """Equal for equal programs, compilers and readers of what they say."""
    parts = [
        program,
        topology.text,
        str(topology.slices),
        environment.requirements(topology.accelerator.kind).read_text(),
        jax.__version__,
        Path(__file__).read_text(),
        Path(__file__).with_name("program_text.py").read_text(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compile_for(traced: Traced, topology: Topology) -> dict[str, Any]:
    """What the compiler says: memory, cost, collectives, copies. Too large is an answer, too."""
    accelerator = topology.accelerator
    options = _GPU_OPTIONS if isinstance(accelerator, Gpu) else None
    found: dict[str, Any] = {"state": traced.memory, "limit": accelerator.memory}
    try:
        compiled = traced.lowered.compile(options)
    except jax.errors.JaxRuntimeError as error:
        if _EXHAUSTED not in str(error):
            raise
        return {**found, **exhausted(str(error))}
    memory, program = compiled.memory_analysis(), Program(compiled.as_text())
    cost = compiled.cost_analysis() or {}
    found |= {
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "program": memory.generated_code_size_in_bytes,
        "flops": cost.get("flops"),
        "bytes_accessed": cost.get("bytes accessed"),
        "collectives": [each._asdict() for each in program.collectives()],
        "state_copies": [each._asdict() for each in program.state_copies(traced.shapes)],
        "without_estimate": program.without_estimate(),
        "convolutions": program.count(r"__cudnn\$conv|convolution\("),
    }
    if isinstance(accelerator, Tpu):
        found["estimate_ms"] = program.cycles / accelerator.clock * 1e3
        found["estimate_ms_by_part"] = {
            part: cycles / accelerator.clock * 1e3
            for part, cycles in program.cycles_by_part().items()
        }
    return found


def exhausted(message: str) -> dict[str, Any]:
    """The answer for a program that does not fit into a device's memory.

    >>> exhausted("RESOURCE_EXHAUSTED: Ran out of memory: Used 20.5G of 15.75G hbm. Exceeded")
    {'exhausted': 'RESOURCE_EXHAUSTED: Ran out of memory: Used 20.5G of 15.75G hbm. Exceeded', \
'needed': 22011707392}
    """
    line = message.splitlines()[0]
    amount = re.search(r"Used ([\d.]+)([KMGT]?) of|HLO temporaries \(([\d.]+)([KMGT]?)", message)
    needed = None
    if amount:
        number, unit = amount[1] or amount[3], amount[2] if amount[1] else amount[4]
        needed = round(float(number) * _UNITS[unit])
    return {"exhausted": line, "needed": needed}


def _answer(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
