"""CIFAR-100 at a size that two CPU cores can study: few images, a small ResNet.

    python main.py --config=configs/cifar_small.py --config.data.path=DATA_DIR --workdir=runs/small

DATA_DIR is a TFDS data_dir with CIFAR-100 prepared as ArrayRecord (`--mode=prepare`). 3,000
training images, all 10,000 test images; about five minutes per run on one core. The network has the
ImageNet stem, so that its convolutions see 8x8 pixels and fewer. Options, joined by commas:

    coarse          the 20 superclasses as classes: more variety inside a class
    cross_entropy, supcon, paco, nnclr and any other method: replaces CoNe
    lt50            a long tail of all classes, the first with 50 times the images of the last
    logit_adjustment    in the cross-entropy term, for long tails
    underfit        20,000 images, as many steps, half the width: the network cannot fit them

Not a recipe of the paper. `benchmarks/study_cifar100.py` compares methods with it;
`docs/results/cifar100_small.md` has the results.
"""

from ml_collections import ConfigDict

from cone_jax import config as config_lib


def get_config(options: str = "") -> ConfigDict:
    config = config_lib.default()
    config.epochs = 80
    config.batch_size = 64

    config.data.source = "tfds"
    config.data.name = "cifar100"
    config.data.image_size = 32
    config.data.train_transforms = ("random_resized_crop(32, scale=(0.3, 1.0))", "flip")
    config.data.mean = (0.5071, 0.4867, 0.4408)
    config.data.std = (0.2675, 0.2565, 0.2761)
    config.data.threads = 1

    config.model.name = "resnet8"
    config.model.stem = "imagenet"
    config.model.options.width = 32
    config.model.head_hidden = 512
    config.model.predictor_hidden = 512
    config.model.embedding_dim = 64
    # Found on held-out images: a classifier that the projection does not stand in the way of.
    config.model.classifier_input = "features"

    # The bank is almost as large as the training set: without exclude_self the nearest positive
    # would be the image itself, an epoch ago.
    config.bank.size = 2048
    config.bank.exclude_self = True
    config.objective.cone.neighbours = 32
    # The momentum network has to follow faster than over the hundred thousand steps of the paper.
    config.ema.momentum = 0.99

    config.optimizer.learning_rate = 0.2
    config.optimizer.weight_decay = 5e-4
    config.schedule.warmup_epochs = 3.0
    config.log_every = 46  # an epoch
    config.evaluation.every_epochs = 0.0
    config.evaluation.batch_size = 1000
    config.checkpoint.every_epochs = 20.0
    _train_on(config, 3000)
    return config_lib.apply_options(
        config,
        options,
        {
            "coarse": _coarse,
            "underfit": _underfit,
            "lt50": _long_tail,
            "logit_adjustment": _adjust_logits,
        },
    )


def _coarse(config: ConfigDict) -> None:
    config.data.label_key = "coarse_label"


def _underfit(config: ConfigDict) -> None:
    _train_on(config, 20_000)
    config.epochs = 12
    config.model.options.width = 16
    config.schedule.warmup_epochs = 1.0
    config.checkpoint.every_epochs = 3.0


def _long_tail(config: ConfigDict) -> None:
    """12,608 images; as many steps as with 3,000."""
    config.data.train_split = "train"
    config.data.imbalance = 50.0
    config.epochs = 19
    config.schedule.warmup_epochs = 1.0
    config.checkpoint.every_epochs = 5.0
    config.objective.paco.prior = "data"
    config.evaluation.evaluators = ("classification", "long_tail")


def _adjust_logits(config: ConfigDict) -> None:
    config.objective.cone.logit_adjustment = 1.0
    config.objective.cross_entropy.logit_adjustment = 1.0


def _train_on(config: ConfigDict, images: int) -> None:
    """Trains on the first `images`, and tells at the end how well the network fits them."""
    split = f"train[:{images}]"
    config.data.train_split = split
    config.evaluation.evaluators = (
        "classification",
        f"classification(split='{split}', name='fit')",
    )
