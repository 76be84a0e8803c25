"""Weights of torchvision's detectors with a feature pyramid, to our variables and back.

Names are those of `maskrcnn_resnet50_fpn`, without masks `fasterrcnn_resnet50_fpn` (and of the
other ResNets). Heads with convolutions and BatchNorm have the names of `maskrcnn_resnet50_fpn_v2`:
torchvision's `FastRCNNConvFCHead` and `MaskRCNNHeads` with a `norm_layer`; but the proposal head
has one convolution always. torchvision's class 0 is the background, as here. Its released weights
have names of 2019, which it translates when it loads them, and so does `current_names`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from cone_jax.detection.settings import Settings
from cone_jax.errors import UserError
from cone_jax.models import resnet

Path = tuple[str, ...]
# Counts batches; nothing here depends on it.
UNUSED = "num_batches_tracked"
# Layers by their names of 2019, and by those of today.
_RENAMED = {
    **{
        f"backbone.fpn.{kind}_blocks.{level}": f"backbone.fpn.{kind}_blocks.{level}.0"
        for kind in ("inner", "layer")
        for level in range(4)
    },
    "rpn.head.conv": "rpn.head.conv.0.0",
    **{f"roi_heads.mask_head.mask_fcn{k + 1}": f"roi_heads.mask_head.{k}.0" for k in range(4)},
}


class Entry(NamedTuple):
    """One array under both names, and the conversion in either direction."""

    theirs: str
    ours: Path
    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray], np.ndarray]


def from_torchvision(state: Mapping[str, np.ndarray], settings: Settings) -> dict[str, Any]:
    """torchvision's state dict, as NumPy arrays -> ``{"params": ..., "batch_stats": ...}``."""
    state = current_names(state)
    expected = list(entries(settings))
    known = {entry.theirs for entry in expected}
    unknown = sorted(name for name in state if name not in known and not name.endswith(UNUSED))
    if unknown:
        raise UserError(
            f"weights: {unknown[0]!r} has no place in a {settings.backbone} detector; "
            "choose the backbone and heads that they were trained with"
        )
    flat = {}
    for entry in expected:
        if entry.theirs not in state:
            raise UserError(f"weights: {entry.theirs!r} is missing; give a complete state dict")
        flat[entry.ours] = entry.read(np.asarray(state[entry.theirs], np.float32))
    _check_classes(flat, settings)
    return traverse_util.unflatten_dict(flat)


def current_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same tensors; those of torchvision's released detectors under their current names.

    >>> list(current_names({"rpn.head.conv.bias": 0, "roi_heads.mask_head.mask_fcn1.bias": 0}))
    ['rpn.head.conv.0.0.bias', 'roi_heads.mask_head.0.0.bias']
    """
    current = {}
    for name, value in tensors.items():
        layer, _, kind = name.rpartition(".")
        current[f"{_RENAMED[layer]}.{kind}" if layer in _RENAMED else name] = value
    return current


def to_torchvision(variables: Mapping[str, Any], settings: Settings) -> dict[str, np.ndarray]:
    """The inverse: our variables -> arrays under torchvision's names."""
    flat = traverse_util.flatten_dict(variables)
    return {
        entry.theirs: entry.write(np.asarray(flat[entry.ours], np.float32))
        for entry in entries(settings)
    }


def _check_classes(flat: Mapping[Path, np.ndarray], settings: Settings) -> None:
    found = len(flat[("params", "box_predictor", "logits", "bias")]) - 1
    if found != settings.num_classes:
        raise UserError(
            f"detection.num_classes ({settings.num_classes}) must be {found}, "
            "the number of classes of the weights"
        )


def fits(settings: Settings) -> bool:
    """Whether torchvision has the parts for a detector like this one."""
    return settings.neck == "fpn"


def entries(settings: Settings) -> Iterator[Entry]:
    """Every array of the detector under both names."""
    if not fits(settings):
        raise UserError(
            f"objective.detection.neck ({settings.neck!r}) must be 'fpn' for torchvision's weights"
        )
    norm = settings.head_norm == "batch"
    yield from backbone_entries(settings)
    for level in range(4):
        for theirs, ours in (("inner_blocks", "inner"), ("layer_blocks", "layer")):
            name = f"backbone.fpn.{theirs}.{level}"
            yield from _block(name, ("pyramid", f"{ours}{level}"), norm)
    for theirs, ours in (("conv.0.0", "conv"), ("cls_logits", "logits"), ("bbox_pred", "codes")):
        yield from _convolution(f"rpn.head.{theirs}", ("proposal_head", ours, "conv"))
    yield from _box_head(settings, norm)
    yield from _linear("roi_heads.box_predictor.cls_score", ("box_predictor", "logits"))
    yield from _linear("roi_heads.box_predictor.bbox_pred", ("box_predictor", "codes"))
    if settings.masks:
        yield from _mask_head(settings, norm)


