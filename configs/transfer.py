"""Fine-tuning on nine classification sets, or a folder of yours, by SimCLR's protocol.

    python main.py --mode=transfer --config=configs/transfer.py:pets \\
        --config.init_from=runs/imagenet --config.data.path=DATA_DIR --workdir=runs/transfer-pets

`init_from` is a run, one of its checkpoints, an export, or weights (.safetensors, .pth). Of a run
or an export the network is known; for weights it is the recipe's (a ResNet-50, or
`--config.model.name`). Everything is trained, with a new classifier on the pooled features: 20,000
steps of 256 images, SGD with Nesterov momentum, random resized crop and flip. Each of 7 learning
rates is tried with each of 8 weight decays on a part of the training images; the pair best on
validation is trained again on all of them and tested. That makes 57 runs per data set, each with 5
million images and a checkpoint. If it is stopped, the same command continues with what is left. For
several sets in one table: `--mode=transfer --workdirs=runs/transfer-pets,runs/transfer-dtd`.
Options, joined by commas:

    cifar10, cifar100, food101, cars, dtd, pets, flowers, aircraft, caltech101
                      the data sets of the paper, from TFDS (`--mode=prepare`); aircraft from its
                      own archive, with data.path = .../fgvc-aircraft-2013b
    folder            an image folder at data.path, validated on a tenth of its train part, which
                      is the default; with a name of the list (`pets,folder`) its metric, column
    val_folder        ... validated on its folder `val`, which then joins training
    small             a grid of 2 x 2 and 1,000 steps of 64 images, for small machines
    32px, 64px, 128px instead of 224 pixels, for networks trained on such

The rules of the protocol are those of SimCLR's appendix; the momentum of BatchNorm statistics is
max(1 - 10 / s, 0.9) with s steps per epoch. Design choices, which it leaves open: a cosine to 0
without warm-up; no decay on biases and norms; hold-outs of a tenth where a set has no validation
part (the last tenth in TFDS's own order, which is a fixed shuffle).
"""

import functools
from typing import NamedTuple

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax.data.transforms import recipes


class Target(NamedTuple):
    """A data set of the table, and how its parts are used."""

    column: str
    tfds: str
    train: str  # of the grid
    validation: str
    final: str  # of the last run
    test: str
    metric: str


TENTH_OUT = ("train[:90%]", "train[90%:]", "train")
CIFAR = ("train[:45000]", "train[45000:]", "train")
THREE_PARTS = ("train", "validation", "train+validation")

TARGETS = {
    "cifar10": Target("CIFAR10", "cifar10:3.0.2", *CIFAR, "test", "top1"),
    "cifar100": Target("CIFAR100", "cifar100:3.0.2", *CIFAR, "test", "top1"),
    # TFDS calls the official test part of Food-101 validation.
    "food101": Target("Food", "food101:2.1.0", *TENTH_OUT, "validation", "top1"),
    "cars": Target("Cars", "cars196:2.1.0", *TENTH_OUT, "test", "top1"),
    "dtd": Target("DTD", "dtd:3.0.1", *THREE_PARTS, "test", "top1"),
    "pets": Target("Pets", "oxford_iiit_pet:4.0.0", *TENTH_OUT, "test", "mean_per_class"),
    "flowers": Target("Flowers", "oxford_flowers102:2.1.1", *THREE_PARTS, "test", "mean_per_class"),
    "aircraft": Target("Aircraft", "", *THREE_PARTS, "test", "mean_per_class"),
    "caltech101": Target("Caltech101", "caltech101:3.0.2", *TENTH_OUT, "test", "mean_per_class"),
}
# Half a power of ten apart.
LEARNING_RATES = (1e-4, 3.1623e-4, 1e-3, 3.1623e-3, 1e-2, 3.1623e-2, 1e-1)
WEIGHT_DECAYS = (0.0, 1e-6, 3.1623e-6, 1e-5, 3.1623e-5, 1e-4, 3.1623e-4, 1e-3)


def get_config(options: str = "") -> ConfigDict:
    config = config_lib.default()
    config_lib.use_objective(config, "cross_entropy")
    config.steps = 20_000
    config.batch_size = 256
    config.init_strict = False  # the old head and classifier have no place here

    _folder(config)
    _resize(config, 224)
    config.data.last_batch = "carry"  # of a thousand images, none should be left out

    config.optimizer.nesterov = True
    config.optimizer.reference_batch = 0
    config.optimizer.weight_decay = 0.0
    config.optimizer.decay_scope = "exclude_1d"
    config.schedule.warmup_epochs = 0.0
    config.schedule.unit = "step"
    config.schedule.floor = 0.0

    config.transfer.learning_rates = LEARNING_RATES
    config.transfer.weight_decays = WEIGHT_DECAYS
    config.log_every = 100
    config.evaluation.every_epochs = 0.0
    config.checkpoint.every_epochs = 0.0
    config.checkpoint.keep = 1
    return config_lib.apply_options(
        config,
        options,
        {
            **{name: functools.partial(_use, name=name) for name in TARGETS},
            "folder": _folder,
            "val_folder": _val_folder,
            "small": _small,
            **{f"{s}px": functools.partial(_resize, size=s) for s in (32, 64, 128)},
        },
    )


def _use(config: ConfigDict, name: str) -> None:
    target = TARGETS[name]
    config.data.source = "tfds" if target.tfds else "fgvc_aircraft"
    config.data.name = target.tfds
    config.data.train_split = target.final
    config.data.test_split = target.test
    config.transfer.name = target.column
    config.transfer.metric = target.metric
    config.transfer.train_split = target.train
    config.transfer.validation_split = target.validation


def _folder(config: ConfigDict) -> None:
    config.data.source = "image_folder"
    config.data.name = ""
    config.data.train_split = "train"
    config.data.test_split = "test"
    config.transfer.train_split = "train[kept]"
    config.transfer.validation_split = "train[held_out]"


def _val_folder(config: ConfigDict) -> None:
    _folder(config)
    config.data.train_split = "train+validation"
    config.transfer.train_split = "train"
    config.transfer.validation_split = "validation"


def _small(config: ConfigDict) -> None:
    config.steps = 1000
    config.batch_size = 64
    config.evaluation.batch_size = 64
    config.transfer.learning_rates = (1e-3, 1e-2)
    config.transfer.weight_decays = (0.0, 1e-4)


def _resize(config: ConfigDict, size: int) -> None:
    config.data.image_size = size
    config.data.train_transforms = recipes.standard(size)
    config.data.test_transforms = recipes.evaluation(round(size * 256 / 224), size)
