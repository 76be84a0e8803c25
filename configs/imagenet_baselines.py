"""The methods CoNe is compared with on ImageNet, each with the recipe of its own paper or code.

    python main.py --config=configs/imagenet_baselines.py:supcon --config.data.path=DATA_DIR \\
        --workdir=runs/supcon

Data as in configs/imagenet.py, where the same methods run in CoNe's recipe. One method, and
optionally a network (resnet18 ... resnet200, resnet50 by default):

    ce_reference    cross-entropy as SupCon's authors script it
    sl_mlp          cross-entropy through an MLP of 2048 and 256, in CoNe's recipe
    supcon          LARS, then a linear stage with RMSProp; resnet101 and resnet200 have their own
    supcon_bank     SupCon on MoCo v2's frame with a bank of 8,192, then the same linear stage
    paco            no prior; resnet101 and resnet200 with stacked augmentation
    cmsf            a bank of 128,000, then a linear stage
    nnclr           no labels in the loss, then a linear stage
    rsb_a1, rsb_a2, rsb_a3     binary cross-entropy, "ResNet strikes back"

Top-1 accuracy as CoNe's paper (arXiv 2308.10761) quotes it from theirs, not measured here:

    ResNet          18    34    50    101   152   200
    supcon                      78.7  80.2        81.4
    supcon_bank                 79.1
    paco                        79.3  80.9        81.8
    cmsf                        76.4
    rsb_a1          71.5  76.4  80.4  81.5  82.0

Design choices, where the sources say nothing or disagree:

    sl_mlp          everything
    ce_reference    the warm-up
    supcon          the linear stage: batch of the first stage, crops and flips, averages of RMSProp
                    (0.9); resnet101: stacked augmentation, as in its paper's table, where its
                    script has AutoAugment
    supcon_bank     everything that MoCo v2 does not settle, 350 epochs with AutoAugment, and a
                    batch of 1,024, where paper (256) and author (1,024) disagree
    paco            a warm-up by steps, and BatchNorm over the whole batch, where its code shuffles
                    keys among devices
    cmsf, nnclr     the linear stage (SupCon's); nnclr: all but temperature, queue and heads
    rsb_a1, rsb_a2  no repeated augmentation
    rsb_a1, rsb_a2, rsb_a3    gradients are clipped at norm 1, as timm's LAMB does
"""

import functools

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax.data.transforms import recipes
from cone_jax.recipes import imagenet

# Crop from a fifth of the image on, as MoCo v2 and CMSF do.
WEAK = recipes.standard(224, scale=(0.2, 1.0))
MOCO_V2 = recipes.simclr(224, strength=0.5, scale=(0.2, 1.0))


def get_config(options: str = "") -> ConfigDict:
    return config_lib.apply_options(
        imagenet.base(),
        options,
        {
            **{name: functools.partial(_use, name=name) for name in imagenet.RESNETS},
            "ce_reference": _ce_reference,
            "sl_mlp": _sl_mlp,
            "supcon": _supcon,
            "supcon_bank": _supcon_bank,
            "paco": _paco,
            "cmsf": _cmsf,
            "nnclr": _nnclr,
            "rsb_a1": _strikes_back,
            "rsb_a2": _strikes_back_shorter,
            "rsb_a3": _strikes_back_shortest,
        },
    )


def _use(config: ConfigDict, name: str) -> None:
    config.model.name = name


def _ce_reference(config: ConfigDict) -> None:
    config_lib.use_objective(config, "cross_entropy")
    config.epochs = 200
    config.batch_size = 6144
    config.optimizer.nesterov = True
    config.data.train_transforms = recipes.auto_augment(224, "v0")
    _smooth_cosine(config.schedule, warmup_epochs=5.0)


def _sl_mlp(config: ConfigDict) -> None:
    config_lib.use_objective(config, "cross_entropy")
    config.model.projection = True
    config.model.head_hidden = 2048
    config.model.embedding_dim = 256


def _supcon(config: ConfigDict) -> None:
    config_lib.use_objective(config, "supcon")
    very_deep = config.model.name == "resnet200"
    config.epochs = 700 if very_deep else 350
    config.batch_size = 4096 if very_deep else 6144
    stacked = recipes.stacked(224, form="supcon")
    deep = config.model.name in ("resnet101", "resnet152", "resnet200")
    config.data.train_transforms = stacked if deep else recipes.auto_augment(224, "v0")
    config.objective.supcon.base_temperature = 1.0  # the TensorFlow code's scale
    config.model.embedding_dim = 128
    config.model.head_layers = 0
    config.model.head_normalise_input = True
    _lars(config, rate=0.2 if very_deep else 0.4, warmup_epochs=12.0)
    config.optimizer.weight_decay = 1e-3 if config.model.name == "resnet50" else 1e-4
    _supcon_linear_stage(config)


def _supcon_bank(config: ConfigDict) -> None:
    config_lib.use_objective(config, "supcon_bank")
    config.epochs = 350
    config.data.train_transforms = recipes.auto_augment(224)
    _moco_head(config, batch_norm=False)
    _bank_and_rate(config, size=8192, momentum=0.999, learning_rate=0.03)
    _supcon_linear_stage(config)


