"""What a compiled program says about itself: cycles, collectives, copies of whole buffers.

A TPU's program carries ``estimated_cycles`` on nearly every instruction. They are the compiler's
own estimate, without sorts, collectives and the host. A GPU's program carries none.
"""

import collections
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_BITS = {"pred": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128}

# The parts of a training step, by words of an instruction's scope; the first that is there counts.
_PARTS = (
    ("RoIAlign", r"roi_align"),
    ("NMS", r"\bnms\b"),
    ("gradient", r"transpose\("),
    ("detector forward", r"jvp\(Detector"),
    ("query forward", r"jvp\(Encoder\)"),
    ("key forward", r"/Encoder/"),
)


class Instruction(NamedTuple):
    """One line of a program, and how often it is executed."""

    kind: str  # such as ``fusion``
    result: str  # its shape, with layout
    scope: str  # the names of JAX's operations it comes from
    cycles: int  # all times together; 0 where the compiler estimates none
    times: int
    synchronous: bool = False  # starts, but is waited for at once
    chain: str = ""  # of a collective that several fusions take part in, which it is
    between_slices: str = ""  # of a transfer that the hosts carry, what it is a part of


class Collective(NamedTuple):
    """A transfer between devices."""

    kind: str
    bytes: int  # of the results on one device
    times: int  # per step
    asynchronous: bool
    scope: str


class StateCopy(NamedTuple):
    """A copy of a whole buffer of the state."""

    shape: str
    bytes: int
    cycles: int
    scope: str


