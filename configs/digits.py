"""CoNe on scikit-learn's handwritten digits: the first run on a new machine.

    python main.py --config=configs/digits.py --workdir=runs/digits

1,437 training and 360 test images of 8x8 pixels, which come with scikit-learn. A ResNet-8 of
width 32 trains in about a minute on two CPU cores. Options, joined by commas:

    --config=configs/digits.py:cross_entropy     the plain baseline, same recipe
    --config=configs/digits.py:paper             follows the paper's text where its code differs
"""

from ml_collections import ConfigDict

from cone_jax import config as config_lib


def get_config(options: str = "") -> ConfigDict:
    config = config_lib.default()
    config.epochs = 40
    config.batch_size = 128

    config.data.source = "digits"
    config.data.image_size = 8
    # Shifts by a pixel; mirrored digits are not digits.
    config.data.train_transforms = ("random_crop(8, padding=1)",)
    config.data.mean = (0.305,) * 3
    config.data.std = (0.376,) * 3

    config.model.name = "resnet8"
    config.model.stem = "cifar"
    config.model.options.width = 32
    config.model.head_hidden = 256
    config.model.predictor_hidden = 256  # of the methods that have one
    config.model.embedding_dim = 64

    # A bank of 1,024 holds most of the 1,437 images: without exclude_self the nearest positive
    # would be the image itself, an epoch ago.
    config.bank.size = 1024
    config.bank.exclude_self = True
    config.objective.cone.neighbours = 32

    config.optimizer.learning_rate = 0.2
    config.optimizer.weight_decay = 5e-4
    config.schedule.warmup_epochs = 2.0
    config.log_every = 11
    config.evaluation.batch_size = 360
    config.evaluation.every_epochs = 5.0
    config.checkpoint.every_epochs = 5.0
    return config_lib.apply_options(config, options)
