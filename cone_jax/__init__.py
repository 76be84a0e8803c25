"""CoNe, Contrast Your Neighbours: supervised image classification in JAX."""

__version__ = "0.1.0"
