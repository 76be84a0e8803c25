"""Settings of the JAX runtime that must be made before its first computation."""

import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path

# XLA:CPU hands convolutions to a library that is slower than its own code; the minus sign takes
# that one fusion out and leaves the others. XLA aborts on options it does not know, so the flag is
# given only to the releases it was measured with.
CPU_CONVOLUTION_FLAG = "--xla_cpu_experimental_ynn_fusion_type"
CPU_CONVOLUTION_VALUE = "-individual_convolution"
MEASURED_JAXLIB = "0.10."

HUGE_PAGES_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGES_OPTION = "glibc.malloc.hugetlb"
ACCELERATOR_PACKAGES = ("libtpu", "jax_plugins")


def use_fast_cpu_convolutions() -> None:
    """Adds the flag to XLA_FLAGS, unless the user has set it."""
    flags = os.environ.get("XLA_FLAGS", "")
    if CPU_CONVOLUTION_FLAG in flags or not metadata.version("jaxlib").startswith(MEASURED_JAXLIB):
        return
    os.environ["XLA_FLAGS"] = f"{flags} {CPU_CONVOLUTION_FLAG}={CPU_CONVOLUTION_VALUE}".strip()


def use_compilation_cache(directory: Path | None = None) -> None:
    """Keeps compiled programs between starts, in the user's cache directory by default.

    Without effect where JAX_COMPILATION_CACHE_DIR is set already.
    """
    if directory is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(base) / "cone_jax" / "xla"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(directory))


def use_huge_pages() -> None:
    """Starts this program again with huge pages for large blocks of memory, unless it has them.

    XLA:CPU takes its temporaries from the system anew in every step. In pages of 4 KiB, where
    the kernel gives larger ones on request only, fetching them costs a tenth to a fifth of a
    step. The C library asks for them if told to when a program starts, not later, hence again:
    same process, same arguments. Without effect where the user has set the option, where the
    kernel needs no request or refuses it, on other systems than Linux, and where JAX has an
    accelerator.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if any(importlib.util.find_spec(name) for name in ACCELERATOR_PACKAGES):
        return
    try:
        on_request = "[madvise]" in HUGE_PAGES_SETTING.read_text()
    except OSError:
        return
    if HUGE_PAGES_OPTION in tunables or not on_request:
        return
    option = f"{HUGE_PAGES_OPTION}=1"
    os.environ["GLIBC_TUNABLES"] = f"{tunables}:{option}" if tunables else option
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
