"""The forms of a network's operations that XLA:CPU computes fastest; the same numbers."""
