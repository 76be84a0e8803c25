"""Data sets by name: random access to encoded images or pixels, and their labels."""

from cone_jax.data.sources.registry import CachedSource, create, has_objects, names, open_source
from cone_jax.data.sources.source import OBJECTS, Record, Source, file_name

__all__ = [
    "OBJECTS",
    "CachedSource",
    "Record",
    "Source",
    "create",
    "file_name",
    "has_objects",
    "names",
    "open_source",
]
