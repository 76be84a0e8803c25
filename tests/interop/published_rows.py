"""The table of published weights, as timm and torchvision describe them themselves.

`python -m tests.interop.published_rows` prints `cone_jax/interop/published.csv`; a test compares
the two. Top-1 of torchvision is what it says of its weights. That of timm is in `timm_results.csv`,
from results/results-imagenet.csv of huggingface/pytorch-image-models, commit 0173a139, for the
resolution and crop of its table; three of them it does not have.
"""

import csv
import io
import math
import re
from pathlib import Path

from cone_jax import models
from tests.detection import torchvision_oracle  # noqa: F401 - before torchvision

import timm  # isort: skip
import timm.models
import torchvision

COLUMNS = (
    "id", "network", "options", "file", "sha256", "size", "resize", "interpolation", "mean", "std",
    "classes", "top1", "licence",
)  # fmt: skip
# Their architectures by the name that a network has here, and the options it then needs.
TIMM = {
    "resnet18": ("resnet18", ""),
    "resnet26": ("resnet26", ""),
    "resnet34": ("resnet34", ""),
    "resnet50": ("resnet50", ""),
    "resnet101": ("resnet101", ""),
    "resnet152": ("resnet152", ""),
    "regnetx_004": ("regnetx_400mf", "last_width=384"),
    "regnetx_004_tv": ("regnetx_400mf", ""),
    "mobilenetv2_100": ("mobilenet_v2", ""),
    "deit_tiny_patch16_224": ("deit_tiny", ""),
    "deit_small_patch16_224": ("deit_small", ""),
    "deit_base_patch16_224": ("deit_base", ""),
    "deit_tiny_distilled_patch16_224": ("deit_tiny", "distilled=True"),
    "deit_small_distilled_patch16_224": ("deit_small", "distilled=True"),
    "deit_base_distilled_patch16_224": ("deit_base", "distilled=True"),
    "deit_base_patch16_384": ("deit_base", ""),
    "deit_base_distilled_patch16_384": ("deit_base", "distilled=True"),
    # ViT-Ti and ViT-S are the networks of DeiT under other names, too.
    "vit_tiny_patch16_224": ("deit_tiny", ""),
    "vit_tiny_patch16_384": ("deit_tiny", ""),
    "vit_small_patch16_224": ("deit_small", ""),
    "vit_small_patch16_384": ("deit_small", ""),
    "vit_base_patch16_224": ("vit_b_16", ""),
    "vit_base_patch16_384": ("vit_b_16", ""),
    "vit_base_patch32_224": ("vit_b_32", ""),
    "vit_base_patch32_384": ("vit_b_32", ""),
    "convnext_tiny": ("convnext_tiny", ""),
    "convnext_small": ("convnext_small", ""),
    "efficientnet_b0": ("efficientnet_b0", ""),
}
TORCHVISION = {
    "resnet18": "resnet18",
    "resnet34": "resnet34",
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "resnet152": "resnet152",
    "regnet_x_400mf": "regnetx_400mf",
    "mobilenet_v2": "mobilenet_v2",
    "shufflenet_v2_x1_0": "shufflenet_v2",
    "vit_b_16": "vit_b_16",
    "vit_b_32": "vit_b_32",
    "convnext_tiny": "convnext_tiny",
    "convnext_small": "convnext_small",
    "efficientnet_b0": "efficientnet_b0",
}
# The only ones of torchvision's that it names a licence of; its README says which that is.
LICENCES = {"https://github.com/facebookresearch/SWAG/blob/main/LICENSE": "cc-by-nc-4.0"}
IMAGENET = 1000
with Path(__file__).with_name("timm_results.csv").open() as _file:
    TIMM_TOP1 = {row["model"]: row["top1"] for row in csv.DictReader(_file)}


def rows() -> list[dict[str, str]]:
    """All that a network here can take, timm's first."""
    known = set(models.names())
    found = [
        _of_timm(name, *TIMM[name.partition(".")[0]])
        for name in timm.list_pretrained()
        if TIMM.get(name.partition(".")[0], ("",))[0] in known
        and _is_usable(timm.models.get_pretrained_cfg(name))
    ]
    for name, network in TORCHVISION.items():
        if network in known:
            kinds = torchvision.models.get_model_weights(name)
            found += [
                _of_torchvision(name, network, weights)
                for weights in sorted(kinds, key=lambda each: each is kinds.DEFAULT)  # it is last
            ]
    return found


def _is_usable(config: "timm.models.PretrainedCfg") -> bool:
    """ImageNet's classes, from the centre of the picture or the picture squashed to a square."""
    return config.num_classes == IMAGENET and config.crop_mode in ("center", "squash")


def _of_timm(name: str, network: str, options: str) -> dict[str, str]:
    config = timm.models.get_pretrained_cfg(name)
    size = (config.test_input_size or config.input_size)[-1]
    crop = config.test_crop_pct or config.crop_pct
    side = math.floor(size / crop)
    return {
        "id": f"timm:{name}",
        "network": network,
        "options": options,
        "file": f"hf://{config.hf_hub_id}",
        "sha256": "",
        "size": str(size),
        "resize": f"{side}x{side}" if config.crop_mode == "squash" else str(side),
        "interpolation": config.interpolation,
        "mean": " ".join(map(str, config.mean)),
        "std": " ".join(map(str, config.std)),
        "classes": "imagenet",
        "top1": TIMM_TOP1.get(name, ""),
        "licence": config.license or "",
    }


def _of_torchvision(name: str, network: str, weights: "torchvision.models.WeightsEnum"):
    preset = weights.transforms()
    digits = re.search(r"-([0-9a-f]{8,})\.pth$", weights.url)
    return {
        "id": f"torchvision:{name}.{weights.name}",
        "network": network,
        "options": "",
        "file": weights.url,
        "sha256": digits[1] if digits else "",
        "size": str(preset.crop_size[0]),
        "resize": str(preset.resize_size[0]),
        "interpolation": preset.interpolation.value,
        "mean": " ".join(map(str, preset.mean)),
        "std": " ".join(map(str, preset.std)),
        "classes": "imagenet",
        "top1": str(weights.meta["_metrics"]["ImageNet-1K"]["acc@1"]),
        "licence": LICENCES.get(weights.meta.get("license", ""), ""),
    }


def text() -> str:
    """The file."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows())
    return buffer.getvalue()


if __name__ == "__main__":
    print(text(), end="")
