"""Networks of Hugging Face's transformers: their names for ours, and how they prepare pictures.

    vit.encoder.layer.0.attention.attention.query.weight         ViT, DeiT
    convnext.encoder.stages.0.layers.0.dwconv.weight             ConvNeXt
    regnet.encoder.stages.0.layers.0.layer.0.convolution.weight  RegNet, ResNet

`translate` gives tensors timm's names, ResNets torchvision's. A backbone that was saved alone has
no first word, and keeps the layers that only transformers has (``pooler``). Queries, keys and
values are one array in timm.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from cone_jax.errors import UserError
from cone_jax.interop import published
from cone_jax.interop.metadata import ExportMetadata

Tensors = Mapping[str, np.ndarray]
Rules = dict[str, str | Callable[[re.Match[str]], str]]

LAYOUT = "transformers"

_VIT_LAYERS = {
    "layernorm_before": "norm1",
    "attention.output.dense": "attn.proj",
    "layernorm_after": "norm2",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
_CONVNEXT_LAYERS = {
    "dwconv": "conv_dw",
    "layernorm": "norm",
    "pwconv1": "mlp.fc1",
    "pwconv2": "mlp.fc2",
    "layer_scale_parameter": "gamma",
}
_KINDS = {"convolution": "conv", "normalization": "bn"}
_PLACES = {"convolution": "0", "normalization": "1"}
_KIND = r"(?P<kind>convolution|normalization)"
_BLOCK = r"encoder\.stages\.(?P<stage>\d)\.layers\.(?P<block>\d+)"


class _Family(NamedTuple):
    """What its files are known by, the names that they have, and what those are here."""

    first: str  # a name that every file has, after the prefix of the network
    rules: Rules  # of names after the prefix
    classifiers: Mapping[str, str]


_FAMILIES = {
    "vit": _Family(
        r"encoder\.layer\.0\.attention\.attention\.query\.weight",
        {
            r"embeddings\.cls_token": "cls_token",
            r"embeddings\.distillation_token": "dist_token",
            r"embeddings\.position_embeddings": "pos_embed",
            r"embeddings\.patch_embeddings\.projection\.(\w+)": r"patch_embed.proj.\1",
            r"layernorm\.(\w+)": r"norm.\1",
            rf"encoder\.layer\.(\d+)\.({'|'.join(map(re.escape, _VIT_LAYERS))})\.(\w+)": (
                lambda found: f"blocks.{found[1]}.{_VIT_LAYERS[found[2]]}.{found[3]}"
            ),
        },
        {"classifier": "head", "cls_classifier": "head", "distillation_classifier": "head_dist"},
    ),
    "convnext": _Family(
        r"encoder\.stages\.0\.layers\.0\.dwconv\.weight",
        {
            r"embeddings\.patch_embeddings\.(\w+)": r"stem.0.\1",
            r"embeddings\.layernorm\.(\w+)": r"stem.1.\1",
            r"encoder\.stages\.(\d)\.downsampling_layer\.(\d)\.(\w+)": (
                r"stages.\1.downsample.\2.\3"
            ),
            rf"{_BLOCK}\.(?P<layer>{'|'.join(_CONVNEXT_LAYERS)})(?P<leaf>(\.\w+)?)": (
                lambda found: (
                    f"stages.{found['stage']}.blocks.{found['block']}."
                    f"{_CONVNEXT_LAYERS[found['layer']]}{found['leaf']}"
                )
            ),
            r"layernorm\.(\w+)": r"head.norm.\1",
        },
        {"classifier": "head.fc"},
    ),
    "regnet": _Family(
        r"encoder\.stages\.3\.layers\.11\.layer\.0\.convolution\.weight",
        {
            rf"embedder\.embedder\.{_KIND}\.(?P<leaf>\w+)": (
                lambda found: f"stem.{_KINDS[found['kind']]}.{found['leaf']}"
            ),
            rf"{_BLOCK}\.(?P<part>shortcut|layer\.\d)\.{_KIND}\.(?P<leaf>\w+)": (
                lambda found: (
                    f"s{int(found['stage']) + 1}.b{int(found['block']) + 1}.{_layer(found)}."
                    f"{_KINDS[found['kind']]}.{found['leaf']}"
                )
            ),
        },
        {"classifier.1": "head.fc"},
    ),
    "resnet": _Family(
        r"encoder\.stages\.0\.layers\.0\.layer\.0\.convolution\.weight",
        {
            rf"embedder\.embedder\.{_KIND}\.(?P<leaf>\w+)": (
                lambda found: f"{_KINDS[found['kind']]}1.{found['leaf']}"
            ),
            rf"{_BLOCK}\.shortcut\.{_KIND}\.(?P<leaf>\w+)": (
                lambda found: (
                    f"layer{int(found['stage']) + 1}.{found['block']}.downsample."
                    f"{_PLACES[found['kind']]}.{found['leaf']}"
                )
            ),
            rf"{_BLOCK}\.layer\.(?P<layer>\d)\.{_KIND}\.(?P<leaf>\w+)": (
                lambda found: (
                    f"layer{int(found['stage']) + 1}.{found['block']}."
                    f"{_KINDS[found['kind']]}{int(found['layer']) + 1}.{found['leaf']}"
                )
            ),
        },
        {"classifier.1": "fc"},
    ),
}
# What these networks compute between their layers; another function would load without a word.
_ACTIVATIONS = {
    "vit": "gelu",
    "deit": "gelu",
    "convnext": "gelu",
    "regnet": "relu",
    "resnet": "relu",
}
MODEL_TYPES = tuple(_ACTIVATIONS)
_HEAD_WIDTH = 64  # of attention, in all transformers here
_PARTS = ("query", "key", "value")
# Pillow's numbers, as transformers stores them.
_RESAMPLING = {2: "bilinear", 3: "bicubic"}
# From this size on its ConvNeXt processor squashes pictures instead of cropping them.
_SQUASHED_FROM = 384


def translate(tensors: Tensors) -> Tensors | None:
    """Under timm's or torchvision's names; None for files of another kind."""
    for family in _FAMILIES.values():
        for name in tensors:
            if found := re.fullmatch(rf"(?P<prefix>([\w.]+\.)?){family.first}", name):
                return _translated(tensors, family, found["prefix"])
    return None


def _layer(found: re.Match[str]) -> str:
    part = found["part"]
    return "downsample" if part == "shortcut" else f"conv{int(part[-1]) + 1}"


def _translated(tensors: Tensors, family: _Family, prefix: str) -> Tensors:
    renamed = {}
    for name, value in tensors.items():
        layer, _, leaf = name.rpartition(".")
        if layer in family.classifiers:
            renamed[f"{family.classifiers[layer]}.{leaf}"] = value
        else:
            renamed[_renamed(name, family.rules, prefix)] = value
    renamed = _joined(renamed, prefix)
    if "dist_token" in renamed and "head.weight" in renamed and "head_dist.weight" not in renamed:
        # A classifier on the first token alone: the average of twice itself and of nothing.
        for leaf in ("weight", "bias"):
            renamed[f"head_dist.{leaf}"] = np.zeros_like(renamed[f"head.{leaf}"])
            renamed[f"head.{leaf}"] = 2 * renamed[f"head.{leaf}"]
    return renamed


def _renamed(name: str, rules: Rules, prefix: str) -> str:
    if not name.startswith(prefix):
        return name
    for pattern, replacement in rules.items():
        if found := re.fullmatch(pattern, name.removeprefix(prefix)):
            return found.expand(replacement) if isinstance(replacement, str) else replacement(found)
    return name


def _joined(tensors: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Queries, keys and values of a block as one array, where all three are there."""
    pattern = re.escape(prefix) + r"encoder\.layer\.(\d+)\.attention\.attention\.query\.(\w+)"
    for name in list(tensors):
        found = re.fullmatch(pattern, name)
        parts = [name.replace("query", part) for part in _PARTS]
        if found and all(part in tensors for part in parts):
            arrays = [tensors.pop(part) for part in parts]
            tensors[f"blocks.{found[1]}.attn.qkv.{found[2]}"] = np.concatenate(arrays)
    return tensors


