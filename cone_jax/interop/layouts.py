"""What other ecosystems call the parameters of our networks.

A layout gives every variable of an encoder its name in a PyTorch state dict. Exports use
torchvision's names for the backbone, and in place of the classifier's single layer, where there
is a projection head, a sequence of layers, so that

    model = torchvision.models.resnet50()
    model.fc = nn.Sequential(nn.Linear(2048, 4096), nn.BatchNorm1d(4096), nn.ReLU(),
                             nn.Linear(4096, 256), nn.Linear(256, 1000))
    model.load_state_dict(exported)

works as it stands. Transformers are exported under timm's names, which are DeiT's authors'. The
other layouts of a network are read only, such as `cone` (the released checkpoint: ``net``,
``head``, ``fc``).

A distilled DeiT has two classifiers, whose average is one of ours (`cone_jax.models.deit`). In
its layout that one is called by both names, joined by `JOINT`; `state_dict` joins and splits.

A network that nobody else knows, such as one of the user's own, has the layout `cone_jax`: the
paths of its variables, joined by "/", and each array as Flax arranges it.
"""

import re
from collections.abc import Mapping
from typing import Any

import flax

from cone_jax.interop.layout_rules import FAMILIES, LAYOUTS, Layout, Rules
from cone_jax.models import Encoder, ModelSpec, Projection

Path = tuple[str, ...]

# The layout that every network has.
OWN = "cone_jax"

# Between the names of two tensors that are one of ours.
JOINT = " + "

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
    rules, classifier, others = LAYOUTS[_family(spec)][layout]
    leaves = {**LEAVES, **others}
    head = _head_names(spec, classifier, separate=layout == "cone")
    prefix = "net." if layout == "cone" else ""
    result = {}
    for path in paths:
        _, part, *module, leaf = path
        if part == "backbone":
            module_name = prefix + _apply(rules, "/".join(module))
        else:
            module_name = head["/".join((part, *module))]
        name = module_name + leaves[leaf]
        result[path] = name.replace("_.", "_")  # in_proj_.weight: an array without a layer
        if part == "classifier" and has_two_classifiers(encoder):
            result[path] += JOINT + name.replace("head", "head_dist")
    return result


def has_two_classifiers(encoder: Encoder) -> bool:
    """Whether others have a classifier per token where this network has one of both tokens."""
    spec = encoder.spec
    on_features = spec.projection is None or spec.classifier.input == "features"
    is_distilled = getattr(encoder.backbone, "distilled", False)
    return is_distilled and on_features and spec.classifier.kind == "linear"


def of_network(name: str) -> list[Layout]:
    """How others name the network `name`, with any options."""
    specs = (ModelSpec(name, 1), ModelSpec(name, 1, options=(("channel_order", "authors"),)))
    return [layout for spec in specs for layout in LAYOUTS.get(_family(spec), {}).values()]


def module_name(layout: Layout, module: str) -> str:
    """The name of a module of the backbone, by its path joined by "/"."""
    return _apply(layout.rules, module)


def available(encoder: Encoder) -> list[str]:
    """The layouts in which this architecture is known to exist; the first is that of exports."""
    return [*LAYOUTS.get(_family(encoder.spec), ()), OWN]


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
    if dict(spec.options).get("channel_order") == "authors":
        return f"{spec.name} of its authors"
    for family, members in FAMILIES.items():
        if spec.name in members:
            return family
    return spec.name


def _apply(rules: Rules, module: str) -> str:
    for pattern, name in rules:
        match = re.fullmatch(pattern, module)
        if match:
            return name(*match.groups())
    raise AssertionError(f"no layout rule matches {module!r}")
