"""What the compiler makes of the ImageNet ResNet-50 step on 1 to 64 devices.

    python benchmarks/scaling.py [--devices=1,2,8,64] [--batch=16] [--bank=65536]
        [--sharding=replicated]

Nothing runs: the step is compiled for that many virtual CPU devices, with `--batch` images on
each, and the compiled program of one device is read. For each: arithmetic a device, bytes that
each kind of collective delivers to a device in a step, bytes of the bank on a device. The design
says: constant arithmetic, an all-reduce of the parameters' gradient, an all-gather of
B (D + C + 1) values for a replicated bank; no other collective grows with anything.

What an accelerator's own compiler makes of a step, with its estimate of the time, is asked by
`--mode=compile` and benchmarks/compiled_table.py.
"""

import argparse
import collections
import math
import re
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

MOST_DEVICES = 64
jax.config.update("jax_num_cpu_devices", MOST_DEVICES)

import jax.numpy as jnp
from jax.sharding import NamedSharding

from cone_jax import config as config_lib
from cone_jax import distributed, training
from cone_jax.training import train_state
from cone_jax.training.train_state import abstract_state

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1, "s8": 1, "u8": 1, "f16": 2, "s64": 8}


class Compiled(NamedTuple):
    devices: int
    flops: float
    collectives: dict[str, int]  # bytes of the results on one device
    bank: int


def compile_for(devices: int, arguments: argparse.Namespace) -> Compiled:
    config = config_lib.default()
    config.batch_size = arguments.batch * devices
    config.data.image_size = arguments.size
    config.model.name = arguments.model
    config.model.dtype = "bfloat16"
    config.bank.size = arguments.bank
    config.bank.sharding = arguments.sharding
    mesh = distributed.make_mesh(jax.devices()[:devices])
    # The arithmetic of an accelerator, on the virtual devices of a CPU.
    learner = train_state.build_learner(
        config, num_classes=arguments.classes, steps_per_epoch=1000, mesh=mesh, platform="tpu"
    )
    state = abstract_state(learner)
    split = distributed.split(mesh)

    def rows(shape: tuple[int, ...], dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((config.batch_size, *shape), dtype, sharding=split)

    batch = {
        "image": rows((arguments.size, arguments.size, 3), jnp.uint8),
        "label": rows((), jnp.int32),
        "id": rows((), jnp.int32),
    }
    # The partitioner's work is the same without LLVM's, which takes most of the time.
    compiled = training.train_step.lower(state, batch).compile(
        {"xla_backend_optimization_level": 0}
    )
    return Compiled(
        devices,
        compiled.cost_analysis()["flops"],
        collective_bytes(compiled.as_text()),
        bank_bytes(state.bank),
    )


def collective_bytes(program: str) -> dict[str, int]:
    """Bytes of the results of each kind of collective in a compiled program."""
    found: dict[str, int] = collections.Counter()
    for line in program.splitlines():
        match = re.search(rf" = (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(", line)
        if match:
            shapes = re.findall(r"(\w+)\[([\d,]*)\]", match.group(1))
            for dtype, dims in shapes:
                found[match.group(2)] += BYTES[dtype] * math.prod(
                    map(int, filter(None, dims.split(",")))
                )
    return dict(found)


def bank_bytes(bank: object) -> int:
    total = 0
    for leaf in jax.tree.leaves(bank):
        place: NamedSharding = leaf.sharding
        total += math.prod(place.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="1,2,8,64")
    parser.add_argument("--batch", type=int, default=16, help="images a device")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--bank", type=int, default=65536)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--sharding", default="replicated", choices=("replicated", "sharded"))
    parser.add_argument("--model", default="resnet50")
    arguments = parser.parse_args()
    print(
        f"{arguments.model}, {arguments.size} px, {arguments.batch} images a device, bank "
        f"{arguments.bank} {arguments.sharding}, {arguments.classes} classes"
    )
    header = " ".join(f"{kind:>18}" for kind in COLLECTIVES[:4])
    print(f"{'devices':>8} {'GFLOP a device':>15} {header} {'bank MiB':>9}")
    for devices in map(int, arguments.devices.split(",")):
        one = compile_for(devices, arguments)
        columns = " ".join(
            f"{one.collectives.get(kind, 0) / 1e6:15.2f} MB" for kind in COLLECTIVES[:4]
        )
        print(f"{devices:8} {one.flops / 1e9:15.1f} {columns} {one.bank / 2**20:9.1f}", flush=True)


if __name__ == "__main__":
    main()
