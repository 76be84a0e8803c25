"""What the compilers said about a run, for a person (``compile.md``) and a program (``.json``)."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cone_jax import storage
from cone_jax.analysis.tables import markdown_table
from cone_jax.compilation import programs
from cone_jax.compilation.accelerators import Gpu, Topology
from cone_jax.compilation.compiler import Answer, DataShape
from cone_jax.console import duration, readable
from cone_jax.training.cures import Cure

JSON_FILE, TEXT_FILE = "compile.json", "compile.md"

# What one core reads, augments and batches per second: docs/performance.md, measured on 2026-11-17
# by benchmarks/input_pipeline.py. By the least image size it holds for, plain and augmented.
INPUT_RATES = {96: (746, 570), 0: (33_770, 33_770)}
# The share of a GPU's memory that JAX takes, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
GPU_SHARE = 0.75
PLAIN_TRANSFORMS = 2  # a crop and a flip
NOT_CONTAINED = "sorts, collectives and the host are not in it"


@dataclasses.dataclass(frozen=True)
class Findings:
    """The answers of the compiler, and what follows from them."""

    recipe: str
    config: ConfigDict
    topology: Topology
    data: DataShape
    answers: Mapping[str, Answer]
    cures: Sequence[Cure] = ()

    @property
    def state(self) -> Mapping[str, int]:
        """Bytes of one device that the state of training holds, by part."""
        return self.answers[programs.TRAINING]["state"]

    @property
    def fits(self) -> bool:
        return all(self.fits_in(program) for program in self.answers)

    def fits_in(self, program: str) -> bool:
        answer = self.answers[program]
        return "exhausted" not in answer and self.needed(program) <= answer["limit"]

    def needed(self, program: str) -> int:
        """Bytes of one device; a lower bound if the program could not be compiled."""
        answer = self.answers[program]
        if "exhausted" in answer:
            return max(answer["needed"] or 0, programs.total(answer["state"]))
        return programs.total(self.memory(program))

    def memory(self, program: str) -> dict[str, int]:
        """Bytes of one device by part. The state stays where it is during an evaluation."""
        answer = self.answers[program]
        parts = dict(answer["state"])
        if "exhausted" in answer:
            return parts
        held = programs.total(parts)
        if program != programs.EVALUATION:
            # Arguments are the state, the batch, and what layouts pad them with.
            parts["batch and padding"] = max(answer["arguments"] - held, 0)
        else:
            parts["batch and padding"] = max(answer["arguments"] - parts["parameters"], 0)
        parts["results"] = answer["results"]
        parts["temporaries"] = answer["temporaries"]
        parts["program"] = answer["program"]
        return parts

    @property
    def steps(self) -> int:
        """Of the first stage; 0: not known."""
        config = self.config
        if config.steps:
            return int(config.steps)
        if not self.data.train_images:
            return 0
        per_epoch = self.data.train_images / config.batch_size
        if config.data.last_batch == "drop":
            per_epoch = self.data.train_images // config.batch_size
        return round(config.epochs * per_epoch)

    def record(self) -> dict[str, Any]:
        """What ``compile.json`` holds."""
        step = self.answers[programs.TRAINING]
        devices, estimate = self.topology.num_devices, step.get("estimate_ms")
        limit = step["limit"]
        return {
            "recipe": self.recipe,
            "topology": self.topology.text,
            "slices": self.topology.slices,
            "devices": devices,
            "fits": self.fits,
            "memory": {
                **self.memory(programs.TRAINING),
                "needed": self.needed(programs.TRAINING),
                "limit": limit,
            },
            "estimate_ms": estimate,
            "estimate_ms_by_part": step.get("estimate_ms_by_part"),
            "flops": step.get("flops"),
            "bytes_accessed": step.get("bytes_accessed"),
            "collectives": step.get("collectives", []),
            "state_copies": step.get("state_copies", []),
            "without_estimate": step.get("without_estimate", {}),
            "convolutions": step.get("convolutions"),
            "steps": self.steps or None,
            "run_chip_hours": self._chip_hours(estimate),
            "images_per_second": self._images_per_second(estimate),
            "host_cores": self._host_cores(estimate),
            "programs": {
                name: {
                    "fits": self.fits_in(name),
                    "needed": self.needed(name),
                    "memory": self.memory(name),
                    "estimate_ms": answer.get("estimate_ms"),
                    "exhausted": answer.get("exhausted"),
                }
                for name, answer in self.answers.items()
            },
            "cures": [dataclasses.asdict(cure) for cure in self.cures],
        }

    def _chip_hours(self, estimate: float | None) -> float | None:
        if not (estimate and self.steps):
            return None
        chips = self.topology.num_devices / getattr(
            self.topology.accelerator, "devices_per_chip", 1
        )
        return self.steps * estimate / 3.6e6 * chips

    def _images_per_second(self, estimate: float | None) -> float | None:
        """Augmented pictures that the hosts must make."""
        config = self.config
        return config.batch_size * config.data.views / estimate * 1e3 if estimate else None

    def _rate(self) -> int:
        data = self.config.data
        plain, augmented = next(
            rates for least, rates in INPUT_RATES.items() if data.image_size >= least
        )
        return augmented if len(data.train_transforms) > PLAIN_TRANSFORMS else plain

    def _host_cores(self, estimate: float | None) -> float | None:
        """None also for pictures with objects, since their reading speed was not measured."""
        images = self._images_per_second(estimate)
        if not images or programs.has_objects(self.config):
            return None
        return images / self._rate()

    def text(self) -> str:
        """What ``compile.md`` holds, and the terminal shows."""
        record, topology = self.record(), self.topology
        slices = f" in {topology.slices} slices" if topology.slices > 1 else ""
        lines = [
            f"# {self.recipe} on {topology.text}{slices}, {topology.num_devices} devices",
            "",
            "Compiled by the device's own compiler; nothing was run.",
            "",
            self._verdict(),
            "",
            "Memory of one device:",
            "",
            self._memory_table(),
            "",
            *self._speed(record),
            "",
            *self._transfers(record),
        ]
        if self.cures:
            lines += ["", "Fields to change, cheapest first:", "", self._cure_table()]
        return "\n".join(lines) + "\n"

    def _verdict(self) -> str:
        limit = self.answers[programs.TRAINING]["limit"]
        most = max(map(self.needed, self.answers))
        failed = [name for name in self.answers if not self.fits_in(name)]
        if failed:
            return (
                f"**It does not fit**: the {failed[0]} needs {readable(self.needed(failed[0]))} "
                f"of the {readable(limit)} of a device."
            )
        line = f"**It fits**: {readable(most)} of the {readable(limit)} of a device."
        if isinstance(self.topology.accelerator, Gpu):
            line += " A lower bound: cuDNN's workspaces come on top."
            if most > GPU_SHARE * limit:
                line += " More than JAX takes by itself: set XLA_PYTHON_CLIENT_MEM_FRACTION=0.95."
        return line

    def _memory_table(self) -> str:
        columns = {name: self.memory(name) for name in self.answers}
        parts = list(dict.fromkeys(part for held in columns.values() for part in held))
        shown = [part for part in parts if any(held.get(part) for held in columns.values())]
        rows = [
            [part, *(readable(held[part]) if part in held else "?" for held in columns.values())]
            for part in shown
        ]
        needed = (
            ("at least " if "exhausted" in self.answers[name] else "") + readable(self.needed(name))
            for name in columns
        )
        return markdown_table(["", *columns], [*rows, ["all", *needed]])

    def _speed(self, record: Mapping[str, Any]) -> list[str]:
        step, estimate = self.answers[programs.TRAINING], record["estimate_ms"]
        if "exhausted" in step:
            return [f"No estimate of a step that does not fit. The compiler: {step['exhausted']}"]
        if estimate is None:
            return ["No estimate of time: a GPU's compiler makes none without the device."]
        parts = ", ".join(f"{part} {ms:.2f}" for part, ms in record["estimate_ms_by_part"].items())
        lines = [
            f"A step takes {estimate:.1f} ms by the compiler's estimate ({parts}); "
            f"{NOT_CONTAINED}. {record['flops'] / 1e9:,.0f} GFLOP and "
            f"{record['bytes_accessed'] / 1e9:.1f} GB of memory traffic per device."
        ]
        for name in (programs.EVALUATION, programs.LINEAR):
            other = self.answers.get(name, {}).get("estimate_ms")
            if other:
                lines.append(f"The {name} takes {other:.1f} ms, an estimate likewise.")
        if record["run_chip_hours"]:
            seconds = record["steps"] * estimate / 1e3
            lines.append(
                f"The {record['steps']:,} steps of training take {duration(seconds)} or "
                f"{record['run_chip_hours']:,.1f} chip-hours, an estimate from the same number."
            )
        cores = "how many cores that takes was not measured for pictures with objects."
        if record["host_cores"] is not None:
            cores = (
                f"{record['host_cores']:,.1f} cores at the {self._rate():,} images per second and "
                "core that benchmarks/input_pipeline.py measured."
            )
        feed = f"The hosts must feed {record['images_per_second']:,.0f} images per second"
        lines.append(f"{feed}: {cores}")
        return lines

    def _transfers(self, record: Mapping[str, Any]) -> list[str]:
        copies, collectives = record["state_copies"], record["collectives"]
        lines = [
            f"Copies of a whole buffer of the state: {len(copies) or 'none'}."
            + "".join(f" {copy['shape']} ({copy['scope'] or 'result'})." for copy in copies)
        ]
        if not collectives:
            return [*lines, "No collectives."]
        rows = []
        for kind in dict.fromkeys(each["kind"] for each in collectives):
            these = [each for each in collectives if each["kind"] == kind]
            rows.append(
                [
                    kind,
                    str(sum(each["times"] for each in these)),
                    str(sum(each["times"] for each in these if each["asynchronous"])),
                    readable(sum(each["bytes"] * each["times"] for each in these)),
                    readable(max(each["bytes"] for each in these)),
                ]
            )
        head = ["collective", "per step", "asynchronous", "bytes on a device", "largest"]
        return [*lines, "", markdown_table(head, rows)]

    def _cure_table(self) -> str:
        rows = [[cure.field, cure.value, _saving(cure), cure.price] for cure in self.cures]
        return markdown_table(["field", "value", "saves", "costs"], rows)


def _saving(cure: Cure) -> str:
    if cure.saves is None:
        return "not compiled"
    enough = {True: ", and then it fits", False: ", which is not enough", None: ""}[cure.fits]
    return f"{readable(cure.saves)}{enough if cure.compiled else ' of the state'}"


def write(findings: Findings, directory: Path) -> list[Path]:
    """Writes both files."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
        JSON_FILE: json.dumps(findings.record(), indent=2) + "\n",
        TEXT_FILE: findings.text(),
    }
    for name, text in texts.items():
        with storage.replacing(directory / name) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    return [directory / name for name in texts]
