"""Weights for a detector: a whole one, or a classification network that becomes its backbone.

A file is recognised by its names. Whole detectors: our own runs, and torchvision's
`maskrcnn_resnet50_fpn` (and of the other ResNets). Backbones: our own runs and exports,
torchvision's ResNets (also behind a prefix, as in the released CoNe checkpoint), and Detectron2's,
alone or in a detector, unless they are made for pixels from 0 to 255. Of a backbone's file the
classifier and other heads are ignored, and the detector's own heads keep their random start.
Predictors of another number of classes start anew.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from cone_jax.errors import UserError
from cone_jax.interop import detectron2, files, first_resnets, torchvision_detector

Path = tuple[str, ...]
# Ours to theirs: the name, and how the array is turned.
Names = dict[Path, tuple[str, Callable[[np.ndarray], np.ndarray]]]

_BODY = "backbone.body."
_DETECTRON2_PREFIXES = ("backbone.bottom_up.", "backbone.", "roi_heads.", "")


def from_tensors(
    weights: files.Weights, detector: Any, variables: Mapping[str, Any], *, source: str
) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """`variables` with the values in the file, the file's layout, and an account of every name.

    The account has the fields of `importing.ImportReport`.
    """
    tensors = torchvision_detector.current_names(weights.tensors)
    _refuse_first_resnets(tensors, source)
    values = traverse_util.flatten_dict(dict(variables))
    names, layout = _recognise(tensors, detector.settings, values, source)
    whole = any(path[1] != "backbone" and name in tensors for path, (name, _) in names.items())
    found: dict[str, list[Any]] = {}
    for path in values:
        ours = "/".join(path)
        name, read = names.get(path, ("", _same))
        if name not in tensors:
            expected = whole or path[1] == "backbone"
            found.setdefault("missing" if expected else "reinitialised", []).append(ours)
            continue
        value, shape = read(np.asarray(tensors[name], np.float32)), tuple(values[path].shape)
        if value.shape == shape:
            values[path] = value
            found.setdefault("mapped", []).append((ours, name))
        elif _counts_classes(path):
            found.setdefault("reinitialised", []).append(ours)
        else:
            found.setdefault("mismatched", []).append(f"{ours} {value.shape}, not {shape}")
    known = {name for name, _ in names.values()}
    rest = "unexpected" if whole else "ignored"
    for name in tensors.keys() - known:
        unused = name.endswith(torchvision_detector.UNUSED)
        found.setdefault("ignored" if unused else rest, []).append(name)
    lists: dict[str, Any] = {field: tuple(sorted(rows)) for field, rows in found.items()}
    return traverse_util.unflatten_dict(values), layout, lists


def _refuse_first_resnets(tensors: Mapping[str, Any], source: str) -> None:
    """They would load, with their strides and colours in the wrong place."""
    found = first_resnets.translate(tensors)
    if found is not None and found.std == first_resnets.UNSCALED:
        raise UserError(
            f"init_from ({source}) has {found.source}: it takes BGR from 0 to 255 and has the "
            "stride in the first 1x1 convolution of a block, as no detector here does; give "
            "weights for normalised RGB with the stride in the 3x3"
        )


def _recognise(
    tensors: Mapping[str, Any], settings: Any, values: Mapping[Path, Any], source: str
) -> tuple[Names, str]:
    """The names under which most of the variables are found."""
    candidates: list[tuple[Names, str]] = [
        ({path: ("/".join(path), _same) for path in values}, "cone_jax")
    ]
    backbone = {entry.ours: entry for entry in torchvision_detector.backbone_entries(settings)}
    if torchvision_detector.fits(settings):
        entries = torchvision_detector.entries(settings)
        candidates.append(
            ({entry.ours: (entry.theirs, entry.read) for entry in entries}, "torchvision detector")
        )
    plain = {path: entry.theirs.removeprefix(_BODY) for path, entry in backbone.items()}
    first = plain[("params", "backbone", "conv1", "kernel")]
    prefixes = {name.removesuffix(first) for name in tensors if name.endswith(first)}
    for prefix in sorted(prefixes - {_BODY}):
        named = {path: (prefix + name, backbone[path].read) for path, name in plain.items()}
        candidates.append((named, "torchvision"))
    for prefix in _DETECTRON2_PREFIXES:
        named = {}
        for path, name in plain.items():
            theirs = detectron2.to_detectron2(name)
            own = "roi_heads." if prefix == "backbone." and theirs.startswith("res5") else prefix
            named[path] = (own + theirs, backbone[path].read)
        candidates.append((named, "Detectron2"))

    def count(candidate: tuple[Names, str]) -> int:
        return sum(name in tensors for name, _ in candidate[0].values())

    best = max(candidates, key=count)
    if not count(best):
        raise UserError(
            f"{source} has no tensor of a {settings.backbone} detector; it begins with "
            f"{', '.join(list(tensors)[:3])}"
        )
    return best


def _counts_classes(path: Path) -> bool:
    """Whether the shape of a variable depends on the number of classes."""
    return path[1] == "box_predictor" or path[1:3] == ("mask_head", "logits")


def _same(value: np.ndarray) -> np.ndarray:
    return value
