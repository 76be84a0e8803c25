"""A network for Hugging Face's hub: the folder of a repository, and the way there.

The folder holds ``model.safetensors``, ``config.json`` in the form that timm's
``create_model("hf-hub:OWNER/NAME")`` reads, ``preprocessor_config.json``, ``export.json`` and a
model card. timm knows plain classifiers: a network with a projection head, another stem or width
is pushed under the names of our exports, and its card says so.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cone_jax import models
from cone_jax.errors import UserError, closest, optional_module
from cone_jax.interop import files, hub, importing, layouts, metadata, state_dict
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.models import Encoder, ModelSpec

# timm's name of each network; the option that decides between two is part of it.
TIMM_NAMES = {
    "resnet18": "resnet18",
    "resnet26": "resnet26",
    "resnet34": "resnet34",
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "resnet152": "resnet152",
    "resnet200": "resnet200",
    "regnetx_400mf": "regnetx_004_tv",
    "regnetx_400mf last_width=384": "regnetx_004",
    "mobilenet_v2": "mobilenetv2_100",
    "deit_tiny": "deit_tiny_patch16_224",
    "deit_small": "deit_small_patch16_224",
    "deit_base": "deit_base_patch16_224",
    "deit_tiny distilled=True": "deit_tiny_distilled_patch16_224",
    "deit_small distilled=True": "deit_small_distilled_patch16_224",
    "deit_base distilled=True": "deit_base_distilled_patch16_224",
    "vit_b_16": "vit_base_patch16_224",
    "vit_b_32": "vit_base_patch32_224",
    "convnext_tiny": "convnext_tiny",
    "convnext_small": "convnext_small",
    "efficientnet_b0": "efficientnet_b0",
}
_TRANSFORMERS = {name for name in TIMM_NAMES.values() if "_patch" in name}
# Options that are of training alone, or say how to compute. That of a transformer's positions is
# `_sized`'s.
_HARMLESS = {"dropout", "stochastic_depth", "remat", "bn_momentum", "bn_groups", "bn_frozen"}
_TIMM_SIZE = 224  # the pictures that timm's transformers above take unless they are told
_PILLOW = {"bilinear": 2, "bicubic": 3}
# The hub's identifiers, but for licences of single language models. "other" needs more than a name.
_LICENCES = """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m
    bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause bsd-3-clause
    bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0
    cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
    cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m ecl-2.0 epl-1.0 epl-2.0 etalab-2.0
    eupl-1.1 eupl-1.2 fair-noncommercial-research-license gfdl gpl gpl-2.0 gpl-3.0 h-research
    intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by
    ofl-1.1 openmdw-1.0 openrail openrail++ osl-3.0 pddl postgresql unknown unlicense wtfpl zlib
"""
LICENCES = tuple(_LICENCES.split())
UNKNOWN_LICENCE = "unknown"


class Story(NamedTuple):
    """What a model card says about a network, besides its description."""

    results: Mapping[str, float] = {}
    data: str = ""
    recipe: str = ""
    command: str = ""
    licence: str = UNKNOWN_LICENCE


def choose_licence(given: str, known: str) -> str:
    """The licence to push under: the one that is `given`, else the one that is `known`.

    >>> [choose_licence(given, "mit") for given in ("", "cc-by-4.0")], choose_licence("", "")
    (['mit', 'cc-by-4.0'], 'unknown')
    """
    if given and given not in LICENCES:
        raise UserError(
            f"--license ({given}) is not an identifier of the hub's; {closest(given, LICENCES)}"
        )
    return given or known or UNKNOWN_LICENCE


def timm_name(spec: ModelSpec) -> str:
    """The architecture of timm that computes the same; "" where it has none."""
    harmless = {*_HARMLESS, "image_size"}
    telling = [f"{k}={v}" for k, v in spec.options if k not in harmless and v]
    plain = spec.projection is None and spec.predictor is None and spec.stem == "imagenet"
    if not plain or spec.classifier.kind != "linear" or not spec.classifier.bias:
        return ""
    return TIMM_NAMES.get(" ".join([spec.name, *telling]), "")


def write_folder(
    folder: Path,
    repository: str,
    encoder: Encoder,
    variables: Mapping[str, Any],
    data: ExportMetadata,
    story: Story,
) -> list[Path]:
    """Writes the repository's files; returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    architecture = timm_name(encoder.spec)
    if architecture in _TRANSFORMERS:
        encoder, variables = _sized(encoder, variables, data.image_size)
    layout = _layout(encoder, architecture)
    tensors = state_dict.to_state_dict(encoder, variables, layout)
    files.write_safetensors(folder / hub.WEIGHTS_FILE, tensors, {"format": "pt", "layout": layout})
    metadata.write(folder, "safetensors", hub.WEIGHTS_FILE, encoder.spec, data, layout)
    pixels = _input(data)
    resized = ("height", "width") if pixels.squashed else ("shortest_edge",)
    texts = {
        "config.json": json.dumps(
            _config(architecture, encoder.spec, data, story.licence), indent=2
        ),
        "preprocessor_config.json": json.dumps(
            {
                "image_processor_type": "CLIPImageProcessor",
                "do_convert_rgb": True,
                "do_resize": True,
                "size": dict.fromkeys(resized, pixels.resize),
                "resample": _PILLOW[pixels.interpolation],
                "do_center_crop": True,
                "crop_size": {"height": pixels.size, "width": pixels.size},
                "do_rescale": True,
                "rescale_factor": 1 / 255,
                "do_normalize": True,
                "image_mean": list(data.mean),
                "image_std": list(data.std),
            },
            indent=2,
        ),
        "README.md": card(repository, architecture, encoder.spec, data, story),
    }
    for name, text in texts.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")
    return sorted(folder.iterdir())


