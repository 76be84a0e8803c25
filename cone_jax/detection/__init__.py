"""Mask R-CNN: boxes and masks of objects, from pure functions to a whole detector.

`Detector` is the network, `Settings` holds its numbers. The functions behind it take and give
plain arrays and are useful by themselves.
"""

from cone_jax.detection.backbone import Backbone, is_frozen
from cone_jax.detection.batch import Detections, GroundTruth
from cone_jax.detection.boxes import iou
from cone_jax.detection.detector import Detector
from cone_jax.detection.roi_pooling import crop_masks, multilevel_roi_align, roi_align
from cone_jax.detection.settings import Settings
from cone_jax.detection.suppression import nms

__all__ = [
    "Backbone",
    "Detections",
    "Detector",
    "GroundTruth",
    "Settings",
    "crop_masks",
    "iou",
    "is_frozen",
    "multilevel_roi_align",
    "nms",
    "roi_align",
]