class Program:
    """The text of a compiled program, taken apart."""

    def __init__(self, text: str) -> None:
        self._computations, self._entry = _split(text)
        self.instructions = tuple(self._walk(self._entry, 1))

    @property
    def cycles(self) -> int:
        """The compiler's estimate of the whole program."""
        return sum(each.cycles for each in self.instructions)

    def cycles_by_part(self) -> dict[str, int]:
        """The estimate of forward passes, gradient and the rest."""
        parts: dict[str, int] = collections.Counter()
        for each in self.instructions:
            found = (name for name, words in _PARTS if re.search(words, each.scope))
            parts[next(found, "rest")] += each.cycles
        return dict(parts)

    def without_estimate(self) -> dict[str, int]:
        """Sorts, which carry no estimate, by the shape that is sorted."""
        sorts = (each for each in self.instructions if each.kind == "sort")
        return dict(collections.Counter(_shapes(each.result)[0] for each in sorts))

    def collectives(self) -> list[Collective]:
        """Every collective, the largest first."""
        found, chains = [], set()
        for each in self.instructions:
            base = each.kind.removesuffix("-start")
            if each.kind == "recv" and each.between_slices:
                size = shape_bytes(_shapes(each.result)[0])
                name = f"{each.between_slices} between slices"
                found.append(Collective(name, size, each.times, True, each.scope))
            elif base in COLLECTIVES and each.chain not in chains:
                chains |= {each.chain} - {""}
                starts = each.kind.endswith("-start")
                shapes = _shapes(each.result)
                if starts and base != "all-reduce" and len(shapes) > 1:
                    shapes = shapes[len(shapes) // 2 :]  # operands stand before the results
                size = sum(map(shape_bytes, shapes))
                overlaps = bool(each.chain) or (starts and not each.synchronous)
                found.append(Collective(base, size, each.times, overlaps, each.scope))
        return sorted(found, key=lambda each: (-each.bytes * each.times, each.kind, each.scope))

    def state_copies(self, shapes: Sequence[str], least_bytes: int = 2**20) -> list[StateCopy]:
        """Copies of buffers with one of these shapes, such as ``f32[65536,1000]``.

        A copy into another memory space is a buffer on its way to the arithmetic, and not meant.
        Buffers below `least_bytes` are too small to matter, and their shapes are everybody's.
        """
        large = {shape for shape in shapes if shape_bytes(shape) >= least_bytes}
        found = []
        for each in self.instructions:
            if each.kind not in ("copy", "transpose") or "S(" in each.result:
                continue
            shape = _shapes(each.result)[0]
            if shape in large:
                found.append(StateCopy(shape, shape_bytes(shape), each.cycles, each.scope))
        return found

    def count(self, pattern: str) -> int:
        """How many instructions have something that matches `pattern` in their line."""
        lines = (line for lines in self._computations.values() for line in lines)
        return sum(re.search(pattern, line) is not None for line in lines)

    def _walk(self, name: str, times: int) -> Iterator[Instruction]:
        for line in self._computations.get(name, ()):
            match = re.match(r"\s+(?:ROOT )?%?\S+ = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)", line)
            if match is None:
                continue
            result, kind, rest = match.groups()
            cycles = re.search(r'estimated_cycles":"(\d+)"', rest)
            scope = re.search(r'op_name="([^"]*)"', rest)
            own = int(cycles[1]) * times if cycles else 0
            transfer = re.search(r'_xla_megascale_transfer_type="(\w+)"', rest)
            yield Instruction(
                kind,
                result,
                scope[1] if scope else "",
                own,
                times,
                synchronous='"is_sync":true' in rest,
                chain=_chain(rest),
                between_slices=transfer[1].lower().replace("_", "-") if transfer else "",
            )
            yield from self._walk_called(kind, rest, times)

    def _walk_called(self, kind: str, rest: str, times: int) -> Iterator[Instruction]:
        if kind == "while":
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', rest)
            body = re.search(r"body=%?([\w.\-]+)", rest)
            if body:
                yield from self._walk(body[1], times * int(trips[1] if trips else 1))
        elif kind == "conditional":
            listed = re.search(r"branch_computations=\{([^}]*)\}", rest)
            names = listed[1] if listed else ",".join(re.findall(r"_computation=%?[\w.\-]+", rest))
            branches = [
                tuple(self._walk(name.split("=")[-1].strip(" %"), times))
                for name in filter(None, names.split(","))
            ]
            # One of them is taken: the dearest is what to expect.
            yield from max(branches, key=lambda taken: sum(each.cycles for each in taken))
        elif kind == "call":
            called = re.search(r"to_apply=%?([\w.\-]+)", rest)
            if called:
                yield from self._walk(called[1], times)
        elif kind in ("fusion", "async-start"):
            # A fusion has one estimate for all; what it may hide is a collective.
            called = re.search(r"calls=%?([\w.\-]+)", rest)
            for inner in self._walk(called[1], times) if called else ():
                if inner.kind.removesuffix("-start") in COLLECTIVES:
                    yield inner._replace(cycles=0)


def _chain(rest: str) -> str:
    """The asynchronous collective that this line is a part of.

    A TPU executes such a collective in several fusions, each of which names it. Its channel does
    not identify it: all collectives of a `shard_map` share one.
    """
    chain = re.search(r'chain_id="(\d+)"', rest)
    channel = re.search(r"channel_id=(\d+)", rest)
    if chain is None or channel is None or "async_collective_fusion_config" not in rest:
        return ""
    return f"{channel[1]}/{chain[1]}"


def shape_bytes(shape: str) -> int:
    """The size of an array without padding.

    >>> shape_bytes("f32[65536,1000]"), shape_bytes("bf16[8]"), shape_bytes("s32[]")
    (262144000, 16, 4)
    """
    dtype, _, dims = shape.rstrip("]").partition("[")
    bits = _BITS.get(dtype) or int(re.sub(r"\D", "", dtype) or 0)
    return math.prod(map(int, filter(None, dims.split(",")))) * bits // 8


def _shapes(result: str) -> list[str]:
    """The arrays of a result, without layouts."""
    return re.findall(r"[a-z]+[0-9]*\[[\d,]*\]", result)


def _split(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation, and which of them is the program."""
    found: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
        if head:
            current = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif current is not None and line.startswith("  "):
            current.append(line)
    return found, entry
