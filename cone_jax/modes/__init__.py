"""What `main.py` can do: one file per mode, from parsed arguments to output."""

from cone_jax.modes.registry import MODES, Mode

__all__ = ["MODES", "Mode"]
