"""A gcloud for slices of local directories: one per worker, in which its commands are carried out.

Knows the part of ``gcloud compute tpus tpu-vm`` that scripts/tpu_pod.sh uses, with the flags,
errors and exit codes of Google Cloud SDK 528. ``$STAND_IN_ROOT`` holds the slices, and
``environment.json`` there what the machine image of a worker brings. The workers of a real slice
find each other through a metadata server; here SLURM's environment tells JAX who is who.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path

# JAX takes the port from the number of SLURM's job: the sum of the two.
FIRST_PORT = 2**16 - 2**12


class Slice:
    """A slice that may or may not exist."""

    def __init__(self, root: Path, name: str, zone: str) -> None:
        self.root = root
        self.folder = root / zone / name

    @property
    def state(self) -> str:
        file = self.folder / "state"
        return file.read_text() if file.exists() else "ABSENT"

    @property
    def workers(self) -> list[Path]:
        return sorted(self.folder.glob("worker-*"))

    def create(self, accelerator_type: str) -> None:
        for index in range(count_hosts(accelerator_type)):
            (self.folder / f"worker-{index}").mkdir(parents=True)
        (self.folder / "state").write_text("READY")

    def preempt(self) -> None:
        """Takes the machines away: what runs on them, and their disks."""
        lost = self.root / f"lost-{time.monotonic_ns()}"
        lost.mkdir()
        for worker in self.workers:
            worker.rename(lost / worker.name)
        (self.folder / "state").write_text("PREEMPTED")
        _end_processes(lost)
        shutil.rmtree(lost, ignore_errors=True)

    def delete(self) -> None:
        _end_processes(self.folder)
        shutil.rmtree(self.folder)

    def run(self, worker: Path, command: str) -> int:
        """Carries out a command as ssh would: in the home directory, with little environment."""
        image = json.loads((self.root / "environment.json").read_text())
        slurm = {
            "SLURM_JOB_ID": str(image.pop("port") - FIRST_PORT),
            "SLURM_STEP_NODELIST": "127.0.0.1",
            "SLURM_NTASKS": str(len(self.workers)),
            "SLURM_PROCID": worker.name.removeprefix("worker-"),
            "SLURM_LOCALID": "0",
        }
        environment = {"HOME": str(worker)} | image | slurm
        return subprocess.run(["bash", "-c", command], cwd=worker, env=environment).returncode


def _end_processes(folder: Path) -> None:
    """Kills what runs on the workers in `folder`, each with its process group."""
    for file in folder.glob("worker-*/cone_jax_run/pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)


def count_hosts(accelerator_type: str) -> int:
    """Machines of a slice. The number in a type is that of chips, or of cores before v5e.

    >>> [count_hosts(name) for name in ("v4-16", "v5litepod-8", "v5litepod-16", "v5p-8")]
    [2, 1, 4, 1]
    """
    found = re.fullmatch(r"(v2|v3|v4|v5p|v5litepod|v6e)-(\d+)", accelerator_type)
    if found is None:
        fail("create", f"INVALID_ARGUMENT: accelerator type {accelerator_type!r}")
    generation, number = found[1], int(found[2])
    if generation in ("v5litepod", "v6e"):
        return 1 if number <= 8 else number // 4
    return max(number // 8, 1)


def fail(verb: str, reason: str) -> None:
    sys.exit(f"ERROR: (gcloud.compute.tpus.tpu-vm.{verb}) {reason}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gcloud", allow_abbrev=False)
    for word in ("compute", "tpus", "tpu-vm"):
        parser.add_argument(word, choices=[word])
    verbs = parser.add_subparsers(dest="verb", required=True)
    flags = {
        "create": ("accelerator-type", "version", "network"),
        "describe": ("format",),
        "delete": (),
        "scp": ("worker",),
        "ssh": ("worker", "command"),
    }
    for verb, names in flags.items():
        each = verbs.add_parser(verb, allow_abbrev=False)
        for name in ("zone", *names):
            each.add_argument(f"--{name}", required=name != "network")
        each.add_argument("--project")
        if verb == "scp":
            each.add_argument("source")
        each.add_argument("name")
        if verb in ("create", "delete"):
            switch = {"create": "--spot", "delete": "--quiet"}[verb]
            each.add_argument(switch, action="store_true", required=verb == "delete")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    root, verb = Path(os.environ["STAND_IN_ROOT"]), arguments.verb
    with (root / "calls.jsonl").open("a") as file:
        file.write(json.dumps(sys.argv[4:]) + "\n")
    name, _, target = arguments.name.partition(":")
    node = Slice(root, name, arguments.zone)
    if verb == "create":
        if node.state != "ABSENT":
            fail(verb, f"ALREADY_EXISTS: Resource {name!r} already exists")
        if (root / "no_capacity").exists():
            (root / "no_capacity").unlink()
            fail(verb, "RESOURCE_EXHAUSTED: There is no more capacity in the zone")
        node.create(arguments.accelerator_type)
        return 0
    if node.state == "ABSENT":
        fail(verb, f"NOT_FOUND: Resource {name!r} was not found")
    if verb == "describe":
        print(node.state)
        return 0
    if verb == "delete":
        node.delete()
        return 0
    if node.state != "READY":
        fail(verb, f"the TPU is in state {node.state} and cannot be used")
    chosen = [w for w in node.workers if arguments.worker in ("all", w.name[len("worker-") :])]
    if verb == "scp":
        for worker in chosen:
            shutil.copy(arguments.source, worker / target)
        return 0
    with futures.ThreadPoolExecutor(len(chosen)) as pool:
        codes = list(pool.map(lambda worker: node.run(worker, arguments.command), chosen))
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
