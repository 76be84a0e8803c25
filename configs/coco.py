"""Mask R-CNN on COCO, or on your own pictures with labels in COCO's form.

    python main.py --config=configs/coco.py:fpn,1x --config.data.path=COCO \\
        --config.init_from=runs/imagenet --workdir=runs/coco

COCO holds `annotations/instances_train2017.json`, `train2017` and so on; docs/detection.md has the
other forms, and how to start with pictures of your own. Options, joined by commas:

    fpn, c4                feature pyramid (default), or C4 with res5 as the head
    1x, 2x                 90,000 (default) or 180,000 steps of 16 pictures
    moco                   the set-up of the paper's table (default): all layers trained, SyncBN,
                           MoCo's BatchNorm after res5 (C4), InfoMin's heads (FPN), precise BN
    detectron2             Detectron2's model zoo: frozen BatchNorm, stem and res2 not trained
    torchvision            torchvision's choices, for its weights
    resnet18, resnet50     the backbone; resnet50 by default
    boxes                  no masks: Faster R-CNN
    tfds                   TFDS's coco/2017, data.path is its data_dir; it has no masks: boxes
    own                    your own pictures: 60 epochs, and detectron2 by default; batch 2, with
                           moco 8, to train from scratch
    small                  pictures of at most 320 pixels, a smaller head: for a few CPU cores
    tiny                   64 pixels and a narrow ResNet-18: a first try, and tests

The paper trains this from its ImageNet weights with `moco` on 8 GPUs: C4 39.8 box AP and 34.6 mask
AP, FPN 41.1 and 37.2 (the paper's numbers). Nothing here has been run on an accelerator yet.
"""

import functools

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax.detection import settings as detector_settings
from cone_jax.errors import UserError

LONGEST = 1333
STYLES = ("moco", "detectron2", "torchvision")
# The first is the default: batches of two pictures give BatchNorm little to go by.
OWN_STYLES = ("detectron2", "moco", "torchvision")


def get_config(options: str = "") -> ConfigDict:
    config = config_lib.default()
    config_lib.use_objective(config, "detection")
    config.batch_size = 16
    config.model.name = "resnet50"

    config.data.source = "coco"
    # 1,333 filled up to a multiple of 32; pictures that stand have the sides swapped.
    config.data.image_size = 1344
    config.data.train_transforms = (
        f"short_side(640, 800, step=32, longest={LONGEST})",
        "flip",
        "pad(800, 1344)",
    )
    config.data.test_transforms = (f"short_side(800, longest={LONGEST})", "pad(800, 1344)")

    config.optimizer.learning_rate = 0.02
    config.optimizer.reference_batch = 16
    config.optimizer.weight_decay = 1e-4
    config.optimizer.decay_scope = "exclude_norms"
    config.schedule.decay = "steps"
    config.schedule.unit = "step"
    config.schedule.warmup_start = 1e-3
    config.evaluation.evaluators = ("detection",)
    config.evaluation.batch_size = 16
    config.evaluation.every_epochs = 4.0
    config.checkpoint.every_epochs = 1.0
    config.checkpoint.best_metric = "test/box_ap"
    config.init_strict = True

    neck, length = _one_of(options, ("fpn", "c4")), _one_of(options, ("1x", "2x", "own"))
    style = _one_of(options, OWN_STYLES if length == "own" else STYLES)
    config.objective.detection.update(detector_settings.preset(style, neck))
    if style == "moco":
        config.objective.detection.precise_bn_batches = 200
    _schedule(config, 1)
    return config_lib.apply_options(
        config,
        options,
        {
            **dict.fromkeys(("fpn", "c4", *STYLES), lambda config: None),  # see above
            "1x": functools.partial(_schedule, times=1),
            "2x": functools.partial(_schedule, times=2),
            **{name: functools.partial(_use, name=name) for name in ("resnet18", "resnet50")},
            "boxes": _boxes,
            "tfds": _tfds,
            "own": functools.partial(_own, batch_size=8 if style == "moco" else 2),
            "small": _small,
            "tiny": _tiny,
        },
    )


def _one_of(options: str, names: tuple[str, ...]) -> str:
    """The one of `names` that is among the options; the first where none is."""
    chosen = {part.strip() for part in options.split(",")}
    found = [name for name in names if name in chosen]
    if len(found) > 1:
        raise UserError(f"config options ({', '.join(found)}) exclude each other; give one")
    return found[0] if found else names[0]


def _schedule(config: ConfigDict, times: int) -> None:
    """Lengths are in steps: 1,000 of warm-up, a tenth of the rate at 2/3 and 8/9 of the way."""
    config.steps = 90_000 * times
    config.schedule.warmup_steps = 1000
    config.schedule.milestone_steps = (
        (60_000 if times == 1 else 120_000, 0.1),
        (80_000 if times == 1 else 160_000, 0.01),
    )


def _use(config: ConfigDict, name: str) -> None:
    config.model.name = name


def _boxes(config: ConfigDict) -> None:
    config.objective.detection.masks = False


def _tfds(config: ConfigDict) -> None:
    config.data.source, config.data.name, config.data.label_key = "tfds", "coco/2017", "objects"
    config.data.test_split = "validation"
    _boxes(config)


def _own(config: ConfigDict, batch_size: int) -> None:
    """A few hundred pictures: everything by epochs."""
    config.steps, config.epochs, config.batch_size = 0, 60, batch_size
    config.schedule.warmup_steps, config.schedule.milestone_steps = 0, ()
    config.schedule.warmup_epochs = 1.0
    config.schedule.milestones = ((40, 0.1), (54, 0.01))
    config.evaluation.batch_size = batch_size
    config.evaluation.every_epochs = 10.0
    config.checkpoint.every_epochs = 5.0
    if config.objective.detection.precise_bn_batches:
        config.objective.detection.precise_bn_batches = 20


def _small(config: ConfigDict) -> None:
    _one_shape(config, 320, 256)
    detection = config.objective.detection
    detection.anchor_sizes = (16.0, 32.0, 64.0, 128.0, 256.0)
    detection.proposals_before_nms = (500, 500)
    detection.proposals = (300, 200)
    detection.roi_samples = 64
    detection.detections = 50
    detection.box_features = 256
    detection.pyramid_channels = detection.mask_channels = 128


def _tiny(config: ConfigDict) -> None:
    _one_shape(config, 64, 48)
    config.model.name = "resnet18"
    config.model.options.width = 8
    detection = config.objective.detection
    detection.anchor_sizes = (8.0, 16.0, 32.0, 64.0, 128.0)
    detection.proposals_before_nms = (60, 60)
    detection.proposals = (32, 32)
    detection.rpn_samples, detection.roi_samples = 32, 16
    detection.detections = 10
    detection.box_features = detection.pyramid_channels = detection.mask_channels = 16
    detection.box_convolutions = detection.mask_convolutions = 1
    if detection.precise_bn_batches:
        detection.precise_bn_batches = 2


def _one_shape(config: ConfigDict, side: int, short: int) -> None:
    config.data.image_size = side
    resize = f"longest={side}"
    config.data.train_transforms = (
        f"short_side({short}, {side}, step=16, {resize})",
        "flip",
        f"pad({side}, {side}, objects=50)",
    )
    config.data.test_transforms = (f"short_side({side}, {resize})", f"pad({side}, {side})")
    config.data.last_batch = "carry"
