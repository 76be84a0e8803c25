"""Data sets by name: random access to encoded images or pixels, and their labels."""

from cone_jax.data.sources.registry import CachedSource, create, names, open_source
from cone_jax.data.sources.source import Record, Source

__all__ = ["CachedSource", "Record", "Source", "create", "names", "open_source"]
