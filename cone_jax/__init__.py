"""CoNe, Contrast Your Neighbours: supervised image classification in JAX.

    import cone_jax

    config = cone_jax.load_recipe("digits", "cross_entropy")
    cone_jax.train(config, "runs/digits")
    model = cone_jax.open_model("runs/digits")

Public names are imported when they are first used: importing the package loads nothing else, and
in particular not JAX, so `runtime.set_up` can still configure it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see
    from cone_jax import (
        config,
        detection,
        interop,
        losses,
        memory_bank,
        models,
        momentum,
        objectives,
        prediction,
        runtime,
        sweeps,
        training,
    )
    from cone_jax.config import load_recipe
    from cone_jax.prediction import open_model
    from cone_jax.training import train

__version__ = "0.2.0"

__all__ = [
    "__version__",
    "config",
    "detection",
    "interop",
    "load_recipe",
    "losses",
    "memory_bank",
    "models",
    "momentum",
    "objectives",
    "open_model",
    "prediction",
    "runtime",
    "sweeps",
    "train",
    "training",
]

# Where to find the names that are not modules themselves.
_HOMES = {"load_recipe": "config", "open_model": "prediction", "train": "training"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES.get(name, name)}")
    return getattr(module, name) if name in _HOMES else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
