"""What other ecosystems call the parameters of our networks.

A layout gives every variable of an encoder its name in a PyTorch state dict. Exports use
torchvision's names for the backbone, and in place of the classifier's single layer, where there
is a projection head, a sequence of layers, so that

    model = torchvision.models.resnet50()
    model.fc = nn.Sequential(nn.Linear(2048, 4096), nn.BatchNorm1d(4096), nn.ReLU(),
                             nn.Linear(4096, 256), nn.Linear(256, 1000))
    model.load_state_dict(exported)

works as it stands. DeiT is not in torchvision and is exported under timm's names, which are
its authors'. The other `timm` names, and `cone` (the released checkpoint: ``net``, ``head``,
``fc``), are read only.

A network that nobody else knows, such as one of the user's own, has the layout `cone_jax`: the
paths of its variables, joined by "/", and each array as Flax arranges it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import flax

from cone_jax.models import Encoder, ModelSpec, Projection, resnet

Path = tuple[str, ...]
# From a module's path below the backbone, joined by "/", to its name; the first match counts.
Rules = list[tuple[str, Callable[..., str]]]

# The layout that every network has.
OWN = "cone_jax"

LEAVES = {
    "kernel": ".weight",
    "scale": ".weight",
    "bias": ".bias",
    "mean": ".running_mean",
    "var": ".running_var",
}


def names(encoder: Encoder, variables: Mapping[str, Any], layout: str) -> dict[Path, str]:
    """The name of every variable, by its path such as ``("params", "classifier", "bias")``."""
    paths = flax.traverse_util.flatten_dict(dict(variables))
    if layout == OWN:
        return {path: "/".join(path) for path in paths}
    spec = encoder.spec
    rules, classifier = LAYOUTS[layout][_family(spec)]
    head = _head_names(spec, classifier, separate=layout == "cone")
    prefix = "net." if layout == "cone" else ""
    result = {}
    for path in paths:
        _, part, *module, leaf = path
        if part == "backbone":
            module_name = prefix + _apply(rules, "/".join(module))
        else:
            module_name = head["/".join((part, *module))]
        result[path] = module_name + LEAVES[leaf] if leaf in LEAVES else prefix + TOKENS[leaf]
    return result


def available(encoder: Encoder) -> list[str]:
    """The layouts in which this architecture is known to exist; the first is that of exports."""
    family = _family(encoder.spec)
    return [*(layout for layout, families in LAYOUTS.items() if family in families), OWN]


def _head_layers(head: Projection | None, part: str) -> list[str]:
    if head is None:
        return []
    layers = [""] if head.normalise_input else []
    for index in range(1, head.layers + 1):
        layers.append(f"{part}/linear{index}")
        if head.batch_norm:
            layers.append(f"{part}/bn{index}")
        layers.append("")
    layers.append(f"{part}/linear_out")
    return [*layers, f"{part}/bn_out"] if head.output_batch_norm else layers


def _head_names(spec: ModelSpec, classifier: str, *, separate: bool) -> dict[str, str]:
    """The names of all layers after the backbone. In a sequence, "" is a layer without values."""
    projection = _head_layers(spec.projection, "projection")
    sequences = {"predictor": _head_layers(spec.predictor, "predictor")}
    unit_norm = [""] if spec.classifier.kind == "cosine" else []
    if separate:
        sequences |= {"head.head": projection, classifier: ["classifier"]}
    elif spec.classifier.input == "embedding":
        sequences[classifier] = [*projection, *unit_norm, "classifier"]
    else:
        sequences |= {"projection": projection, classifier: [*unit_norm, "classifier"]}
    return {
        layer: base if layers == ["classifier"] else f"{base}.{index}"
        for base, layers in sequences.items()
        for index, layer in enumerate(layers)
        if layer
    }


def _family(spec: ModelSpec) -> str:
    return "resnet" if spec.name in resnet.VARIANTS else spec.name


def _apply(rules: Rules, module: str) -> str:
    for pattern, name in rules:
        match = re.fullmatch(pattern, module)
        if match:
            return name(*match.groups())
    raise AssertionError(f"no layout rule matches {module!r}")


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


SHUFFLENET: Rules = [
    (r"stem_(conv|bn)", lambda kind: f"conv1.{CONV_BN[kind]}"),
    (r"last_(conv|bn)", lambda kind: f"conv5.{CONV_BN[kind]}"),
    (r"stage(\d)_(\d+)/(\w+)_(conv|bn)", _shufflenet_unit),
]

DEIT_LAYERS = {
    "norm1": "norm1",
    "qkv": "attn.qkv",
    "attention_out": "attn.proj",
    "norm2": "norm2",
    "mlp_in": "mlp.fc1",
    "mlp_out": "mlp.fc2",
}
DEIT: Rules = [
    (r"", lambda: ""),
    (r"patch_embedding", lambda: "patch_embed.proj"),
    (r"norm", lambda: "norm"),
    (r"block(\d+)/(\w+)", lambda b, layer: f"blocks.{b}.{DEIT_LAYERS[layer]}"),
]
# The transformer's parameters without a layer of their own.
TOKENS = {"class_token": "cls_token", "position": "pos_embed"}

# layout: family: (rules of the backbone, name of the classifier)
LAYOUTS: dict[str, dict[str, tuple[Rules, str]]] = {
    "torchvision": {
        "resnet": (RESNET, "fc"),
        "regnetx_400mf": (REGNET, "fc"),
        "mobilenet_v2": (MOBILENET, "classifier.1"),
        "shufflenet_v2": (SHUFFLENET, "fc"),
    },
    "timm": {
        "regnetx_400mf": (REGNET_TIMM, "head.fc"),
        "mobilenet_v2": (MOBILENET_TIMM, "classifier"),
        "deit_tiny": (DEIT, "head"),
    },
    "cone": {
        "resnet": (RESNET, "fc"),
    },
}
