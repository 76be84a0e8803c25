"""ResNets of Caffe, Keras and Detectron2, whose stride is in the first 1x1 convolution of a block.

Their weights have names of their own, by which they are known:

    conv2_block1_1_conv/kernel      Keras
    res2a_branch2a/kernel           Caffe, and Keras before 2.2.5
    res2_0_branch2a_w               Caffe2: what Detectron2's own networks start from
    res2.0.conv1.weight             Detectron2, alone or in a detector

`translate` gives them torchvision's names and arrangement, first layers RGB. Keras's biases before
a norm become part of its mean. Detectron2's names do not say where the stride is. Nor do
torchvision's, under which converted weights are often passed on: but a first layer tells whether it
is made for pixels from 0 to 255, as Caffe's and its heirs' are, and then the user has to say.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cone_jax.errors import UserError
from cone_jax.interop import detectron2
from cone_jax.models import ModelSpec, resnet

Tensors = Mapping[str, np.ndarray]

OPTION = "stride_in_1x1"
# Means that are subtracted from pixels of 0 to 255, and nothing else: Caffe's, Detectron2's.
CAFFE_MEAN = (123.68, 116.779, 103.939)
DETECTRON2_MEAN = (123.675, 116.28, 103.53)
UNSCALED = (1 / 255,) * 3
# Keras's ResNets have an epsilon of 1.001e-5 in BatchNorm, ours is 1e-5.
_MORE_EPSILON = 1e-8
_FOLDED = 1.0 - 1e-5  # the variance with which BatchNorm only scales and shifts

_LEAVES = {
    **dict.fromkeys(("kernel", "w", "gamma", "bn_s", "weight"), "weight"),
    **dict.fromkeys(("bias", "b", "beta", "bn_b"), "bias"),
    "moving_mean": "running_mean",
    "running_mean": "running_mean",
    "moving_variance": "running_var",
    "running_var": "running_var",
}
_NORMS = ("bn", "scale", "bn_", "scale_")
_LETTERS = str.maketrans("abc", "123")  # branch2a, 2b, 2c
_LEAF = r"[./](?P<leaf>\w+)(:0)?"
_BLOCKS = {
    "Keras": r"(.*/)?conv(?P<stage>\d)_block(?P<block>\d+)_(?P<layer>\d)_(?P<kind>conv|bn)" + _LEAF,
    "Caffe": r"(.*/)?(?P<kind>res|bn|scale)(?P<stage>\d)(?P<block>[a-z]\d*)_branch(?P<layer>1|2\w)"
    + _LEAF,
    "Caffe2": r"res(?P<stage>\d)_(?P<block>\d+)_branch(?P<layer>1|2\w)_(?P<leaf>w|bn_s|bn_b)",
    "Detectron2": r"(?P<prefix>(backbone\.(bottom_up\.)?)?)res[2-5]\.\d+\.conv\d\.weight",
}
# The stem and the classifier.
_ENDS = {
    "Keras": r"(.*/)?(conv1_(?P<kind>conv|bn)|(?P<classifier>predictions|probs))" + _LEAF,
    "Caffe": r"(.*/)?((?P<kind>bn_|scale_|)conv1|(?P<classifier>fc1000))" + _LEAF,
    "Caffe2": r"(conv1|res_conv1|(?P<classifier>fc1000|pred))_(?P<leaf>w|b|bn_s|bn_b)",
}


class FirstResNet(NamedTuple):
    """Weights of such a network, and what their names reveal."""

    source: str
    tensors: Tensors  # torchvision's names
    stride_in_1x1: bool | None  # None: it has to be asked for
    mean: tuple[float, ...]
    std: tuple[float, ...]


def translate(tensors: Tensors) -> FirstResNet | None:
    """Weights that may have the stride in the 1x1 convolution; None for all others."""
    for source, pattern in _BLOCKS.items():
        found = [match for name in tensors if (match := re.fullmatch(pattern, name))]
        if found and source == "Detectron2":
            return _of_detectron2(tensors, found[0]["prefix"])
        if found:
            return _of_caffe(source, tensors)
    if _is_bottleneck(tensors) and _takes_pixels(tensors):
        source = "torchvision's names and a first layer for pixels from 0 to 255"
        return FirstResNet(source, tensors, None, _unit(DETECTRON2_MEAN), UNSCALED)
    return None


def options(found: FirstResNet) -> dict[str, bool]:
    """Options of the architecture, as far as the weights reveal them."""
    known = found.stride_in_1x1 and _is_bottleneck(found.tensors)
    return {OPTION: True} if known else {}


def check(found: FirstResNet, spec: ModelSpec, reference: str) -> None:
    """`UserError` unless it is known where the stride of such a network is."""
    is_bottleneck = spec.name in resnet.VARIANTS and _is_bottleneck(found.tensors)
    if not is_bottleneck or OPTION in dict(spec.options):
        return
    cure = (
        f"set model.options.{OPTION} to True"
        if found.stride_in_1x1
        else f"set model.options.{OPTION} to True or False, as the program that trained it has it "
        "(Caffe's, Keras's and Detectron2's own: True)"
    )
    told = "whose stride is" if found.stride_in_1x1 else "whose stride may be"
    raise UserError(
        f"init_from ({reference}) has {found.source}, {told} in the first 1x1 convolution of a "
        f"block: {cure}"
    )


def _of_caffe(source: str, tensors: Tensors) -> FirstResNet:
    renamed: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        place = _place(source, name)
        if place is None:
            renamed[name] = value
            continue
        is_kernel = name.endswith(("kernel", "kernel:0"))
        renamed[place] = _as_pytorch(value) if is_kernel else value
    norms = [name.removesuffix(".weight") for name in renamed if re.search(r"bn\d\.weight$", name)]
    norms += [name.removesuffix(".weight") for name in renamed if "downsample.1.w" in name]
    for norm in norms:
        convolution = norm.replace("bn", "conv").replace("downsample.1", "downsample.0")
        shape = renamed[f"{norm}.weight"].shape
        mean = renamed.get(f"{norm}.running_mean", np.zeros(shape, np.float32))
        variance = renamed.get(f"{norm}.running_var", np.full(shape, _FOLDED, np.float32))
        renamed[f"{norm}.running_mean"] = mean - renamed.pop(f"{convolution}.bias", 0.0)
        renamed[f"{norm}.running_var"] = variance + (_MORE_EPSILON if source == "Keras" else 0.0)
    pixels = _unit(DETECTRON2_MEAN if source == "Caffe2" else CAFFE_MEAN)
    return FirstResNet(f"{source}'s names", _from_bgr(renamed), True, pixels, UNSCALED)


def _place(source: str, name: str) -> str | None:
    """torchvision's name of a tensor; None where it is not part of the network."""
    in_block, at_end = (re.fullmatch(each[source], name) for each in (_BLOCKS, _ENDS))
    match = in_block or at_end
    if match is None:
        return None
    leaf = _LEAVES.get(match["leaf"], match["leaf"])
    is_norm = match["leaf"].startswith("bn_") or match.groupdict().get("kind") in _NORMS
    kind = "bn" if is_norm else "conv"
    if in_block is None:
        return f"fc.{leaf}" if match["classifier"] else f"{kind}1.{leaf}"
    layer, block = match["layer"], match["block"]
    number = 0 if layer == "1" and source != "Keras" else int(layer.translate(_LETTERS)[-1])
    index = int(block) - (source == "Keras") if block.isdigit() else _block_index(block)
    module = f"{kind}{number}" if number else f"downsample.{is_norm:d}"
    return f"layer{int(match['stage']) - 1}.{index}.{module}.{leaf}"


