"""Whether a checkpoint belongs to the state that a config describes, and if not, what differs."""

from collections.abc import Mapping
from typing import Any

import jax

Shapes = Mapping[str, tuple[int, ...]]


def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each array by its name in a checkpoint.

    >>> shapes({"params": {"w": jax.ShapeDtypeStruct((3, 2), "float32")}, "step": None})
    {'params.w': (3, 2)}
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name_of(path): tuple(leaf.shape) for path, leaf in leaves}


def name_of(path: tuple[Any, ...]) -> str:
    """A path in a tree as a checkpoint names it."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def find_misfit(stored: Shapes, expected: Shapes, bank_size: int = 0) -> str | None:
    """The first difference in words, with the field of the config it comes from; None: they fit.

    Columns of a bank of `bank_size` rows may have padding, and not the same on both sides.

    >>> find_misfit({"params.classifier.bias": (10,)}, {"params.classifier.bias": (11,)})
    'params.classifier.bias is [10] there and [11] here: another number of classes'
    >>> find_misfit({"params.a": (1,)}, {"params.b": (1,)})
    'params.a is there but not here: another model.name or model.options'
    """
    # What the classifier says goes first: from the number of classes much else follows.
    names = sorted(stored.keys() | expected.keys(), key=lambda n: (".classifier." not in n, n))
    for name in names:
        if name in stored and name in expected:
            there, here = stored[name], expected[name]
            if there != here and not _differ_in_padding(name, there, here, bank_size):
                differs = f"{name} is {list(there)} there and {list(here)} here"
                return f"{differs}: another {_origin(name, there, here)}"
    for name in names:
        if name not in expected:
            return f"{name} is there but not here: another {_origin(name)}"
        if name not in stored:
            return f"{name} is here but not there: another {_origin(name)}"
    return None


def _differ_in_padding(
    name: str, there: tuple[int, ...], here: tuple[int, ...], bank_size: int
) -> bool:
    columns = name.startswith("bank.") and bank_size > 0 and len(there) == len(here) > 0
    return columns and there[1:] == here[1:] and min(there[0], here[0]) >= bank_size


def _origin(name: str, there: tuple[int, ...] = (), here: tuple[int, ...] = ()) -> str:
    """The field of the config that decides about an array, or about one of its axes."""
    section = name.split(".")[0]
    absent = {
        "ema_params": "objective.name",
        "ema_batch_stats": "objective.name",
        "bank": "objective.name",
        "opt_state": "optimizer.name",
        "averaged": "average.decay",
    }
    if section in absent and not (there and here):
        return absent[section]
    if section == "bank":
        return "bank.size" if there[0] != here[0] else "objective or model.embedding_dim"
    if ".classifier." in name and there[-1:] != here[-1:]:
        return "number of classes"
    if any(f".{part}." in name for part in ("classifier", "projection", "predictor")):
        return "projection, predictor or classifier (section model)"
    return "model.name or model.options"
