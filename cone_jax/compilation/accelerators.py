"""Accelerators by name, ``v5e:4x4`` or ``h100:8``: published figures, and devices to compile for.

The devices are descriptions: programs can be compiled for them, and nothing can run on them.
"""

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from cone_jax.errors import UserError, closest

if TYPE_CHECKING:
    import jax

# Of one TPU host, in chips; one chip alone is a host, too.
_ONE_CHIP = {"chips_per_host_bounds": [1, 1, 1]}


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """One device, by published figures."""

    name: str
    kind: str  # "tpu" or "gpu": whose compiler it needs
    peak: float  # bfloat16 operations per second, dense
    memory: int  # bytes
    bandwidth: float  # bytes per second of its memory


@dataclasses.dataclass(frozen=True)
class Tpu(Accelerator):
    """A TPU. `memory` is what the compiler itself allows a program."""

    dimensions: int  # of the torus that a slice is a part of
    operations: int  # bfloat16 operations per cycle, of all matrix units of a device
    devices_per_chip: int = 1

    @property
    def clock(self) -> float:
        """Cycles per second: the published peak over the operations per cycle."""
        return self.peak / self.operations


@dataclasses.dataclass(frozen=True)
class Gpu(Accelerator):
    """An NVIDIA GPU. `memory` counts 10^9 bytes per published gigabyte, so less than there is."""

    capability: tuple[int, int]
    multiprocessors: int
    lanes: int  # float32 units per multiprocessor
    shared_memory: int  # bytes per multiprocessor
    threads: int  # per multiprocessor
    l2_cache: int
    clock_ghz: float

    def target(self) -> str:
        """The device as XLA's `GpuTargetConfigProto` writes it."""
        info = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 48 * 2**10,
            "shared_memory_per_core": self.shared_memory,
            "shared_memory_per_block_optin": self.shared_memory - 2**10,
            "threads_per_core_limit": self.threads,
            "core_count": self.multiprocessors,
            "fpus_per_core": self.lanes,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 2**16 - 1,
            "block_dim_limit_z": 2**16 - 1,
            "registers_per_core_limit": 2**16,
            "registers_per_block_limit": 2**16,
            "memory_bandwidth": round(self.bandwidth),
            "device_memory_size": self.memory,
            "l2_cache_size": self.l2_cache,
            "clock_rate_ghz": self.clock_ghz,
        }
        major, minor = self.capability
        lines = [f"  {name}: {value}" for name, value in info.items()]
        lines.append(f"  cuda_compute_capability {{ major: {major} minor: {minor} }}")
        return "\n".join(
            (
                "gpu_device_info {",
                *lines,
                "}",
                'platform_name: "CUDA"',
                "dnn_version_info { major: 9 minor: 8 patch: 0 }",
                "runtime_version { major: 12 minor: 8 patch: 0 }",
                f'device_description_str: "{self.name}"',
            )
        )


GB, KIB, MIB, GIB = 10**9, 2**10, 2**20, 2**30

# Peaks and bandwidths are the data sheets', operations per cycle those of the matrix units
# (n x 128 x 128 x 2, or n x 256 x 256 x 2), memory what the compiler calls available.
_TPUS = (
    Tpu("v4", "tpu", 137.5e12, int(15.25 * GIB), 614e9, 3, 4 * 128**2 * 2, devices_per_chip=2),
    Tpu("v5e", "tpu", 197e12, int(15.75 * GIB), 819e9, 2, 4 * 128**2 * 2),
    Tpu("v5p", "tpu", 459e12, int(95.74 * GIB), 2765e9, 3, 8 * 128**2 * 2),
    Tpu("v6e", "tpu", 918e12, int(31.25 * GIB), 1640e9, 2, 4 * 256**2 * 2),
)
_AMPERE = {"capability": (8, 0), "lanes": 64, "shared_memory": 164 * KIB, "threads": 2048}
_ADA = {"capability": (8, 9), "lanes": 128, "shared_memory": 100 * KIB, "threads": 1536}
_HOPPER = {"capability": (9, 0), "lanes": 128, "shared_memory": 228 * KIB, "threads": 2048}


def _gpu(
    name: str, peak: float, memory: int, bandwidth: float, family: dict[str, Any], **own: Any
) -> Gpu:
    return Gpu(name, "gpu", peak * 1e12, memory * GB, bandwidth * GB, **family, **own)


