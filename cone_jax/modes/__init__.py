"""The modes of `main.py`: one file each, from parsed arguments to output."""

from cone_jax.modes.registry import MODES, Mode

__all__ = ["MODES", "Mode"]
