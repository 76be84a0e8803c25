"""What `main.py` can do: one file a mode, from parsed arguments to output."""

from cone_jax.modes.registry import MODES, Mode

__all__ = ["MODES", "Mode"]
