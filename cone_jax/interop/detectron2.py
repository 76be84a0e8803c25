"""A ResNet backbone for Detectron2, with configs for Mask R-CNN on COCO.

Detectron2 reads a pickle of arrays by its own names: torchvision's, with ``layer1..4`` as
``res2..res5`` and each norm below its convolution. The two configs are those the paper refers
to: R50-C4 as in MoCo, R50-FPN as in InfoMin, both with the 1x schedule. Pickles are written
here and never read: the check after writing works on what went in and on the file's bytes.
"""

import copyreg
import hashlib
import io
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cone_jax.errors import UserError
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.interop.state_dict import StateDict
from cone_jax.models import Encoder

DEPTHS = {"resnet50": 50, "resnet101": 101, "resnet152": 152}
STAGES = ("res2", "res3", "res4", "res5")


def backbone(encoder: Encoder, state_dict: Mapping[str, np.ndarray]) -> StateDict:
    """The backbone's tensors under Detectron2's names."""
    spec = encoder.spec
    if spec.name not in DEPTHS or spec.stem != "imagenet" or dict(spec.options).get("width"):
        raise UserError(
            f"--format (detectron2) takes {', '.join(DEPTHS)} with the ImageNet stem, not "
            f"{spec.name} with stem {spec.stem!r} and options {dict(spec.options)}"
        )
    return {
        to_detectron2(name): value
        for name, value in state_dict.items()
        if not name.startswith(("fc.", "projection.", "predictor."))
    }


def to_detectron2(name: str) -> str:
    """
    >>> to_detectron2("layer2.0.downsample.1.running_var")
    'res3.0.shortcut.norm.running_var'
    """
    name = re.sub(r"^layer(\d)", lambda match: f"res{int(match[1]) + 1}", name)
    if not name.startswith("res"):
        name = f"stem.{name}"
    name = re.sub(r"\bbn(\d)", r"conv\1.norm", name)
    return name.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")


def from_detectron2(name: str) -> str:
    """The inverse of `to_detectron2`."""
    name = name.replace("shortcut.norm", "downsample.1").replace("shortcut", "downsample.0")
    name = re.sub(r"\bconv(\d)\.norm", r"bn\1", name)
    name = re.sub(r"^res(\d)", lambda match: f"layer{int(match[1]) - 1}", name)
    return name.removeprefix("stem.")


def write(
    directory: Path, file: str, encoder: Encoder, tensors: StateDict, data: ExportMetadata
) -> None:
    """The pickle and two configs that refer to it; fails if the file is not what was meant."""
    content = {"model": tensors, "__author__": "cone_jax", "matching_heuristics": True}
    serialised = _pickle(content)
    (directory / file).write_bytes(serialised)
    written = hashlib.sha256((directory / file).read_bytes()).digest()
    if written != hashlib.sha256(serialised).digest():
        raise OSError(f"{directory / file} is not what was written; is the disk full?")
    for name, config in configs(encoder, file, data).items():
        text = yaml.safe_dump(config, sort_keys=False, default_flow_style=None)
        (directory / name).write_text(NOTES[name] + text)


def _pickle(content: Mapping[str, Any]) -> bytes:
    """Arrays as calls of ``numpy.ndarray(shape, dtype, buffer)``.

    NumPy's own pickles name its private modules, which moved in NumPy 2: older installations,
    as Detectron2's often are, could not read them.
    """
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=4)
    pickler.dispatch_table = copyreg.dispatch_table | {np.ndarray: _reduce_array}
    pickler.dump(content)
    return buffer.getvalue()


def _reduce_array(array: np.ndarray) -> tuple[Any, ...]:
    little_endian = np.ascontiguousarray(array, "<f4")
    return np.ndarray, (array.shape, "<f4", bytearray(little_endian.tobytes()))


