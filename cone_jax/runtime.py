"""Settings of the JAX runtime that must be made before its first computation."""

import ctypes
import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path

# XLA:CPU hands convolutions to a library that is slower than its own code; the minus sign takes
# that one fusion out and leaves the others. XLA aborts on options it does not know, so the flag is
# given only to the releases it was measured with.
CPU_CONVOLUTION_FLAG = "--xla_cpu_experimental_ynn_fusion_type"
CPU_CONVOLUTION_VALUE = "-individual_convolution"  # all but this fusion
MEASURED_JAXLIB = "0.10."  # those releases

# Of malloc.h: nothing from mmap, nothing given back, one arena.
M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX = -4, -1, -8
MALLOC_OPTIONS = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_ARENA_MAX: 1}  # and their values
# With less, a faster step is not worth a process of twice the size: a laptop has 8 GB.
MEMORY_TO_SPARE = 20 * 2**30
ACCELERATOR_PACKAGES = ("libtpu", "jax_plugins")  # JAX finds a device with one of them


def set_up() -> None:
    """Makes all settings of this module. Call it before anything imports JAX.

    Whatever the user has set in the environment stays as it is.

        import cone_jax

        cone_jax.runtime.set_up()
        import jax
    """
    keep_freed_memory()
    use_fast_cpu_convolutions()
    use_compilation_cache()


def use_fast_cpu_convolutions() -> None:
    """Chooses the faster convolutions of XLA:CPU, by a flag in XLA_FLAGS.

    Without effect if the user has set that flag, or with a jaxlib that was not measured.

        import cone_jax

        cone_jax.runtime.use_fast_cpu_convolutions()
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if CPU_CONVOLUTION_FLAG in flags or not metadata.version("jaxlib").startswith(MEASURED_JAXLIB):
        return
    os.environ["XLA_FLAGS"] = f"{flags} {CPU_CONVOLUTION_FLAG}={CPU_CONVOLUTION_VALUE}".strip()


def use_compilation_cache(directory: Path | None = None) -> None:
    """Keeps compiled programs between starts, in the user's cache directory by default.

    Without effect if JAX_COMPILATION_CACHE_DIR is already set.

        import cone_jax

        cone_jax.runtime.use_compilation_cache(Path("compiled"))

    Args:
        directory: where to keep them; None: `cache_directory` / ``xla``.
    """
    directory = directory or cache_directory() / "xla"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(directory))


def physical_memory() -> int:
    """The bytes of memory of the machine or its container; 0 if the system does not say.

    >>> physical_memory() >= 0
    True
    """
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    return min(machine, *_container_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))


def _container_limits(own: Path, root: Path) -> tuple[int, ...]:
    """The limits of this process's control groups in Linux: at least one, however large."""
    try:
        groups = [line.rstrip().split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        groups = []
    files = [root / "memory.max", root / "memory/memory.limit_in_bytes"]
    for number, controllers, name in (group for group in groups if len(group) == 3):
        below = Path(name.lstrip("/"))
        if number == "0":  # version 2: one tree
            files += [root / each / "memory.max" for each in (below, *below.parents)]
        elif "memory" in controllers.split(","):
            files += [
                root / "memory" / each / "memory.limit_in_bytes" for each in (below, *below.parents)
            ]
    limits = [2**63]
    for file in files:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return tuple(limits)


def cache_directory() -> Path:
    """The folder for files that this package can make or fetch again.

    >>> cache_directory().name
    'cone_jax'
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cone_jax"


def keep_freed_memory() -> None:
    """Lets the C library keep freed memory for its next use.

    XLA:CPU allocates its temporaries anew in every step. Fetching them from the system page by
    page, and giving them back, costs up to a fifth of a step. All threads share one arena, since
    a step may run in another thread than the last one. The price: the process stays as large as
    it once was, and grows to several times what a step needs.

    Without effect if memory is short, if the user has set the library's options, if the library
    is not glibc, or if JAX has an accelerator.

        import cone_jax

        cone_jax.runtime.keep_freed_memory()
    """
    if physical_memory() < MEMORY_TO_SPARE:
        return
    if any(importlib.util.find_spec(name) for name in ACCELERATOR_PACKAGES):
        return
    chosen = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in MALLOC_OPTIONS.items():
            mallopt(option, value)
        _keeps_freed_memory.append(True)


_keeps_freed_memory: list[bool] = []  # once it does


def expected_memory(needed: int) -> int:
    """A rough estimate of the memory that a process takes to train on a CPU.

    Python, JAX and pictures being decoded take about 1 GiB. The C library's heap takes 1.5 times
    the step's temporaries, since it is fragmented, and 4 times if it keeps freed memory:
    docs/own_images.md has the measurements.

    Args:
        needed: bytes that the state and the temporaries of a step take.

    Returns:
        Bytes of the whole process.

    >>> expected_memory(0) // 2**20  # before there is a step
    1024
    """
    return 2**30 + int(needed * (4.0 if _keeps_freed_memory else 1.5))
