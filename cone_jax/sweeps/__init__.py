"""Many runs of one recipe with different settings, and the table of their results."""

from cone_jax.sweeps.definition import Axis, Cell, Sweep, base_config, grid, load_sweep
from cone_jax.sweeps.paper_sweeps import paper_grid, paper_sweep

__all__ = [
    "Axis",
    "Cell",
    "Sweep",
    "base_config",
    "grid",
    "load_sweep",
    "paper_grid",
    "paper_sweep",
]