C4, FPN = "mask_rcnn_C4_1x.yaml", "mask_rcnn_FPN_1x.yaml"
NOTES = {
    C4: """\
# Mask R-CNN, C4, 1x, as MoCo trains it. The head with the extra norm is registered by MoCo's
# detection/train_net.py: start it with that program, in this directory.
""",
    FPN: """\
# Mask R-CNN, FPN, 1x, as InfoMin trains it. Start it with Detectron2's tools/train_net.py, in
# this directory.
""",
}


def configs(encoder: Encoder, weights: str, data: ExportMetadata) -> dict[str, Any]:
    """Complete configs for both detectors: every deviation from Detectron2's defaults."""
    c4 = _base(weights, encoder, data)
    c4["MODEL"] |= {
        "RPN": {"PRE_NMS_TOPK_TEST": 6000, "POST_NMS_TOPK_TEST": 1000},
        "ROI_HEADS": {"NAME": "Res5ROIHeadsExtraNorm"},
    }
    fpn = _base(weights, encoder, data)
    fpn["MODEL"]["BACKBONE"]["NAME"] = "build_resnet_fpn_backbone"
    fpn["MODEL"]["RESNETS"]["OUT_FEATURES"] = list(STAGES)
    fpn["MODEL"] |= {
        "FPN": {"IN_FEATURES": list(STAGES), "NORM": "SyncBN"},
        "ANCHOR_GENERATOR": {
            "SIZES": [[32], [64], [128], [256], [512]],
            "ASPECT_RATIOS": [[0.5, 1.0, 2.0]],
        },
        "RPN": {
            "IN_FEATURES": ["p2", "p3", "p4", "p5", "p6"],
            "PRE_NMS_TOPK_TRAIN": 2000,
            "PRE_NMS_TOPK_TEST": 1000,
            "POST_NMS_TOPK_TRAIN": 1000,
            "POST_NMS_TOPK_TEST": 1000,
        },
        "ROI_HEADS": {"NAME": "StandardROIHeads", "IN_FEATURES": ["p2", "p3", "p4", "p5"]},
        "ROI_BOX_HEAD": {
            "NAME": "FastRCNNConvFCHead",
            "NUM_CONV": 4,
            "NUM_FC": 1,
            "NORM": "SyncBN",
            "POOLER_RESOLUTION": 7,
        },
        "ROI_MASK_HEAD": {
            "NAME": "MaskRCNNConvUpsampleHead",
            "NUM_CONV": 4,
            "NORM": "SyncBN",
            "POOLER_RESOLUTION": 14,
        },
    }
    return {C4: c4, FPN: fpn}


def _base(weights: str, encoder: Encoder, data: ExportMetadata) -> dict[str, Any]:
    """What both detectors need: RGB pixels, these statistics, the network's strides."""
    return {
        "MODEL": {
            "META_ARCHITECTURE": "GeneralizedRCNN",
            "WEIGHTS": weights,
            "MASK_ON": True,
            "PIXEL_MEAN": [round(255 * value, 3) for value in data.mean],
            "PIXEL_STD": [round(255 * value, 3) for value in data.std],
            "BACKBONE": {"FREEZE_AT": 0},
            "RESNETS": {
                "DEPTH": DEPTHS[encoder.spec.name],
                "NORM": "SyncBN",
                "STRIDE_IN_1X1": dict(encoder.spec.options).get("stride_in_1x1", False),
            },
        },
        "INPUT": {
            "FORMAT": "RGB",
            "MIN_SIZE_TRAIN": [640, 672, 704, 736, 768, 800],
            "MIN_SIZE_TEST": 800,
        },
        "DATASETS": {"TRAIN": ["coco_2017_train"], "TEST": ["coco_2017_val"]},
        "SOLVER": {
            "IMS_PER_BATCH": 16,
            "BASE_LR": 0.02,
            "STEPS": [60000, 80000],
            "MAX_ITER": 90000,
        },
        "TEST": {"PRECISE_BN": {"ENABLED": True}},
        "VERSION": 2,
    }
