"""Fine-tuning on your own folder, from weights of a network that was trained on much more.

    python main.py --config=configs/finetune.py --config.data.path=FOLDER \\
        --config.init_from=mobilenet_v2.safetensors --workdir=runs/mine

The weights are those of `model.name`, in torchvision's or timm's names, without their classifier. A
new classifier on the pooled features is trained alone for two epochs. Then the backbone is trained
as well, at a tenth of its rate; its BatchNorm keeps the statistics of the weights. Options, joined
by commas:

    resnet18, resnet50    instead of mobilenet_v2
    small                 128 pixels instead of 224: a third of the computation
    early                 holds out a tenth of the training images; ends when four evaluations in a
                          row find nothing better on them; the best one is `--step=best`
    cross_entropy         the plain baseline; no projection head
    paper                 follows the paper's text where its code differs

Not a recipe of the paper. Length, batch, bank and N follow from the number of images.
"""

import functools

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax.data.transforms import recipes

OPEN = (
    "batch_size",
    "bank.size",
    "objective.cone.neighbours",
    "epochs",
    "schedule.warmup_epochs",
    "ema.momentum",
    "evaluation.every_epochs",
    "checkpoint.every_epochs",
    "log_every",
)
NETWORKS = ("mobilenet_v2", "resnet18", "resnet50")


def get_config(options: str = "") -> ConfigDict:
    config = config_lib.default()
    config.epochs = 20
    config.batch_size = 64
    config.init_strict = False  # the classifier is another

    config.data.source = "image_folder"
    config.data.last_batch = "carry"
    _use_size(config, 224)

    config.model.name = "mobilenet_v2"
    # Trained features are worth more than what a new projection head makes of them.
    config.model.classifier_input = "features"
    # The classifier learns on the very features that it is tested on.
    config.model.options.bn_frozen = True

    config.bank.size = 2048
    config.bank.exclude_self = True
    config.objective.cone.neighbours = 32

    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.reference_batch = 0
    config.optimizer.backbone_rate = 0.1
    config.optimizer.head_epochs = 2.0
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup_epochs = 1.0
    config.evaluation.every_epochs = 2.0
    config.evaluation.batch_size = 64
    config.checkpoint.every_epochs = 2.0
    config_lib.leave_open(config, *OPEN)
    return config_lib.apply_options(
        config,
        options,
        {
            **{name: functools.partial(_use, name=name) for name in NETWORKS},
            "small": functools.partial(_use_size, size=128),
            "early": _early,
        },
    )


def _use(config: ConfigDict, name: str) -> None:
    config.model.name = name


def _use_size(config: ConfigDict, size: int) -> None:
    config.data.image_size = size
    config.data.train_transforms = recipes.standard(size, scale=(0.5, 1.0))
    config.data.test_transforms = recipes.evaluation(round(size * 8 / 7), size)


def _early(config: ConfigDict) -> None:
    config.data.train_split = "train[kept]"
    config.evaluation.evaluators = (
        "classification",
        "classification(split='train[held_out]', name='validation')",
    )
    config.checkpoint.best_metric = "validation/top1"
    config.evaluation.patience = 4