def check(config: Mapping[str, Any], reference: str) -> None:
    """`UserError` for a network that has the shapes of one here and computes something else."""
    kind = config["model_type"]
    activation = config.get("hidden_act", _ACTIVATIONS[kind])
    if activation != _ACTIVATIONS[kind]:
        raise UserError(
            f"{reference} has hidden_act {activation!r}, the network here {_ACTIVATIONS[kind]!r}; "
            "choose weights without that"
        )
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if kind in ("vit", "deit") and heads and width and heads * _HEAD_WIDTH != width:
        raise UserError(
            f"{reference} has {heads} heads of attention, a transformer here of width {width} has "
            f"{width // _HEAD_WIDTH}; choose weights without that"
        )


def describe(
    reference: str, config: Mapping[str, Any], preprocessor: Mapping[str, Any]
) -> ExportMetadata | None:
    """The repository's description of input and classes; None if it does not describe pixels."""
    if "image_mean" not in preprocessor:
        return None
    resize, size = _sides(preprocessor)
    labels = config.get("id2label") or {}
    names = tuple(labels[str(index)] for index in range(len(labels)))
    return ExportMetadata(
        class_names=published.class_names() if published.is_imagenet(names) else names,
        image_size=size,
        mean=tuple(preprocessor["image_mean"]),
        std=tuple(preprocessor["image_std"]),
        transforms=published.evaluation_transforms(
            resize, size, _RESAMPLING.get(preprocessor.get("resample", 3), "bicubic")
        ),
        origin={"weights": reference},
    )


def _sides(preprocessor: Mapping[str, Any]) -> tuple[int | tuple[int, int], int]:
    """What a picture's short side, or both, are resized to, and what is cut out of the centre.

    >>> _sides({"image_processor_type": "ViTImageProcessor", "size": 224})
    ((224, 224), 224)
    >>> _sides({"feature_extractor_type": "DeiTFeatureExtractor", "size": 256, "crop_size": 224})
    ((256, 256), 224)
    >>> _sides({"size": {"shortest_edge": 224}, "crop_pct": 0.875})
    (256, 224)
    """
    kind = str(
        preprocessor.get("image_processor_type") or preprocessor.get("feature_extractor_type")
    )
    size, crop = preprocessor.get("size", 224), preprocessor.get("crop_size", 224)
    is_square = kind.startswith(("ViT", "DeiT"))
    side = size
    if isinstance(size, Mapping):
        is_square = "shortest_edge" not in size
        side = size.get("shortest_edge") or size["height"]
    if kind.startswith("ConvNext") or "crop_pct" in preprocessor:
        resize = int(side / preprocessor.get("crop_pct", 0.875))
        return (resize if side < _SQUASHED_FROM else (side, side)), side
    crops = preprocessor.get("do_center_crop", not kind.startswith("ViT"))
    cut = (crop["height"] if isinstance(crop, Mapping) else crop) if crops else side
    return ((side, side) if is_square else side), cut
