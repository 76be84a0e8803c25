"""CoNe on your own folder of photographs, from scratch, on one GPU or in the time you have.

    python main.py --config=configs/folder.py --config.data.path=FOLDER --workdir=runs/mine
    python main.py --config=configs/folder.py --config.data.path=FOLDER --config.budget=30min

FOLDER holds a folder for each class, or `train` and `val` (or `test`) with such folders. Without
a part to test on, a tenth of each class is held out (`--config.data.holdout=0.1`). First look at
what the network will see: the same command with `--mode=preview`. Options, joined by commas:

    resnet18, resnet50    the network; resnet18 by default
    small                 96 pixels instead of 224: a fifth of the computation, for a first try
    cross_entropy         the plain baseline, same recipe, to see what CoNe adds
    paper                 follows the paper's text where its code differs

Length, batch, bank, N and warm-up follow from the number of images and, where one is given, the
budget, which chooses network and image size as well: `cone_jax/training/plan.py` has the rules.

The paper has no such recipe: everything here is a design choice, little of it tuned. It follows the
ImageNet recipe, scaled to thousands of images instead of a million: more epochs, a smaller
batch, AdamW, and a bank that forgets within a few epochs and hides from an image its own older
copies, which it would otherwise find as its nearest neighbours.
"""

import functools

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax.data.transforms import recipes

OPEN = (
    "batch_size",
    "bank.size",
    "objective.cone.neighbours",
    "model.name",
    "model.options.width",
    "data.image_size",
    "data.train_transforms",
    "data.test_transforms",
    "epochs",
    "schedule.warmup_epochs",
    "ema.momentum",
    "evaluation.every_epochs",
    "checkpoint.every_epochs",
    "log_every",
)


def get_config(options: str = "") -> ConfigDict:
    config = config_lib.default()
    config.epochs = 150
    config.batch_size = 64

    config.data.source = "image_folder"
    config.data.image_size = 224
    config.data.train_transforms = recipes.standard(224, scale=(0.2, 1.0))
    config.data.test_transforms = recipes.evaluation(256, 224)
    config.data.last_batch = "carry"  # of a few hundred images, none should be left out

    config.model.name = "resnet18"

    config.bank.size = 2048
    config.bank.exclude_self = True
    config.objective.cone.neighbours = 32

    # Within a few hundred steps AdamW learns more than SGD: docs/own_images.md has the numbers.
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.reference_batch = 0
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup_epochs = 10.0
    config.evaluation.every_epochs = 5.0
    config.evaluation.batch_size = 64
    config.checkpoint.every_epochs = 5.0
    # The values above are what preview and check go by; training chooses, see training/plan.py.
    config_lib.leave_open(config, *OPEN)
    return config_lib.apply_options(
        config,
        options,
        {
            "resnet18": functools.partial(_use, name="resnet18"),
            "resnet50": functools.partial(_use, name="resnet50"),
            "small": _small,
        },
    )


def _use(config: ConfigDict, name: str) -> None:
    config.model.name = name
    config.model.options.width = 64


def _small(config: ConfigDict) -> None:
    config.data.image_size = 96
    config.data.train_transforms = recipes.standard(96, scale=(0.2, 1.0))
    config.data.test_transforms = recipes.evaluation(110, 96)
