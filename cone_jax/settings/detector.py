"""Every number of a detector that a config can choose; the defaults are Detectron2's with FPN.

The network's other half, backbone, width and precision, is in the section ``model``, as for every
other method. Where implementations differ the field says who does what.
"""

import dataclasses
from typing import Literal

from cone_jax.settings.section import Section, field


@dataclasses.dataclass(frozen=True)
class Detector(Section, path="objective.detection"):
    """Mask R-CNN: norms, heads, anchors, matching, sampling, proposals, losses, detections."""

    neck: Literal["fpn", "c4"] = field("fpn", "a feature pyramid, or C4 with res5 as the head")
    masks: bool = field(True, "predict masks; False: boxes only, as Faster R-CNN")
    backbone_norm: Literal["frozen", "batch"] = field(
        "frozen", "BatchNorm of the backbone: constant, or trained with global statistics (SyncBN)"
    )
    head_norm: Literal["none", "batch"] = field("none", "norm in pyramid, box head and mask head")
    res5_norm: bool = field(False, "one more BatchNorm after res5 (MoCo's C4)")
    norm_epsilon: float = field(
        1e-5, "epsilon of frozen BatchNorm; 0 for torchvision's released detectors", low=0
    )
    freeze_at: int = field(
        2, "number of first stages that are not trained; the stem counts as one", low=0, high=5
    )
    precise_bn_batches: int = field(
        0, "number of batches for BatchNorm's statistics before evaluation; 0: running ones", low=0
    )

    pyramid_channels: int = field(256, "channels of every level", low=1)
    box_head: Literal["linear", "convolutions"] = field(
        "linear", "two linear layers, or convolutions and a linear layer (InfoMin)"
    )
    box_convolutions: int = field(4, "convolutions of a box head that has them", low=0)
    box_features: int = field(1024, "width of the linear layers", low=1)
    mask_convolutions: int = field(4, "convolutions of the mask head", low=0)
    mask_channels: int = field(256, "channels of the mask head", low=1)

    anchor_sizes: tuple[float, ...] = field(
        (32.0, 64.0, 128.0, 256.0, 512.0), "sides of anchors in pixels", above=0
    )
    anchor_ratios: tuple[float, ...] = field((0.5, 1.0, 2.0), "height divided by width", above=0)
    anchor_style: Literal["detectron2", "torchvision"] = field(
        "detectron2", "torchvision rounds the corners of anchors, Detectron2 does not"
    )
    padding_anchors: bool = field(False, "use anchors whose centre is in the padding of an image")
    crowd_overlap: float | None = field(
        None, "background with at least this share inside a crowd is ignored; None: it is not"
    )

    rpn_low: float = field(0.3, "overlap below which an anchor is background", low=0, high=1)
    rpn_high: float = field(0.7, "overlap from which an anchor is an object", low=0, high=1)
    rpn_samples: int = field(256, "anchors sampled per image", low=1)
    rpn_objects: float = field(0.5, "largest share of objects among these anchors", low=0, high=1)
    rpn_nms: float = field(0.7, "overlap from which a proposal is suppressed", low=0, high=1)
    rpn_loss_over: Literal["sampled", "slots"] = field(
        "slots", "divide the loss by the samples asked for (Detectron2) or by those found"
    )
    nms_on_probabilities: bool = field(
        False, "proposals are sorted by rounded sigmoids, as in torchvision"
    )
    proposals_before_nms: tuple[int, int] = field(
        (2000, 1000), "proposals per level before suppression, in training and inference", low=1
    )
    proposals: tuple[int, int] = field(
        (1000, 1000), "proposals per image, in training and inference", low=1
    )
    proposal_min_side: float = field(
        0.0, "shortest side of a proposal; smaller ones are dropped", low=0
    )

    roi_threshold: float = field(0.5, "overlap from which a proposal is an object", low=0, high=1)
    roi_samples: int = field(512, "proposals sampled per image", low=1)
    roi_objects: float = field(
        0.25, "largest share of objects among these proposals", low=0, high=1
    )
    box_weights: tuple[float, float, float, float] = field(
        (10.0, 10.0, 5.0, 5.0), "weights of the box coder", above=0
    )
    smooth_l1_beta: float = field(
        0.0, "where the loss of boxes turns from square to linear; 0: L1", low=0
    )
    box_resolution: int = field(
        7, "side of pooled features; 14 with C4, where res5 halves it", low=1
    )
    mask_resolution: int = field(14, "side of pooled features; masks have twice as much", low=1)
    sampling_ratio: int = field(0, "RoIAlign's samples per bin and side; 0: adaptive", low=0)
    aligned: bool = field(True, "RoIAlign shifts by half a pixel")
    binary_mask_targets: bool = field(True, "mask targets are 0 or 1")

    score_threshold: float = field(0.05, "least score of a detection", low=0, high=1)
    detection_nms: float = field(
        0.5, "overlap from which a detection of the same class is suppressed", low=0, high=1
    )
    detections: int = field(100, "largest number of detections per image", low=1)
    detection_min_side: float = field(
        0.0, "shortest side of a detection; smaller ones are dropped", low=0
    )
