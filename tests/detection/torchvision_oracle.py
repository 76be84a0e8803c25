"""torchvision's detector as the reference, where its compiled operations do not load.

`nms` gets a kernel in Python, written from its description; the rest of torchvision is its own
Python. Its Python `roi_align` does not zero samples far outside the map, as the compiled one does:
compare boxes inside the map with it, and others with onnxruntime.
"""

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # or roi_align goes through a C++ compiler

import torch

torch.set_num_threads(1)

LIBRARY = torch.library.Library("torchvision", "DEF")
LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def greedy_nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Best first; each box that stays removes the later ones that overlap it too much."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    order = scores.sort(descending=True, stable=True).indices
    kept = []
    while order.numel():
        best, rest = order[0], order[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[rest, :2])
        high = torch.minimum(boxes[best, 2:], boxes[rest, 2:])
        common = (high - low).clamp(min=0).prod(dim=1)
        overlap = common / (area[best] + area[rest] - common)
        order = rest[~(overlap > iou_threshold)]
    return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)


LIBRARY.impl("nms", greedy_nms, "CPU")

import torchvision  # noqa: E402 - finds the operations declared above
import torchvision.ops.boxes  # noqa: E402

torchvision.ops.boxes._assert_has_ops = lambda: None
