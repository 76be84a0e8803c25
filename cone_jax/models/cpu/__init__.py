"""The forms of a network's operations that XLA:CPU computes fastest; the same numbers.

`cone_jax.models.layers.Layers` chooses them, and nothing else does: for a network that is made for
the platform ``cpu``.
"""
