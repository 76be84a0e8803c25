"""The compilers of TPUs and GPUs: packages in folders of their own, installed on request.

They must not be in the environment that trains on CPUs: with libtpu there, JAX looks for a TPU at
every start. So each compiler is in a folder that only the processes of `--mode=compile` have on
their path; everything else they share with the environment they belong to.

    python -m cone_jax.compilation.environment [tpu] [gpu]    # what `make compilers` runs
"""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import cone_jax
from cone_jax.console import Report
from cone_jax.errors import Failure, UserError

KINDS = ("tpu", "gpu")
# The JAX whose compilers are pinned.
JAX_VERSION = "0.10.2"
# Another place for the folders, for installations that cannot be written to.
VARIABLE = "CONE_JAX_COMPILERS"


class NoSuchPackage(Failure):
    """The package index has no compiler for this machine."""


def requirements(kind: str) -> Path:
    """The file that pins the packages of a compiler."""
    return Path(__file__).parent / f"requirements-{kind}.txt"


def folder(kind: str) -> Path:
    """Where a compiler is, or will be: a new place for new pins."""
    base = os.environ.get(VARIABLE)
    digest = hashlib.sha256(requirements(kind).read_bytes()).hexdigest()[:12]
    return (Path(base) if base else Path(sys.prefix, "compilers")) / f"{kind}-{digest}"


def install(kind: str, say: Report) -> Path:
    """Makes sure that a compiler is there; returns its folder."""
    place = folder(kind)
    if place.is_dir():
        return place
    found = importlib.metadata.version("jax")
    if found != JAX_VERSION:
        raise UserError(
            f"jax ({found}) must be {JAX_VERSION}, whose compilers are pinned; "
            f"pip install jax=={JAX_VERSION}"
        )
    say(f"installing the {kind.upper()} compiler into {place} (once, several hundred megabytes)")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=place.parent))
    except OSError as error:
        raise UserError(
            f"{place.parent} cannot be written: {error.strerror}; set {VARIABLE} to another folder"
        ) from error
    try:
        _fill(unfinished, kind)
        # Of several at a time the first wins.
        if not place.is_dir():
            unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return place


def _fill(target: Path, kind: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--target", str(target), "--requirement", str(requirements(kind))]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip failed"]
    if any("No matching distribution" in line for line in lines):
        raise NoSuchPackage(f"the package index has no {kind.upper()} compiler: {lines[-1]}")
    raise Failure(f"the {kind.upper()} compiler could not be installed: {lines[-1]}")


def process_environment(kind: str) -> dict[str, str]:
    """The variables of a process that compiles for `kind`."""
    root = str(Path(cone_jax.__file__).parent.parent)
    paths = (root, str(folder(kind)), os.environ.get("PYTHONPATH"))
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "JAX_PLATFORMS": "cpu",  # of the process; the programs are for described devices
        "JAX_NUM_CPU_DEVICES": "1",
    }
    if kind == "tpu":
        settings |= {
            "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to ask
            "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # this and the next silence errors
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
    # The flags of this project's CPU programs, and a cache that cannot hold these ones.
    dropped = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**inherited, **settings}


def main(kinds: Sequence[str]) -> int:
    """Installs the compilers of these kinds; a missing package is reported and not a failure."""
    for kind in kinds or KINDS:
        if kind not in KINDS:
            print(f"error: {kind!r} is not a compiler; choose from {', '.join(KINDS)}")
            return 2
        try:
            print(f"{kind}: {install(kind, print)}")
        except NoSuchPackage as error:
            print(f"{error}; its tests will be left out")
        except (UserError, Failure) as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
