"""Settings of the JAX runtime that must be made before its first computation."""

import os
from importlib import metadata
from pathlib import Path

# XLA:CPU hands convolutions to a library that is slower than its own code; the minus sign takes
# that one fusion out and leaves the others. XLA aborts on options it does not know, so the flag is
# given only to the releases it was measured with.
CPU_CONVOLUTION_FLAG = "--xla_cpu_experimental_ynn_fusion_type"
CPU_CONVOLUTION_VALUE = "-individual_convolution"
MEASURED_JAXLIB = "0.10."


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
