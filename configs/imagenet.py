"""CoNe on ImageNet with a ResNet, 100 epochs of random resized crops and flips.

    python main.py --config=configs/imagenet.py:resnet50,100ep --config.data.path=DATA_DIR \\
        --workdir=runs/imagenet

DATA_DIR is a TFDS data_dir with imagenet2012 prepared as ArrayRecord (`--mode=prepare`, or
docs/data.md), on a disk or in a bucket. A folder of images does as well:
`--config.data.source=image_folder --config.data.path=FOLDER` with FOLDER/{train,val}/<class>/*.
Options, joined by commas:

    resnet18, resnet34, resnet50, resnet101, resnet152, resnet200     resnet50 by default
    100ep          100 epochs, the default
    cross_entropy  the plain baseline, same recipe
    paper          the paper's text where the code differs

Top-1 accuracy in the paper (arXiv 2308.10761), not measured here:

    ResNet          18    34    50    101   152   200
    CoNe            72.5  75.4  78.7  79.6  80.3  80.5
    cross-entropy   70.7  74.3  76.9  78.7  79.4  79.6

1,251 steps an epoch of 1,024 images over all devices; the bank takes 0.3 GB on each device.
Design choice: bfloat16 in the network, where the released code uses float16 with loss scaling.
"""

import functools

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax.data.transforms import recipes

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet200")


def get_config(options: str = "") -> ConfigDict:
    config = config_lib.default()
    _train_for(config, epochs=100)
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
    return config_lib.apply_options(
        config,
        options,
        {
            "100ep": functools.partial(_train_for, epochs=100),
            **{name: functools.partial(_use, name=name) for name in RESNETS},
        },
    )


def _train_for(config: ConfigDict, epochs: int) -> None:
    config.epochs = epochs


def _use(config: ConfigDict, name: str) -> None:
    config.model.name = name
