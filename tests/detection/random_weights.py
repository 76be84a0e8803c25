"""torchvision's Mask R-CNN with random weights that find something, and what goes into it."""

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from cone_jax import detection
from tests.detection import torchvision_oracle

models = torchvision_oracle.torchvision.models.detection
MEAN, STD = (torch.tensor(x)[:, None, None] for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


def maskrcnn_resnet50(seed=0, **options):
    """`maskrcnn_resnet50_fpn`; images pass through unscaled if they have `min_size`."""
    torch.manual_seed(seed)
    network = models.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, **options)
    return randomised(network, seed)


def maskrcnn_resnet18(seed=0, **options):
    torch.manual_seed(seed)
    backbone = models.backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, trainable_layers=5
    )
    return randomised(models.MaskRCNN(backbone, **options), seed)


def with_batch_norm_heads(channels, features, seed=0, **options):
    """ResNet-18 with the pyramid and heads of `maskrcnn_resnet50_fpn_v2`, narrower."""
    torch.manual_seed(seed)
    norm = torch.nn.BatchNorm2d
    backbone = models.backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, trainable_layers=5
    )
    widths = [64, 128, 256, 512]
    backbone.fpn = torchvision_oracle.torchvision.ops.FeaturePyramidNetwork(
        widths, channels, backbone.fpn.extra_blocks, norm_layer=norm
    )
    backbone.out_channels = channels
    layers = [channels] * 4
    box_head = models.faster_rcnn.FastRCNNConvFCHead(
        (channels, 7, 7), layers, [features], norm_layer=norm
    )
    mask_head = models.mask_rcnn.MaskRCNNHeads(channels, layers, 1, norm_layer=norm)
    classes = options.pop("num_classes")
    predictors = {
        "box_predictor": models.faster_rcnn.FastRCNNPredictor(features, classes),
        "mask_predictor": models.mask_rcnn.MaskRCNNPredictor(channels, channels, classes),
    }
    network = models.MaskRCNN(
        backbone, box_head=box_head, mask_head=mask_head, **predictors, **options
    )
    return randomised(network, seed)


@torch.no_grad()
def randomised(network, seed):
    """Nothing left at 0 or 1, activations of the order of 1, scores neither all alike nor all 1."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(like, low, high):
        return low + (high - low) * torch.rand(like.shape, generator=generator)

    for name, value in network.state_dict().items():
        if name.endswith("running_mean"):
            value.copy_(uniform(value, -0.2, 0.2))
        elif name.endswith("running_var"):
            value.copy_(uniform(value, 0.8, 1.6))
        elif value.ndim == 1 and name.endswith("weight"):
            small = name.endswith(("bn3.weight", "downsample.1.weight"))
            value.copy_(uniform(value, 0.3, 0.5) if small else uniform(value, 0.7, 1.1))
        elif name.endswith("bias"):
            value.copy_(uniform(value, -0.1, 0.1))
        elif name.endswith(("fc6.weight", "fc7.weight")):
            # He's: PyTorch's default shrinks the signal.
            scale = (2 / value.shape[1]) ** 0.5
            value.copy_(scale * torch.randn(value.shape, generator=generator))
        elif name.endswith(("cls_logits.weight", "cls_score.weight", "mask_fcn_logits.weight")):
            value.copy_(0.08 * torch.randn(value.shape, generator=generator))
        elif name.endswith("bbox_pred.weight"):
            value.copy_(0.02 * torch.randn(value.shape, generator=generator))
    return network


def scene(height, width, seed=0, objects=4):
    """A picture in [0, 1], [3, H, W], with coloured rectangles and ellipses, and its labels."""
    rng = np.random.default_rng(seed)
    picture = np.full((height, width, 3), rng.uniform(size=3))
    picture += rng.normal(scale=0.05, size=picture.shape)
    y, x = np.mgrid[:height, :width] + 0.5
    boxes, masks = [], []
    for index in range(objects):
        sides = rng.uniform(0.2, 0.6, size=2) * [width, height]
        low = rng.uniform(size=2) * ([width, height] - sides)
        centre = low + sides / 2
        away = np.stack([x, y], axis=-1) - centre
        if index % 2:
            mask = np.abs(2 * away / sides).max(axis=-1) <= 1
        else:
            mask = np.square(2 * away / sides).sum(axis=-1) <= 1
        picture[mask] = rng.uniform(size=3) + rng.normal(scale=0.1, size=(mask.sum(), 3))
        boxes.append([*low, *(low + sides)])
        masks.append(mask)
    image = np.clip(picture, 0, 1).astype(np.float32).transpose(2, 0, 1)
    labels = rng.integers(1, 4, objects)
    return image, np.array(boxes, np.float32), labels, np.array(masks)


def photographs(*shapes):
    """The two photographs that come with scikit-learn, in [0, 1], [3, H, W] of these (H, W)."""
    return [
        np.asarray(Image.fromarray(pixels).resize(shape[::-1]), np.float32).transpose(2, 0, 1) / 255
        for pixels, shape in zip(load_sample_images().images, shapes, strict=True)
    ]


def padded(images, shape):
    """Images in [0, 1] normalised and padded as torchvision does, [B, H, W, 3], and sizes."""
    batch = np.zeros((len(images), *shape, 3), np.float32)
    for place, image in zip(batch, images, strict=True):
        normal = ((torch.from_numpy(image) - MEAN) / STD).permute(1, 2, 0).numpy()
        place[: normal.shape[0], : normal.shape[1]] = normal
    return batch, np.array([image.shape[1:] for image in images], np.int32)


def ground_truth(scenes, shape, places=6):
    """The objects of all scenes, padded, masks as bitmaps of the whole picture."""
    truth = detection.GroundTruth(
        boxes=np.zeros((len(scenes), places, 4), np.float32),
        classes=np.zeros((len(scenes), places), np.int32),
        valid=np.zeros((len(scenes), places), bool),
        crowd=np.zeros((len(scenes), places), bool),
        masks=np.zeros((len(scenes), places, *shape), np.uint8),
        mask_frames=np.tile(np.array([0, 0, *shape[::-1]], np.float32), (len(scenes), places, 1)),
    )
    for image, (_, boxes, labels, masks) in enumerate(scenes):
        number = len(boxes)
        truth.boxes[image, :number], truth.classes[image, :number] = boxes, labels
        truth.valid[image, :number] = True
        height, width = masks.shape[1:]
        truth.masks[image, :number, :height, :width] = 255 * masks
    return truth


def arrays(network):
    return {name: value.numpy() for name, value in network.state_dict().items()}
