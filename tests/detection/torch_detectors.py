"""C4 and the heads with BatchNorm once more, in PyTorch, from the descriptions of their papers.

Functions on the parameters by our names and in our layout, so that gradients compare directly.
Images and features are [B, C, H, W] inside; BatchNorm takes the statistics of the batch.
"""

import math

import torch
import torch.nn.functional as F

from tests.detection import torchvision_oracle

roi_align = torchvision_oracle.torchvision.ops.roi_align
DEPTH = 2  # blocks per stage of ResNet-18


class Network:
    """`params` maps paths such as ``backbone/conv1/kernel`` to tensors."""

    def __init__(self, params, settings):
        self.params, self.settings = params, settings

    def conv(self, x, name, stride=1):
        kernel = self.params[f"{name}/kernel"].permute(3, 2, 0, 1).contiguous()
        bias = self.params.get(f"{name}/bias")
        return F.conv2d(x, kernel, bias, stride, kernel.shape[-1] // 2)

    def norm(self, x, name):
        scale, bias = self.params[f"{name}/scale"], self.params[f"{name}/bias"]
        return F.batch_norm(x, None, None, scale, bias, training=True)

    def conv_norm(self, x, name):
        return self.norm(self.conv(x, f"{name}/conv"), f"{name}/bn")

    def linear(self, x, name):
        return x @ self.params[f"{name}/kernel"] + self.params[f"{name}/bias"]

    def stem(self, x):
        x = self.norm(self.conv(x, "backbone/conv1", 2), "backbone/bn1").relu()
        return F.max_pool2d(x, 3, 2, 1)

    def stage(self, x, number):
        for index in range(DEPTH):
            name = f"backbone/layer{number}_{index}"
            stride = 2 if number > 1 and index == 0 else 1
            y = self.norm(self.conv(x, f"{name}/conv1", stride), f"{name}/bn1").relu()
            y = self.norm(self.conv(y, f"{name}/conv2"), f"{name}/bn2")
            if f"{name}/downsample_conv/kernel" in self.params:
                short = self.conv(x, f"{name}/downsample_conv", stride)
                x = self.norm(short, f"{name}/downsample_bn")
            x = (y + x).relu()
        return x

    def proposal_head(self, levels):
        """All anchors' logits [B, N] and codes [B, N, 4]: level by level, cell by cell."""
        logits, codes = [], []
        for level in levels:
            x = self.conv(level, "proposal_head/conv/conv").relu()
            for results, name, size in ((logits, "logits", 1), (codes, "codes", 4)):
                found = self.conv(x, f"proposal_head/{name}/conv").permute(0, 2, 3, 1)
                results.append(found.reshape(len(x), -1, size))
        return torch.cat(logits, 1)[..., 0], torch.cat(codes, 1)

    def predict(self, features):
        codes = self.linear(features, "box_predictor/codes")
        return self.linear(features, "box_predictor/logits"), codes.reshape(len(codes), -1, 4)

    def mask_head(self, x):
        for index in range(self.settings.mask_convolutions):
            x = self.conv_norm(x, f"mask_head/conv{index}").relu()
        kernel = self.params["mask_head/doubling/kernel"].permute(2, 3, 0, 1).contiguous()
        x = F.conv_transpose2d(x, kernel, self.params["mask_head/doubling/bias"], stride=2).relu()
        return self.conv(x, "mask_head/logits/conv").permute(0, 2, 3, 1)


def moco_c4(network, images, boxes):
    """MoCo's C4: res5 and one more BatchNorm on regions of 14 x 14."""
    x = network.stem(images)
    for number in (1, 2, 3):
        x = network.stage(x, number)
    regions = roi_align(x, list(boxes), 14, 1 / 16, sampling_ratio=-1, aligned=True)
    features = network.norm(network.stage(regions, 4), "res5_norm/bn")
    found = network.predict(features.mean((2, 3)))
    return (*network.proposal_head([x]), *found, network.mask_head(features))


def infomin_fpn(network, images, boxes):
    """InfoMin's FPN: BatchNorm in pyramid and heads, four convolutions before one linear layer."""
    x, stages = network.stem(images), []
    for number in (1, 2, 3, 4):
        x = network.stage(x, number)
        stages.append(x)
    levels, above = [], None
    for index in (3, 2, 1, 0):
        x = network.conv_norm(stages[index], f"pyramid/inner{index}")
        above = x if above is None else x + F.interpolate(above, scale_factor=2, mode="nearest")
        levels.insert(0, network.conv_norm(above, f"pyramid/layer{index}"))
    x = regions(levels, boxes, network.settings.box_resolution)
    for index in range(network.settings.box_convolutions):
        x = network.conv_norm(x, f"box_head/conv{index}").relu()
    flat = x.permute(0, 2, 3, 1).flatten(1)
    found = network.predict(network.linear(flat, "box_head/linear0").relu())
    masks = network.mask_head(regions(levels, boxes, network.settings.mask_resolution))
    anchored = [*levels, F.max_pool2d(levels[-1], 1, 2)]
    return (*network.proposal_head(anchored), *found, masks)


def regions(levels, boxes, size):
    """Each box from the level of Lin et al.'s equation 1, one box at a time."""
    found = []
    for image, own in enumerate(boxes):
        for box in own:
            x0, y0, x1, y1 = box.tolist()
            level = math.floor(4 + math.log2(math.sqrt((x1 - x0) * (y1 - y0)) / 224))
            level = min(max(level, 2), 5)
            features = levels[level - 2][image : image + 1]
            found.append(
                roi_align(features, [box[None]], size, 0.5**level, sampling_ratio=-1, aligned=True)
            )
    return torch.cat(found)