def _block_index(block: str) -> int:
    """
    >>> [_block_index(name) for name in ("a", "b", "f", "b1", "b22")]
    [0, 1, 5, 1, 22]
    """
    return int(block[1:]) if block[1:] else ord(block) - ord("a")


def _of_detectron2(tensors: Tensors, prefix: str) -> FirstResNet:
    """The backbone; what a detector has beside it stays out."""
    own = {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
    renamed = {
        detectron2.from_detectron2(name).replace("linear.", "fc."): value
        for name, value in own.items()
        if not prefix or name.startswith(("res", "stem."))
    }
    for name in list(renamed):  # its frozen norms
        if name.endswith(".running_var") and (renamed[name] == 1.0).all():
            renamed[name] = np.full_like(renamed[name], _FOLDED)
    if _is_folded(renamed) or _takes_pixels(renamed):
        mean = _unit(DETECTRON2_MEAN)
        source = "Detectron2's names and a first layer for pixels from 0 to 255"
        return FirstResNet(source, _from_bgr(renamed), True, mean, UNSCALED)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return FirstResNet("Detectron2's names", renamed, None, mean, std)


def _is_folded(tensors: Tensors) -> bool:
    """Whether norms only scale and shift, as those of converted Caffe networks do."""
    variance, scale = (tensors.get(f"bn1.{leaf}") for leaf in ("running_var", "weight"))
    if variance is None or scale is None:
        return False
    return bool((variance == np.float32(_FOLDED)).all() and not (scale == 1.0).all())


def _is_bottleneck(tensors: Tensors) -> bool:
    return any(name.endswith("layer1.0.conv3.weight") for name in tensors)


# The variance of a filter's output, by that of pixels divided by their deviation, is about 1; in
# the first layer of a MobileNetV2 trained on ImageNet 0.9 to 3.4. Of pixels from 0 to 255 it is
# 58 squared.
_PIXELS = 500.0
# Correlation of neighbouring pixels, and of two colours, in photographs.
_NEIGHBOURS, _COLOURS = 0.95, 0.9


def _takes_pixels(tensors: Tensors) -> bool:
    """Whether the statistics after the first layer are those of pixels from 0 to 255."""
    first = [
        name
        for name, value in tensors.items()
        if name.endswith("conv1.weight") and value.ndim == 4 and value.shape[1] == 3
    ]
    if len(first) != 1:
        return False
    kernel = tensors[first[0]]
    variance = tensors.get(first[0].replace("conv1.weight", "bn1.running_var"))
    if variance is None or variance.shape != kernel.shape[:1]:
        return False
    places = np.indices(kernel.shape[2:]).reshape(2, -1).T
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    colours = np.where(np.eye(3, dtype=bool), 1.0, _COLOURS)
    filters = kernel.reshape(len(kernel), 3, -1).astype(float)
    expected = np.einsum(
        "oip,ij,pq,ojq->o", filters, colours, _NEIGHBOURS**distances, filters, optimize=True
    )
    return bool(np.median(variance / np.maximum(expected, np.finfo(float).tiny)) > _PIXELS)


def _as_pytorch(kernel: np.ndarray) -> np.ndarray:
    return kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T


def _from_bgr(tensors: Tensors) -> Tensors:
    """The first layer for red, green, blue instead of blue, green, red."""
    first = tensors.get("conv1.weight")
    return tensors if first is None else {**tensors, "conv1.weight": first[:, ::-1]}


def _unit(mean: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(value / 255 for value in mean)