_GPUS = (
    _gpu(
        *("a100-40gb", 312, 40, 1555, _AMPERE),
        multiprocessors=108,
        l2_cache=40 * MIB,
        clock_ghz=1.41,
    ),
    _gpu(
        *("a100-80gb", 312, 80, 2039, _AMPERE),
        multiprocessors=108,
        l2_cache=40 * MIB,
        clock_ghz=1.41,
    ),
    _gpu(
        *("h100", 989, 80, 3350, _HOPPER),
        multiprocessors=132,
        l2_cache=50 * MIB,
        clock_ghz=1.98,
    ),
    _gpu(
        *("h200", 989, 141, 4800, _HOPPER),
        multiprocessors=132,
        l2_cache=50 * MIB,
        clock_ghz=1.98,
    ),
    _gpu(
        *("l4", 121, 24, 300, _ADA),
        multiprocessors=58,
        l2_cache=48 * MIB,
        clock_ghz=2.04,
    ),
    _gpu(
        *("rtx4090", 165, 24, 1008, _ADA),
        multiprocessors=128,
        l2_cache=72 * MIB,
        clock_ghz=2.52,
    ),
)
ACCELERATORS: dict[str, Accelerator] = {each.name: each for each in (*_TPUS, *_GPUS)}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Accelerators connected with each other: what ``--topology`` and ``--slices`` name."""

    text: str
    accelerator: Accelerator
    shape: tuple[int, ...]  # of a TPU slice in chips; of GPUs their number
    slices: int = 1

    @property
    def num_devices(self) -> int:
        per_chip = getattr(self.accelerator, "devices_per_chip", 1)
        return math.prod(self.shape) * self.slices * per_chip

    def devices(self) -> "list[jax.Device]":
        """The devices, where the compiler is installed (`environment`)."""
        from jax.experimental import topologies

        accelerator = self.accelerator
        if isinstance(accelerator, Gpu):
            # Partitions, hosts of each, GPUs of a host; eight GPUs share a host.
            each = min(self.shape[0], 8)
            found = topologies.get_topology_desc(
                platform="cuda",
                target_config=accelerator.target(),
                topology=f"1x{self.shape[0] // each}x{each}",
            )
            return list(found.devices)
        options: dict[str, Any] = _ONE_CHIP if math.prod(self.shape) == 1 else {}
        if self.slices > 1:
            options = {**options, "num_slices": self.slices}
        shape = "x".join(map(str, self.shape))
        return list(
            topologies.get_topology_desc(f"{accelerator.name}:{shape}", "tpu", **options).devices
        )


def parse_topology(text: str, slices: str = "1") -> Topology:
    """What the flags say, or a `UserError`.

    >>> parse_topology("v5e:4x4", "2").num_devices, parse_topology("h100:8").num_devices
    (32, 8)
    """
    if not text:
        raise UserError("--topology is not given; such as v5e:2x4, v5p:2x2x2 or h100:8")
    name, _, shape = text.partition(":")
    if name not in ACCELERATORS:
        raise UserError(
            f"--topology ({text!r}): {name!r} is unknown; {closest(name, ACCELERATORS)}"
        )
    accelerator = ACCELERATORS[name]
    if not (slices.isdecimal() and int(slices) >= 1):
        raise UserError(f"--slices ({slices!r}) must be a whole number from 1")
    if isinstance(accelerator, Tpu):
        form = "x".join("4" * accelerator.dimensions)
        lengths = re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape)
        if lengths is None or len(shape.split("x")) != accelerator.dimensions:
            raise UserError(f"--topology ({text!r}) must be {name}: and its shape, such as {form}")
        return Topology(text, accelerator, tuple(map(int, shape.split("x"))), int(slices))
    if not re.fullmatch(r"[1-9]\d*", shape):
        raise UserError(f"--topology ({text!r}) must be {name}: and a number of GPUs, such as 8")
    if int(slices) > 1:
        raise UserError(f"--slices ({slices}) is for TPUs; give all GPUs in --topology")
    if int(shape) > 8 and int(shape) % 8:
        raise UserError(f"--topology ({text!r}) must be a multiple of 8 GPUs, the GPUs of a host")
    return Topology(text, accelerator, (int(shape),))
