"""CoNe and the methods it is compared with, on CIFAR-10 or CIFAR-100 with a ResNet-50.

    python main.py --config=configs/cifar.py:100 --config.data.path=DATA_DIR --workdir=runs/cifar100

DATA_DIR is a TFDS data_dir with the set prepared as ArrayRecord (`--mode=prepare` does that);
without it, TFDS's default folder is used. Options, joined by commas:

    100, 10         which of the two; 100 by default
    strong          400 epochs of PaCo's recipe instead of 1000 (CIFAR-100)
    cross_entropy, large_margin, and any other method not below: replaces CoNe, same recipe
    key_view        CoNe with PaCo's second view for the key (with strong)
    paper           follows the paper's text where its code differs
    lt100, lt50, lt10       long tails: 100, 50 or 10 images of the first class for one of the last
    logit_adjustment        for long tails: in the cross-entropy term of CoNe or cross_entropy
    balanced_sampling       all classes equally often

Methods with their own published recipe:

    ce_reference    cross-entropy as SupCon's authors ran it
    simclr          two views, then a linear stage
    supcon          two views, then a linear stage; L_in: --config.objective.supcon.contrast=sup_in
    l_softmax       large-margin softmax, the "Max-Margin" of the tables
    paco            with the settings of strong
    joint_supcon    cross-entropy + L_out, with the settings of strong

Top-1 accuracy in the paper (arXiv 2308.10761), not measured here. All but CoNe's are quoted
there from other papers, and l_softmax's not from a ResNet-50:

                CoNe            ce_reference  simclr  supcon  l_softmax
    CIFAR-10    96.00 +- 0.11   95.0          93.6    96.0    92.4          CoNe: 5 seeds
    CIFAR-100   78.08 +- 0.09   75.3          70.7    76.5    70.5

                CoNe   cross_entropy  joint_supcon  paco
    strong      81.2   77.9           78.0          79.1

Design choices, which neither paper nor code settles:

    strong          a bank of 4,096 rows, 32 neighbours, one view for query and key; the warm-up
                    goes by steps, where PaCo's goes by epochs and overshoots by a tenth in epoch 10
    ce_reference    the warm-up of supcon
    l_softmax       margin 4, crops and flips, this ResNet-50
    paco, joint_supcon    the two views of PaCo's long-tail code; its successor's balanced script
                    uses the key's view for both
    paco            the prior of that code, which is uniform on a balanced set
"""

import functools

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax.data.transforms import recipes

# (mean, std) of the training pixels in [0, 1]
STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
CROP_AND_FLIP = recipes.standard(32, scale=(0.2, 1.0))


def get_config(options: str = "") -> ConfigDict:
    config = config_lib.default()
    config.epochs = 1000
    config.batch_size = 1024

    config.data.source = "tfds"
    _use(config, "cifar100")
    config.data.image_size = 32
    config.data.train_transforms = recipes.simclr(32, 0.5, blur=False, scale=(0.2, 1.0))

    config.model.name = "resnet50"
    config.model.stem = "cifar"

    config.bank.size = 4096
    config.objective.cone.neighbours = 32

    config.schedule.warmup_epochs = 100.0
    config.log_every = 48  # an epoch
    config.evaluation.every_epochs = 10.0
    config.evaluation.batch_size = 1000
    config.checkpoint.every_epochs = 10.0
    return config_lib.apply_options(
        config,
        options,
        {
            "10": functools.partial(_use, name="cifar10"),
            "100": functools.partial(_use, name="cifar100"),
            "strong": _strong,
            "key_view": _key_view,
            "ce_reference": _ce_reference,
            "simclr": functools.partial(_contrast_in_batch, name="simclr", linear_rate=1.0),
            "supcon": functools.partial(_contrast_in_batch, name="supcon", linear_rate=5.0),
            "l_softmax": _l_softmax,
            "paco": _paco,
            "joint_supcon": functools.partial(_parametric_frame, name="joint_supcon"),
            "lt100": functools.partial(_long_tail, imbalance=100.0),
            "lt50": functools.partial(_long_tail, imbalance=50.0),
            "lt10": functools.partial(_long_tail, imbalance=10.0),
            "logit_adjustment": _adjust_logits,
            "balanced_sampling": _balanced_sampling,
        },
    )


