"""The tables behind `layouts`: what torchvision, timm and others call our modules.

A rule maps the path of a module below the backbone, joined by "/", to its name; the first match
counts. A layout has the rules of a family, the name of its classifier, and what follows a module's
name for parameters that are neither kernel nor scale nor bias.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cone_jax.models import convnext, deit, resnet

Rules = list[tuple[str, Callable[..., str]]]


class Layout(NamedTuple):
    """How others name a family: its modules, its classifier, parameters outside of layers."""

    rules: Rules
    classifier: str
    others: Mapping[str, str] = MappingProxyType({})


RESNET: Rules = [
    (r"(conv1|bn1)", lambda layer: layer),
    (r"layer(\d)_(\d+)/downsample_conv", lambda s, b: f"layer{s}.{b}.downsample.0"),
    (r"layer(\d)_(\d+)/downsample_bn", lambda s, b: f"layer{s}.{b}.downsample.1"),
    (r"layer(\d)_(\d+)/(\w+)", lambda s, b, layer: f"layer{s}.{b}.{layer}"),
]

CONV_BN = {"conv": 0, "bn": 1}

REGNET: Rules = [
    (r"stem_(conv|bn)", lambda kind: f"stem.{CONV_BN[kind]}"),
    (
        r"stage(\d)_(\d+)/downsample_(conv|bn)",
        lambda s, b, kind: f"trunk_output.block{s}.block{s}-{b}.proj.{CONV_BN[kind]}",
    ),
    (
        r"stage(\d)_(\d+)/(conv|bn)(\d)",
        lambda s, b, kind, n: (
            f"trunk_output.block{s}.block{s}-{b}.f.{'abc'[int(n) - 1]}.{CONV_BN[kind]}"
        ),
    ),
]
REGNET_TIMM: Rules = [
    (r"stem_(conv|bn)", lambda kind: f"stem.{kind}"),
    (
        r"stage(\d)_(\d+)/downsample_(conv|bn)",
        lambda s, b, kind: f"s{s}.b{int(b) + 1}.downsample.{kind}",
    ),
    (
        r"stage(\d)_(\d+)/(conv|bn)(\d)",
        lambda s, b, kind, n: f"s{s}.b{int(b) + 1}.conv{n}.{kind}",
    ),
]

# In torchvision a convolution with activation is a pair of its own, a linear one is not. Block 1
# has no expansion.
MOBILENET: Rules = [
    (r"stem_(conv|bn)", lambda kind: f"features.0.{CONV_BN[kind]}"),
    (r"last_(conv|bn)", lambda kind: f"features.18.{CONV_BN[kind]}"),
    (r"block1/depthwise_(conv|bn)", lambda kind: f"features.1.conv.0.{CONV_BN[kind]}"),
    (r"block1/project_(conv|bn)", lambda kind: f"features.1.conv.{1 + CONV_BN[kind]}"),
    (r"block(\d+)/expand_(conv|bn)", lambda b, kind: f"features.{b}.conv.0.{CONV_BN[kind]}"),
    (r"block(\d+)/depthwise_(conv|bn)", lambda b, kind: f"features.{b}.conv.1.{CONV_BN[kind]}"),
    (r"block(\d+)/project_(conv|bn)", lambda b, kind: f"features.{b}.conv.{2 + CONV_BN[kind]}"),
]


def _mobilenet_timm_block(block: str, role: str, kind: str) -> str:
    sizes = (1, 2, 3, 4, 3, 3, 1)
    stage, index = next(
        (stage, int(block) - 1 - sum(sizes[:stage]))
        for stage in range(len(sizes))
        if int(block) <= sum(sizes[: stage + 1])
    )
    return _timm_block(stage, index, role, kind)


def _timm_block(stage: int, index: int | str, role: str, kind: str) -> str:
    """Names in an inverted residual; the first stage has no expansion."""
    roles = {"depthwise": "conv_dw", "project": "conv_pw"}
    if stage > 0:
        roles = {"expand": "conv_pw", "depthwise": "conv_dw", "project": "conv_pwl"}
    name = roles[role] if kind == "conv" else f"bn{list(roles).index(role) + 1}"
    return f"blocks.{stage}.{index}.{name}"


MOBILENET_TIMM: Rules = [
    (r"stem_(conv|bn)", lambda kind: {"conv": "conv_stem", "bn": "bn1"}[kind]),
    (r"last_(conv|bn)", lambda kind: {"conv": "conv_head", "bn": "bn2"}[kind]),
    (r"block(\d+)/(\w+)_(conv|bn)", _mobilenet_timm_block),
]

# Places in torchvision's sequences, activations counted.
SHUFFLENET_PLACES = {
    "left_depthwise": ("branch1", 0),
    "left_out": ("branch1", 2),
    "right_in": ("branch2", 0),
    "right_depthwise": ("branch2", 3),
    "right_out": ("branch2", 5),
}


def _shufflenet_unit(stage: str, unit: str, role: str, kind: str) -> str:
    branch, place = SHUFFLENET_PLACES[role]
    return f"stage{stage}.{unit}.{branch}.{place + CONV_BN[kind]}"


def _shufflenet_authors_unit(stage: str, unit: str, role: str, kind: str) -> str:
    branch, place = SHUFFLENET_PLACES[role]
    branch = {"branch1": "branch_proj", "branch2": "branch_main"}[branch]
    number = {"2": 0, "3": 4, "4": 12}[stage] + int(unit)
    return f"features.{number}.{branch}.{place + CONV_BN[kind]}"


SHUFFLENET_AUTHORS: Rules = [
    (r"stem_(conv|bn)", lambda kind: f"first_conv.{CONV_BN[kind]}"),
    (r"last_(conv|bn)", lambda kind: f"conv_last.{CONV_BN[kind]}"),
    (r"stage(\d)_(\d+)/(\w+)_(conv|bn)", _shufflenet_authors_unit),
]
SHUFFLENET: Rules = [
    (r"stem_(conv|bn)", lambda kind: f"conv1.{CONV_BN[kind]}"),
    (r"last_(conv|bn)", lambda kind: f"conv5.{CONV_BN[kind]}"),
    (r"stage(\d)_(\d+)/(\w+)_(conv|bn)", _shufflenet_unit),
]

# Places in torchvision's sequence of a block; in the first stage there is nothing to expand.
EFFICIENTNET_PLACES = {"expand": 0, "depthwise": 1, "squeeze": 2, "excite": 2, "project": 3}
EFFICIENTNET: Rules = [
    (r"stem_(conv|bn)", lambda kind: f"features.0.{CONV_BN[kind]}"),
    (r"last_(conv|bn)", lambda kind: f"features.8.{CONV_BN[kind]}"),
    (
        r"stage(\d)_(\d+)/(squeeze|excite)",
        lambda s, b, role: (
            f"features.{s}.{b}.block.{2 - (s == '1')}.{'fc1' if role == 'squeeze' else 'fc2'}"
        ),
    ),
    (
        r"stage(\d)_(\d+)/(\w+)_(conv|bn)",
        lambda s, b, role, kind: (
            f"features.{s}.{b}.block.{EFFICIENTNET_PLACES[role] - (s == '1')}.{CONV_BN[kind]}"
        ),
    ),
]
EFFICIENTNET_TIMM: Rules = [
    *MOBILENET_TIMM[:2],
    (r"stage(\d)_(\d+)/squeeze", lambda s, b: f"blocks.{int(s) - 1}.{b}.se.conv_reduce"),
    (r"stage(\d)_(\d+)/excite", lambda s, b: f"blocks.{int(s) - 1}.{b}.se.conv_expand"),
    (
        r"stage(\d)_(\d+)/(\w+)_(conv|bn)",
        lambda s, b, role, kind: _timm_block(int(s) - 1, b, role, kind),
    ),
]

# Where a stage is in torchvision's sequence, between the layers that halve the resolution.
CONVNEXT_PLACES = {"depthwise": 0, "norm": 2, "mlp_in": 3, "mlp_out": 5}
NORM_CONV = {"norm": 0, "conv": 1}
CONVNEXT: Rules = [
    (r"stem_(conv|norm)", lambda kind: f"features.0.{1 - NORM_CONV[kind]}"),
    (
        r"downsample(\d)_(conv|norm)",
        lambda s, kind: f"features.{2 * int(s) - 2}.{NORM_CONV[kind]}",
    ),
    (r"stage(\d)_(\d+)", lambda s, b: f"features.{2 * int(s) - 1}.{b}"),
    (
        r"stage(\d)_(\d+)/(\w+)",
        lambda s, b, layer: f"features.{2 * int(s) - 1}.{b}.block.{CONVNEXT_PLACES[layer]}",
    ),
    (r"norm", lambda: "classifier.0"),
]
CONVNEXT_LAYERS = {
    "depthwise": "conv_dw",
    "norm": "norm",
    "mlp_in": "mlp.fc1",
    "mlp_out": "mlp.fc2",
}
CONVNEXT_TIMM: Rules = [
    (r"stem_(conv|norm)", lambda kind: f"stem.{1 - NORM_CONV[kind]}"),
    (
        r"downsample(\d)_(conv|norm)",
        lambda s, kind: f"stages.{int(s) - 1}.downsample.{NORM_CONV[kind]}",
    ),
    (r"stage(\d)_(\d+)", lambda s, b: f"stages.{int(s) - 1}.blocks.{b}"),
    (
        r"stage(\d)_(\d+)/(\w+)",
        lambda s, b, layer: f"stages.{int(s) - 1}.blocks.{b}.{CONVNEXT_LAYERS[layer]}",
    ),
    (r"norm", lambda: "head.norm"),
]

TRANSFORMER_LAYERS = {
    "norm1": "norm1",
    "qkv": "attn.qkv",
    "attention_out": "attn.proj",
    "norm2": "norm2",
    "mlp_in": "mlp.fc1",
    "mlp_out": "mlp.fc2",
}
TRANSFORMER: Rules = [
    (r"", lambda: ""),
    (r"patch_embedding", lambda: "patch_embed.proj"),
    (r"norm", lambda: "norm"),
    (r"block(\d+)/(\w+)", lambda b, layer: f"blocks.{b}.{TRANSFORMER_LAYERS[layer]}"),
]
TRANSFORMER_TOKENS = {
    "class_token": "cls_token",
    "distillation_token": "dist_token",
    "position": "pos_embed",
}
VIT_LAYERS = {
    "norm1": "ln_1",
    "qkv": "self_attention.in_proj_",
    "attention_out": "self_attention.out_proj",
    "norm2": "ln_2",
    "mlp_in": "mlp.0",
    "mlp_out": "mlp.3",
}
VIT: Rules = [
    (r"", lambda: ""),
    (r"patch_embedding", lambda: "conv_proj"),
    (r"norm", lambda: "encoder.ln"),
    (
        r"block(\d+)/(\w+)",
        lambda b, layer: f"encoder.layers.encoder_layer_{b}.{VIT_LAYERS[layer]}",
    ),
]
VIT_TOKENS = {
    "class_token": "class_token",
    "distillation_token": "dist_token",  # not in torchvision
    "position": "encoder.pos_embedding",
}

FAMILIES: dict[str, Collection[str]] = {
    "resnet": resnet.VARIANTS,
    "transformer": deit.VARIANTS,
    "convnext": convnext.DEPTHS,
}


# family: layout; the first is the one of exports
LAYOUTS: dict[str, dict[str, Layout]] = {
    "resnet": {
        "torchvision": Layout(RESNET, "fc"),
        "cone": Layout(RESNET, "fc"),
    },
    "regnetx_400mf": {"torchvision": Layout(REGNET, "fc"), "timm": Layout(REGNET_TIMM, "head.fc")},
    "mobilenet_v2": {
        "torchvision": Layout(MOBILENET, "classifier.1"),
        "timm": Layout(MOBILENET_TIMM, "classifier"),
    },
    "shufflenet_v2": {"torchvision": Layout(SHUFFLENET, "fc")},
    "shufflenet_v2 of its authors": {"authors": Layout(SHUFFLENET_AUTHORS, "classifier.0")},
    "efficientnet_b0": {
        "torchvision": Layout(EFFICIENTNET, "classifier.1"),
        "timm": Layout(EFFICIENTNET_TIMM, "classifier"),
    },
    "convnext": {
        "torchvision": Layout(CONVNEXT, "classifier.2", {"layer_scale": ".layer_scale"}),
        "timm": Layout(CONVNEXT_TIMM, "head.fc", {"layer_scale": ".gamma"}),
    },
    "transformer": {
        "timm": Layout(TRANSFORMER, "head", TRANSFORMER_TOKENS),
        "torchvision": Layout(VIT, "heads.head", VIT_TOKENS),
    },
}