def _paco(config: ConfigDict) -> None:
    config_lib.use_objective(config, "paco")
    config.epochs = 400
    config.batch_size = 256
    config.data.train_transforms = (
        *recipes.standard(224),
        "colour_jitter(0.4, 0.4, 0.4)",
        "rand_augment(2, 10, form='timm')",
    )
    if config.model.name in ("resnet101", "resnet152"):
        config.data.train_transforms = recipes.stacked(224, form="paco")
    if config.model.name == "resnet200":
        config.data.train_transforms = recipes.stacked(224, form="paco", n=3, m=12)
    config.data.key_transforms = recipes.simclr(224, strength=0.5)
    _moco_head(config, batch_norm=True)
    _bank_and_rate(config, size=8192, momentum=0.999, learning_rate=0.04)
    config.schedule.warmup_epochs = 10.0


def _cmsf(config: ConfigDict) -> None:
    config_lib.use_objective(config, "cmsf")
    config.epochs = 200
    config.batch_size = 256
    config.data.views = 2
    config.data.train_transforms = MOCO_V2
    config.data.key_transforms = WEAK
    config.model.embedding_dim = 512
    config.model.head_hidden = 4096
    config.model.predictor_hidden = 4096
    _bank_and_rate(config, size=128_000, momentum=0.99, learning_rate=0.05)
    _supcon_linear_stage(config)


def _nnclr(config: ConfigDict) -> None:
    config_lib.use_objective(config, "nnclr")
    config.epochs = 1000
    config.batch_size = 4096
    config.data.train_transforms = recipes.simclr(224)
    config.model.embedding_dim = 256
    config.model.head_hidden = 2048
    config.model.head_layers = 2
    config.model.head_output_batch_norm = True
    config.model.predictor_hidden = 4096
    config.bank.size = 98_304
    _lars(config, rate=0.3, warmup_epochs=10.0)
    config.optimizer.weight_decay = 1e-6
    _supcon_linear_stage(config)


def _strikes_back(config: ConfigDict) -> None:
    """A1."""
    config_lib.use_objective(config, "binary_cross_entropy")
    config.epochs = 600
    config.batch_size = 2048
    config.data.train_transforms = recipes.deit(224, m=7, erasing=0.0)
    config.data.test_transforms = recipes.evaluation(236, 224, interpolation="bicubic")
    config.objective.binary_cross_entropy.label_smoothing = 0.1
    config.mixing.mixup_alpha = 0.2
    config.mixing.cutmix_alpha = 1.0
    config.model.options.stochastic_depth = 0.05
    config.optimizer.name = "lamb"
    config.optimizer.reference_batch = 0
    config.optimizer.epsilon = 1e-6
    config.optimizer.weight_decay = 0.01
    config.optimizer.decay_scope = "exclude_1d"
    config.optimizer.clip_norm = 1.0
    _smooth_cosine(config.schedule, warmup_epochs=5.0)
    _rate_down_to_a_millionth(config, 5e-3)


def _strikes_back_shorter(config: ConfigDict) -> None:
    """A2."""
    _strikes_back(config)
    config.epochs = 300
    config.objective.binary_cross_entropy.label_smoothing = 0.0
    config.mixing.mixup_alpha = 0.1
    config.optimizer.weight_decay = 0.02


def _strikes_back_shortest(config: ConfigDict) -> None:
    """A3."""
    _strikes_back_shorter(config)
    config.epochs = 100
    config.data.image_size = 160
    config.data.train_transforms = recipes.deit(160, m=6, erasing=0.0)
    config.model.options.stochastic_depth = 0.0
    _rate_down_to_a_millionth(config, 8e-3)


def _rate_down_to_a_millionth(config: ConfigDict, rate: float) -> None:
    config.optimizer.learning_rate = rate
    config.schedule.floor = 1e-6 / rate


def _moco_head(config: ConfigDict, *, batch_norm: bool) -> None:
    config.model.embedding_dim = 128
    config.model.head_hidden = 2048
    config.model.head_batch_norm = batch_norm


def _bank_and_rate(config: ConfigDict, *, size: int, momentum: float, learning_rate: float) -> None:
    """A bank of keys of constant momentum; the rate falls to 0 from the first step on."""
    config.bank.size = size
    config.ema.momentum = momentum
    config.ema.schedule = "constant"
    config.optimizer.learning_rate = learning_rate
    config.schedule.warmup_epochs = 0.0
    config.schedule.floor = 0.0


def _lars(config: ConfigDict, *, rate: float, warmup_epochs: float) -> None:
    config.optimizer.name = "lars"
    config.optimizer.learning_rate = rate
    config.optimizer.decay_scope = "exclude_1d"
    _smooth_cosine(config.schedule, warmup_epochs)


def _smooth_cosine(schedule: ConfigDict, warmup_epochs: float) -> None:
    """Down to 0, a step at a time."""
    schedule.warmup_epochs = warmup_epochs
    schedule.unit = "step"
    schedule.floor = 0.0


def _supcon_linear_stage(config: ConfigDict) -> None:
    stage = config.linear_stage
    stage.epochs = 90
    stage.batch_size = config.batch_size
    stage.train_transforms = recipes.standard(224)
    stage.optimizer.name = "rmsprop"
    stage.optimizer.learning_rate = 0.05
    stage.optimizer.epsilon = 1.0
    stage.optimizer.weight_decay = 1e-6
    stage.schedule.decay = "exponential"
    stage.schedule.decay_epochs = 0.5
    stage.schedule.decay_factor = 0.97
    stage.schedule.unit = "step"
    config.objective.linear.label_smoothing = 0.05