def _use(config: ConfigDict, name: str) -> None:
    config.data.name = name
    config.data.mean, config.data.std = STATISTICS[name]


def _strong(config: ConfigDict) -> None:
    config.epochs = 400
    config.batch_size = 128
    config.data.train_transforms = recipes.cifar_strong_query()
    # PaCo normalises CIFAR-100 with the statistics of CIFAR-10.
    config.data.mean, config.data.std = STATISTICS["cifar10"]
    _fixed_rate(config.optimizer, 0.05)
    config.optimizer.weight_decay = 5e-4
    config.schedule.warmup_epochs = 10.0
    config.schedule.decay = "steps"
    config.schedule.milestones = ((321.0, 0.1), (361.0, 0.01))
    config.log_every = 390


def _key_view(config: ConfigDict) -> None:
    config.data.views = 2
    config.data.key_transforms = recipes.cifar_strong_key()


def _ce_reference(config: ConfigDict) -> None:
    config_lib.use_objective(config, "cross_entropy")
    config.epochs = 500
    config.data.train_transforms = CROP_AND_FLIP
    _fixed_rate(config.optimizer, 0.8)
    config.schedule.warmup_epochs = 10.0
    config.schedule.warmup_start = 0.01 / 0.8


def _contrast_in_batch(config: ConfigDict, name: str, linear_rate: float) -> None:
    """SupContrast's recipe for SimCLR and SupCon."""
    config_lib.use_objective(config, name)
    config.model.embedding_dim = 128
    config.model.head_hidden = 2048
    config.model.head_batch_norm = False
    _fixed_rate(config.optimizer, 0.5)
    config.schedule.warmup_epochs = 10.0
    config.schedule.warmup_start = 0.01 / 0.5

    stage = config.linear_stage
    stage.epochs = 100
    stage.batch_size = 512
    stage.train_transforms = CROP_AND_FLIP
    _fixed_rate(stage.optimizer, linear_rate)
    stage.schedule.decay = "steps"
    stage.schedule.milestones = ((60.0, 0.2), (75.0, 0.04), (90.0, 0.008))


def _l_softmax(config: ConfigDict) -> None:
    """The authors' CIFAR-10 example: 30,000 steps of 128 images."""
    config_lib.use_objective(config, "l_softmax")
    config.batch_size = 128
    config.steps = 30_000
    config.data.train_transforms = recipes.cifar_standard()
    _fixed_rate(config.optimizer, 0.1)
    config.optimizer.weight_decay = 5e-4
    config.schedule.warmup_epochs = 0.0
    config.schedule.decay = "steps"
    config.schedule.milestones = ((5_000 / 390, 0.1), (7_500 / 390, 0.01))
    config.schedule.unit = "step"
    config.log_every = 390


def _paco(config: ConfigDict) -> None:
    _parametric_frame(config, "paco")
    config.objective.paco.alpha = 0.01
    config.objective.paco.temperature = 0.07
    config.objective.paco.prior = "uniform"


def _parametric_frame(config: ConfigDict, name: str) -> None:
    """PaCo's set-up, which its multi-task baseline shares."""
    config_lib.use_objective(config, name)
    _strong(config)
    _key_view(config)
    config.model.embedding_dim = 128
    config.model.head_hidden = 2048
    config.bank.size = 1024
    config.ema.momentum = 0.999
    config.ema.schedule = "constant"


def _long_tail(config: ConfigDict, imbalance: float) -> None:
    config.data.imbalance = imbalance
    config.evaluation.evaluators = ("classification", "long_tail")
    config.objective.paco.prior = "data"


def _adjust_logits(config: ConfigDict) -> None:
    config.objective.cone.logit_adjustment = 1.0
    config.objective.cross_entropy.logit_adjustment = 1.0


def _balanced_sampling(config: ConfigDict) -> None:
    config.data.sampling = "balanced"


def _fixed_rate(optimizer: ConfigDict, rate: float) -> None:
    optimizer.learning_rate = rate
    optimizer.reference_batch = 0