def _sized(
    encoder: Encoder, variables: Mapping[str, Any], size: int
) -> tuple[Encoder, Mapping[str, Any]]:
    """The same transformer with positions for pictures of `size`: timm's take no others."""
    options = tuple(sorted({**dict(encoder.spec.options), "image_size": size}.items()))
    sized = models.build(dataclasses.replace(encoder.spec, options=options))
    tensors = state_dict.to_state_dict(encoder, variables, layouts.OWN)
    shapes = models.abstract_variables(sized, size)
    values, _ = importing.place(tensors, sized, shapes, layout=layouts.OWN)
    return sized, values


def _layout(encoder: Encoder, architecture: str) -> str:
    """The layout of the tensors: timm's if timm has the network, otherwise that of exports."""
    known = layouts.available(encoder)
    return "timm" if architecture and "timm" in known else known[0]


class _Input(NamedTuple):
    """How pictures become input, as far as a description's transforms say so."""

    resize: int
    size: int
    interpolation: str = "bilinear"
    squashed: bool = False  # both sides are resized, whatever the picture's were


def _input(data: ExportMetadata) -> _Input:
    size = data.image_size
    sides = r"(?:(\d+)|\((\d+), \2\))"
    match = re.search(rf"resize\({sides}(?:, interpolation='(\w+)')?\)", " ".join(data.transforms))
    if match is None:
        return _Input(size, size)
    return _Input(int(match[1] or match[2]), size, match[3] or "bilinear", match[2] is not None)


def _config(
    architecture: str, spec: ModelSpec, data: ExportMetadata, licence: str
) -> dict[str, Any]:
    """What timm reads; without an architecture of its own, what the network is here."""
    resize, size, interpolation, squashed = _input(data)
    crop = size / resize
    if math.floor(size / crop) != resize:  # timm divides, and rounds down
        crop = size / (resize + 1e-3)
    described = {
        "input_size": [3, size, size],
        "interpolation": interpolation,
        "crop_pct": crop,
        "crop_mode": "squash" if squashed else "center",
        "mean": list(data.mean),
        "std": list(data.std),
        "num_classes": spec.num_classes,
        "license": licence,
    }
    network = {"architecture": architecture} if architecture else {"cone_jax": spec.to_dict()}
    told = {"model_args": {"img_size": size}} if size != _TIMM_SIZE else {}
    return {
        **network,
        **(told if architecture in _TRANSFORMERS else {}),
        "num_classes": spec.num_classes,
        "label_names": list(data.class_names),
        "pretrained_cfg": described,
    }


def card(
    repository: str, architecture: str, spec: ModelSpec, data: ExportMetadata, story: Story
) -> str:
    """The README of the repository."""
    lines = [
        "---",
        f"license: {story.licence}",
        "pipeline_tag: image-classification",
        f"library_name: {'timm' if architecture else 'cone_jax'}",
        "tags: [image-classification, jax]",
        "---",
        f"# {repository.rpartition('/')[2]}",
        "",
        f"{spec.name} for {spec.num_classes} classes, {data.image_size} pixels; "
        f"input {', '.join(data.transforms) or 'as it is'}, mean {list(data.mean)}, "
        f"std {list(data.std)}.",
        "",
    ]
    if story.results:
        lines += ["| metric | value |", "|---|---|"]
        lines += [f"| {name} | {value:.4f} |" for name, value in story.results.items()]
        lines.append("")
    for title, text in (("Data", story.data), ("Recipe", story.recipe)):
        lines += [f"{title}: {text}", ""] if text else []
    if story.command:
        lines += ["Trained with", "", f"    {story.command}", ""]
    if architecture:
        lines += [f'    timm.create_model("hf-hub:{repository}", pretrained=True)', ""]
    else:
        lines += [
            "The network has parts that timm does not have (`config.json` lists them). Its tensors "
            "have the names of cone_jax's exports.",
            "",
        ]
    lines += [f"    cone predict --model=hf://{repository} --images=photos/", ""]
    origin = ", ".join(f"{name} {value}" for name, value in data.origin.items() if value)
    return "\n".join([*lines, f"From cone_jax {metadata.versions()['cone_jax']}: {origin}."])


def push(folder: Path, reference: str) -> str:
    """Uploads a folder to ``hf://OWNER/NAME``, created if necessary; returns its address."""
    repository = repository_of(reference)
    library = optional_module("huggingface_hub", "hub")
    errors = optional_module("huggingface_hub.errors", "hub")
    api = library.HfApi(library_name="cone_jax")
    try:
        api.create_repo(repository, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload with cone_jax"
        )
    except errors.HFValidationError as error:
        raise UserError(f"--push ({reference}) is not a repository: {hub.cause(error)}") from error
    except errors.LocalTokenNotFoundError as error:
        raise UserError(f"--push ({reference}) needs a login: hf auth login") from error
    except errors.HfHubHTTPError as error:
        code = getattr(getattr(error, "response", None), "status_code", None)
        if code in (401, 403):
            raise UserError(
                f"--push ({reference}) is not allowed ({code}); log in with a token that may "
                "write: hf auth login"
            ) from error
        raise hub.DownloadFailed(f"--push ({reference}): {hub.cause(error)}") from error
    except hub.transport_errors() as error:
        raise hub.DownloadFailed(f"--push ({reference}): {hub.cause(error)}") from error
    return f"{library.constants.ENDPOINT}/{repository}"


def repository_of(reference: str) -> str:
    """OWNER/NAME of ``hf://OWNER/NAME``."""
    repository, revision = hub.parse(reference)
    if revision:
        raise UserError(f"--push ({reference}) takes no revision; leave out @{revision}")
    return repository
