"""CoNe and cross-entropy on ImageNet with ResNets, and the paper's ablations.

    python main.py --config=configs/imagenet.py:resnet50,100ep --config.data.path=DATA_DIR \\
        --workdir=runs/imagenet

DATA_DIR is a TFDS data_dir with imagenet2012 prepared as ArrayRecord (`--mode=prepare`, or
docs/data.md), on a disk or in a bucket. A folder of images does as well:
`--config.data.source=image_folder --config.data.path=FOLDER` with FOLDER/{train,val}/<class>/*.
Options, joined by commas:

    resnet18, resnet34, resnet50, resnet101, resnet152, resnet200     resnet50 by default
    100ep, 200ep, 300ep, 350ep, 400ep, 700ep                          100 by default
    autoaug, randaug, simclr_aug, stacked     augmentation beyond crops and flips
    mixup, cutmix   two images in one; alpha 0.2 and 1
    long            the comparison with SupCon: two views, and augmentation and epochs by network
    timm            the comparison with timm: long, 176 pixels, smoothing, an averaged model
    cross_entropy, binary_cross_entropy, paco, cmsf, nnclr, ...    replaces CoNe, same recipe
    with_ce         cross-entropy beside cmsf or nnclr, on CoNe's bank and key
    no_dc, no_contrast, sup_out, contrastive_view, two_views       CoNe's ablations
    projection      cross_entropy with CoNe's projection head (SL-MLP)
    paper           follows the paper's text where its code differs

The recipes that the other methods' own papers use are in configs/imagenet_baselines.py, the
light networks in configs/imagenet_light.py. Top-1 accuracy in the paper (arXiv 2308.10761), not
measured here:

    ResNet                    18    34    50    101   152   200
    (100 epochs)              72.5  75.4  78.7  79.6  80.3  80.5
    cross_entropy             70.7  74.3  76.9  78.7  79.4  79.6
    long                                  80.2  81.4        81.8
    timm                      74.3  78.0  80.8  82.1  82.7

    resnet50: cross_entropy,projection 76.8; no_dc 78.1; no_dc,sup_out 76.9; cmsf,with_ce 77.0;
    nnclr,with_ce 77.5; no_dc with contrastive_view (without): standard 77.5 (78.1), autoaug
    78.1 (78.3), randaug 77.9 (78.1), simclr_aug 76.9 (77.2); the sweeps of docs/recipes.md.

An epoch has 1,251 steps of 1,024 images over all devices; the bank takes 0.3 GB on each device.
Design choices (docs/recipes.md lists the field of each):

    everywhere        bfloat16 in the network; the released code has float16 with loss scaling
    autoaug, randaug, simclr_aug, stacked     policy and strength (`recipes`)
    long, timm        both views are rows of the batch (queries and keys); the learning rate scales
                      with the number of images
    timm              smoothing 0.1, the averaged model of torchvision's recipe, always 350 epochs
    with_ce           weight 1 for the second loss; one view, CoNe's bank and key
    contrastive_view  the own key is one more anchor
    sup_out           the nearest anchors, as for L_sup_in, and the recipe's weight and temperature,
                      where the paper searched for both
"""

import functools
from collections.abc import Callable

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax.data.transforms import recipes

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet200")
EPOCHS = (100, 200, 300, 350, 400, 700)
AUGMENTATIONS: dict[str, Callable[[int], tuple[str, ...]]] = {
    "autoaug": recipes.auto_augment,
    "randaug": recipes.rand_augment,
    "simclr_aug": recipes.simclr,
    "stacked": recipes.stacked,
}


def base() -> ConfigDict:
    """ImageNet as all recipes of this project read it, with CoNe's settings for it."""
    config = config_lib.default()
    config.epochs = 100
    config.batch_size = 1024

    config.data.source = "tfds"
    config.data.name = "imagenet2012"
    config.data.test_split = "validation"  # labels of the test images are not public
    config.data.image_size = 224
    config.data.train_transforms = recipes.standard(224)
    config.data.test_transforms = recipes.evaluation(256, 224)
    config.data.threads = 16

    config.model.name = "resnet50"
    config.model.dtype = "bfloat16"

    config.bank.size = 65536
    config.objective.cone.neighbours = 512

    config.schedule.warmup_epochs = 5.0
    config.log_every = 50
    config.evaluation.batch_size = 1000
    return config


def get_config(options: str = "") -> ConfigDict:
    return config_lib.apply_options(
        base(),
        options,
        {
            **{name: functools.partial(_use, name=name) for name in RESNETS},
            "long": _long,
            "timm": _timm,
            **{f"{n}ep": functools.partial(_train_for, epochs=n) for n in EPOCHS},
            **{name: functools.partial(_augment, name=name) for name in AUGMENTATIONS},
            "mixup": functools.partial(_mix, mixup_alpha=0.2),
            "cutmix": functools.partial(_mix, cutmix_alpha=1.0),
        },
    )


def _use(config: ConfigDict, name: str) -> None:
    config.model.name = name


def _train_for(config: ConfigDict, epochs: int) -> None:
    config.epochs = epochs


def _augment(config: ConfigDict, name: str) -> None:
    config.data.train_transforms = AUGMENTATIONS[name](config.data.image_size)


def _mix(config: ConfigDict, **alphas: float) -> None:
    config.mixing.update(alphas)


def _long(config: ConfigDict) -> None:
    config.epochs = 400 if config.model.name == "resnet200" else 350
    deep = config.model.name in ("resnet101", "resnet152", "resnet200")
    _augment(config, "stacked" if deep else "autoaug")
    config.objective.cone.views = "rows"
    if config.objective.name == "cone":
        config.data.views = 2


def _timm(config: ConfigDict) -> None:
    config.data.image_size = 176
    config.data.test_transforms = recipes.evaluation(232, 224)
    _long(config)
    config.epochs = 350
    config.optimizer.weight_decay = 6e-5
    config.objective.cone.label_smoothing = 0.1
    config.objective.cross_entropy.label_smoothing = 0.1
    config.average.decay = 0.99998