def _box_head(settings: Settings, norm: bool) -> Iterator[Entry]:
    head = "roi_heads.box_head"
    if settings.box_head == "linear":
        yield from _first_linear(settings, f"{head}.fc6")
        yield from _linear(f"{head}.fc7", ("box_head", "linear1"))
        return
    number = settings.box_convolutions
    for index in range(number):
        yield from _block(f"{head}.{index}", ("box_head", f"conv{index}"), norm)
    yield from _first_linear(settings, f"{head}.{number + 1}")  # after the one that flattens


def _mask_head(settings: Settings, norm: bool) -> Iterator[Entry]:
    for index in range(settings.mask_convolutions):
        yield from _block(f"roi_heads.mask_head.{index}", ("mask_head", f"conv{index}"), norm)
    # [in, out, 2, 2] <-> [2, 2, in, out]
    name = "roi_heads.mask_predictor.conv5_mask"
    yield _transposed(f"{name}.weight", ("mask_head", "doubling", "kernel"), (2, 3, 0, 1))
    yield _same(f"{name}.bias", ("params", "mask_head", "doubling", "bias"))
    name = "roi_heads.mask_predictor.mask_fcn_logits"
    yield from _convolution(name, ("mask_head", "logits", "conv"))


def backbone_entries(settings: Settings) -> Iterator[Entry]:
    """The part of `entries` that a classification network has, too."""
    body = "backbone.body"
    variant = resnet.VARIANTS[settings.backbone]
    bottleneck = variant.block is resnet.Bottleneck
    yield from _conv_norm(body, "conv1", "bn1", ("backbone",), ("conv1", "bn1"))
    for stage, depth in enumerate(variant.depths, 1):
        for index in range(depth):
            theirs, ours = f"{body}.layer{stage}.{index}", ("backbone", f"layer{stage}_{index}")
            for number in range(1, 4 if bottleneck else 3):
                pair = (f"conv{number}", f"bn{number}")
                yield from _conv_norm(theirs, *pair, ours, pair)
            if index == 0 and (stage > 1 or bottleneck):
                pair = ("downsample_conv", "downsample_bn")
                yield from _conv_norm(theirs, "downsample.0", "downsample.1", ours, pair)


def _conv_norm(
    prefix: str, conv: str, norm: str, path: Path, names: tuple[str, str]
) -> Iterator[Entry]:
    yield _transposed(f"{prefix}.{conv}.weight", (*path, names[0], "kernel"), (2, 3, 1, 0))
    yield from _norm(f"{prefix}.{norm}", (*path, names[1]))


def _norm(name: str, path: Path) -> Iterator[Entry]:
    for theirs, collection, ours in (
        ("weight", "params", "scale"),
        ("bias", "params", "bias"),
        ("running_mean", "batch_stats", "mean"),
        ("running_var", "batch_stats", "var"),
    ):
        yield _same(f"{name}.{theirs}", (collection, *path, ours))


def _block(name: str, path: Path, norm: bool) -> Iterator[Entry]:
    """torchvision's `Conv2dNormActivation`: a convolution with a bias, or with BatchNorm."""
    if norm:
        yield from _conv_norm(name, "0", "1", path, ("conv", "bn"))
    else:
        yield from _convolution(f"{name}.0", (*path, "conv"))


def _convolution(theirs: str, ours: Path) -> Iterator[Entry]:
    yield _transposed(f"{theirs}.weight", (*ours, "kernel"), (2, 3, 1, 0))
    yield _same(f"{theirs}.bias", ("params", *ours, "bias"))


def _linear(theirs: str, ours: Path) -> Iterator[Entry]:
    yield _transposed(f"{theirs}.weight", (*ours, "kernel"), (1, 0))
    yield _same(f"{theirs}.bias", ("params", *ours, "bias"))


def _first_linear(settings: Settings, name: str) -> Iterator[Entry]:
    """Pooled features are flattened channels first there, channels last here."""
    side, channels = settings.box_resolution, settings.pyramid_channels

    def read(weight: np.ndarray) -> np.ndarray:
        return (
            weight.reshape(-1, channels, side, side)
            .transpose(2, 3, 1, 0)
            .reshape(side * side * channels, -1)
        )

    def write(kernel: np.ndarray) -> np.ndarray:
        return (
            kernel.reshape(side, side, channels, -1)
            .transpose(3, 2, 0, 1)
            .reshape(-1, channels * side * side)
        )

    yield Entry(f"{name}.weight", ("params", "box_head", "linear0", "kernel"), read, write)
    yield _same(f"{name}.bias", ("params", "box_head", "linear0", "bias"))


def _transposed(theirs: str, ours: Path, axes: tuple[int, ...]) -> Entry:
    back = tuple(int(axis) for axis in np.argsort(axes))
    return Entry(
        theirs, ("params", *ours), lambda x: x.transpose(axes), lambda x: x.transpose(back)
    )


def _same(theirs: str, ours: Path) -> Entry:
    return Entry(theirs, ours, lambda x: x, lambda x: x)
