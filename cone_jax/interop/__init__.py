"""Weights and graphs to and from other ecosystems."""

from cone_jax.interop.exported_model import ExportedModel, open_export
from cone_jax.interop.exporting import FORMATS, export
from cone_jax.interop.importing import ImportReport, IncompleteImport, load_initial
from cone_jax.interop.metadata import ExportFailed, ExportMetadata

__all__ = [
    "FORMATS",
    "ExportFailed",
    "ExportMetadata",
    "ExportedModel",
    "ImportReport",
    "IncompleteImport",
    "export",
    "load_initial",
    "open_export",
]
