"""The hyper-parameters of every recipe, typed in from the papers and codes.

`RECIPES` maps (file in configs/, options) to what must hold of the run, and of its linear stage
where it has one. Nothing here is imported from the project, so that it cannot agree by accident.
"""

# Short names of what is checked, as the tables of the papers head their columns.
FIELDS = {
    "E": "epochs",
    "B": "batch_size",
    "wd": "optimizer.weight_decay",
    "opt": "optimizer.name",
    "scope": "optimizer.decay_scope",
    "nesterov": "optimizer.nesterov",
    "warm": "schedule.warmup_epochs",
    "start": "schedule.warmup_start",
    "decay": "schedule.decay",
    "unit": "schedule.unit",
    "floor": "schedule.floor",
    "K": "bank.size",
    "N": "objective.cone.neighbours",
    "m0": "ema.momentum",
    "m": "ema.schedule",
    "arch": "model.name",
    "stem": "model.stem",
    "res": "data.image_size",
    "aug": "data.train_transforms",
    "key_aug": "data.key_transforms",
    "test": "data.test_transforms",
    "views": "data.views",
    "head": "model.projection",
    "D": "model.embedding_dim",
    "h": "model.head_hidden",
    "layers": "model.head_layers",
    "head_bn": "model.head_batch_norm",
    "mixup": "mixing.mixup_alpha",
    "cutmix": "mixing.cutmix_alpha",
    "switch": "mixing.switch",
    "drop": "model.options.stochastic_depth",
    "ls": "objective.cone.label_smoothing",
    "average": "average.decay",
    "every": "average.every",
    "objective": "objective.name",
}

JITTER, STRONG_JITTER = (
    f"colour_jitter({x}, {x}, {x}, {hue}, p=0.8)" for x, hue in ((0.4, 0.1), (0.8, 0.2))
)
PLAIN_JITTER = "colour_jitter(0.4, 0.4, 0.4, 0, p=1)"
GREY, BLUR = "grey(p=0.2)", "blur(p=0.5, sigma=(0.1, 2.0))"


def crop(size, low=0.08, interpolation="bilinear"):
    return (
        f"random_resized_crop({size}, scale=({low}, 1), interpolation={interpolation!r})",
        "flip(p=0.5)",
    )


def centre(short_side, interpolation="bilinear"):
    return (f"resize({short_side}, interpolation={interpolation!r})", "centre_crop(224)")


def auto_aug(size=224, policy="imagenet"):
    return (*crop(size), f"auto_augment({policy!r})")


def infomin(size=224):
    timm = "rand_augment(2, 10, form='timm', std=0.5)"
    return (*crop(size), STRONG_JITTER, BLUR, timm, GREY)


def increasing(size, m):
    rand = f"rand_augment(2, {m}, form='timm', std=0.5, increasing=True)"
    return (*crop(size, interpolation="bicubic"), rand)


SIMCLR = (*crop(224), STRONG_JITTER, GREY, BLUR)
SUPCON_STACKED = (*crop(224), STRONG_JITTER, "rand_augment(2, 10, form='tf')", GREY, BLUR)
MOCO_V2 = (*crop(224, 0.2), JITTER, GREY, BLUR)
PADDED_CROP = ("random_crop(32, padding=4)", "flip(p=0.5)")
PACO_QUERY = (*PADDED_CROP, "auto_augment('cifar10')", "cutout(16)")
PACO_KEY = (*crop(32, 0.2), JITTER, GREY, BLUR)

CIFAR10 = {"data.mean": (0.4914, 0.4822, 0.4465), "data.std": (0.2023, 0.1994, 0.2010)}
CIFAR100 = {"data.mean": (0.5071, 0.4867, 0.4408), "data.std": (0.2675, 0.2565, 0.2761)}
IMAGENET = {"data.mean": (0.485, 0.456, 0.406), "data.std": (0.229, 0.224, 0.225)}
IMAGENET |= {"res": 224, "stem": "imagenet", "test": centre(256), "data.test_split": "validation"}

SGD = {"opt": "sgd", "optimizer.momentum": 0.9, "nesterov": False, "scope": "all"}
SGD |= {"optimizer.clip_norm": 0.0}
EPOCHWISE = {"decay": "cosine", "start": 0.0, "unit": "epoch", "floor": 1e-3}
STEPWISE = {"decay": "cosine", "start": 0.0, "unit": "step", "floor": 0.0}
TO_ZERO = EPOCHWISE | {"floor": 0.0}
CONE = {"objective": "cone", "m0": 0.996, "m": "official_auto", "ema.order": "before_forward"}
CONE |= {"head": True, "D": 256, "h": 0, "layers": 1, "head_bn": True}  # 0: max(2 d, 4096)
CONE |= {"model.classifier": "linear", "model.classifier_input": "embedding"}
CONE |= {"model.classifier_bias": True, "bank.init": "masked", "bank.exclude_self": False}
CONE |= {"views": 1, "average": 0.0, "mixup": 0.0, "cutmix": 0.0, "ls": 0.0}
CONE |= {
    "objective.cone.smoothing_form": "official",
    "objective.cone.sup_weight": 0.7,
    "objective.cone.sup_temperature": 0.1,
    "objective.cone.dc_weight": 0.4,
    "objective.cone.dc_temperature": 0.07,
    "objective.cone.contrast": "sup_in",
    "objective.cone.anchors": "nearest",
    "objective.cone.views": "query_key",
    "objective.cone.contrastive_view": "none",
    "objective.cone.min_positive_prob": 1e-8,
    "objective.cone.conf_mask_eps": 1e-8,
    "objective.cone.sup_reduction": "batch",
    "objective.cone.start_epochs": 1,
    "objective.cone.wait_for_bank": True,
}
NO_HEAD = {"objective": "cross_entropy", "head": False}

D1 = SGD | EPOCHWISE | CONE | {"E": 1000, "B": 1024, "lr": 0.4, "wd": 1e-4, "warm": 100}
D1 |= {"arch": "resnet50", "stem": "cifar", "res": 32, "test": (), "K": 4096, "N": 32}
D1 |= {"aug": (*crop(32, 0.2), JITTER, GREY)}
# PaCo normalises CIFAR-100 with the statistics of CIFAR-10.
D2 = D1 | CIFAR10 | {"E": 400, "B": 128, "lr": 0.05, "wd": 5e-4, "warm": 10, "decay": "steps"}
D2 |= {"schedule.milestones": ((321.0, 0.1), (361.0, 0.01)), "aug": PACO_QUERY}
D3 = SGD | EPOCHWISE | CONE | IMAGENET | {"E": 100, "B": 1024, "lr": 0.4, "wd": 1e-4, "warm": 5}
D3 |= {"K": 65_536, "N": 512, "aug": crop(224)}
CE3 = D3 | NO_HEAD
D4 = D3 | {"E": 350, "views": 2, "objective.cone.views": "rows"}
D5 = D4 | {"wd": 6e-5, "res": 176, "test": centre(232), "ls": 0.1}
D5 |= {"average": 0.99998, "every": 32, "average.rescale": True}

# SupContrast, on CIFAR.
PAIRS = SGD | EPOCHWISE | {"E": 1000, "B": 1024, "lr": 0.5, "wd": 1e-4, "warm": 10, "views": 2}
PAIRS |= {"start": 0.01 / 0.5, "aug": (*crop(32, 0.2), JITTER, GREY), "arch": "resnet50"}
PAIRS |= {"stem": "cifar", "D": 128, "h": 2048, "layers": 1, "head_bn": False, "head": True}
PAIRS_LINEAR = SGD | {"E": 100, "B": 512, "wd": 0.0, "warm": 0, "decay": "steps", "views": 1}
PAIRS_LINEAR |= {"schedule.milestones": ((60.0, 0.2), (75.0, 0.04), (90.0, 0.008))}
PAIRS_LINEAR |= {"aug": crop(32, 0.2), "head": False, "objective.linear.label_smoothing": 0.0}

PACO_C = D2 | {"K": 1024, "D": 128, "h": 2048, "m0": 0.999, "m": "constant", "views": 2}
PACO_C |= {"key_aug": PACO_KEY, "model.classifier_input": "features"}

# SupCon's TensorFlow code.
LARS = STEPWISE | IMAGENET | {"opt": "lars", "optimizer.momentum": 0.9, "scope": "exclude_1d"}
LARS |= {"optimizer.trust_coefficient": 1e-3, "views": 2}
SUPCON_IN = LARS | {"E": 350, "B": 6144, "lr": 9.6, "wd": 1e-3, "warm": 12, "D": 128, "layers": 0}
SUPCON_IN |= {"model.head_normalise_input": True, "objective.supcon.temperature": 0.1}
SUPCON_IN |= {"objective.supcon.contrast": "sup_out", "objective.supcon.base_temperature": 1.0}
SUPCON_IN |= {"aug": auto_aug(policy="v0")}
RMSPROP = {"E": 90, "opt": "rmsprop", "wd": 1e-6, "decay": "exponential", "optimizer.epsilon": 1.0}
RMSPROP |= {
    "schedule.decay_epochs": 0.5,
    "schedule.decay_factor": 0.97,
    "warm": 0,
    "aug": crop(224),
}
RMSPROP |= {"objective.linear.label_smoothing": 0.05, "optimizer.momentum": 0.9, "views": 1}

PACO_IN = SGD | TO_ZERO | IMAGENET | {"E": 400, "B": 256, "lr": 0.04, "wd": 1e-4, "warm": 10}
PACO_IN |= {"K": 8192, "m0": 0.999, "m": "constant", "D": 128, "h": 2048, "head_bn": True}
PACO_IN |= {"objective.paco.alpha": 0.05, "objective.paco.temperature": 0.2, "views": 2}
PACO_IN |= {"objective.paco.beta": 1.0, "objective.paco.gamma": 1.0, "objective.paco.prior": "none"}
PACO_IN |= {"model.classifier_input": "features", "key_aug": (*crop(224), JITTER, GREY, BLUR)}

RSB = STEPWISE | IMAGENET | {"B": 2048, "opt": "lamb", "warm": 5, "scope": "exclude_1d"}
RSB |= {"cutmix": 1.0, "switch": 0.5, "test": centre(236, "bicubic"), "head": False}
RSB |= {"objective.binary_cross_entropy.reduction": "mean"}
RSB_A1 = RSB | {"E": 600, "lr": 5e-3, "wd": 0.01, "mixup": 0.2, "floor": 1e-6 / 5e-3, "drop": 0.05}
RSB_A1 |= {"objective.binary_cross_entropy.label_smoothing": 0.1, "aug": increasing(224, 7)}
RSB_A2 = RSB_A1 | {"E": 300, "wd": 0.02, "mixup": 0.1}
RSB_A2 |= {"objective.binary_cross_entropy.label_smoothing": 0.0}
RSB_A3 = RSB_A2 | {"E": 100, "lr": 8e-3, "floor": 1e-6 / 8e-3, "res": 160, "drop": 0.0}
RSB_A3 |= {"aug": increasing(160, 6)}

UNIFORM = {"ls": 0.1, "objective.cone.smoothing_form": "uniform"}
LIGHT = D3 | TO_ZERO
DEIT = LIGHT | STEPWISE | UNIFORM | {"E": 300, "lr": 1e-3, "wd": 0.05, "opt": "adamw"}
DEIT |= {"scope": "exclude_1d", "optimizer.clip_norm": 5.0, "warm": 20, "start": 1e-3}
DEIT |= {"floor": 1e-2, "mixup": 0.8, "cutmix": 1.0, "switch": 0.5, "arch": "deit_tiny"}
DEIT |= {"aug": (*increasing(224, 9), "random_erasing(0.25)"), "test": centre(256, "bicubic")}
DEIT_WITH_JITTER = (*DEIT["aug"][:2], "colour_jitter(0.3, 0.3, 0.3)", *DEIT["aug"][2:])

RECIPES = {
    ("cifar", "10"): (D1 | CIFAR10, None),
    ("cifar", "100"): (D1 | CIFAR100, None),
    ("cifar", "100,cross_entropy"): (D1 | CIFAR100 | NO_HEAD, None),
    ("cifar", "100,large_margin"): (
        D1
        | NO_HEAD
        | {"objective": "large_margin", "objective.large_margin.gamma": 10000.0}
        | {"objective.large_margin.alpha": 2.0, "objective.large_margin.top_k": 1}
        | {"objective.large_margin.norm": "l2", "objective.large_margin.ce_weight": 0.0},
        None,
    ),
    ("cifar", "100,strong"): (D2 | {"K": 4096, "N": 32}, None),
    ("cifar", "100,strong,key_view"): (D2 | {"views": 2, "key_aug": PACO_KEY}, None),
    ("cifar", "100,strong,cross_entropy"): (D2 | NO_HEAD, None),
    ("cifar", "10,ce_reference"): (
        SGD
        | EPOCHWISE
        | CIFAR10
        | {"E": 500, "B": 1024, "lr": 0.8, "wd": 1e-4, "aug": crop(32, 0.2), "head": False}
        | {"start": 0.01 / 0.8},
        None,
    ),
    ("cifar", "10,l_softmax"): (
        SGD
        | {"steps": 30_000, "B": 128, "lr": 0.1, "wd": 5e-4, "warm": 0, "decay": "steps"}
        | {"objective.l_softmax.margin": 4, "objective.l_softmax.lambda_base": 1000.0}
        | {"objective.l_softmax.lambda_gamma": 2e-5, "objective.l_softmax.lambda_power": 45.0}
        | {"model.classifier_bias": False, "aug": PADDED_CROP},
        None,
    ),
    ("cifar", "100,paco"): (
        PACO_C
        | {"objective": "paco", "objective.paco.alpha": 0.01, "objective.paco.temperature": 0.07}
        | {"objective.paco.beta": 1.0, "objective.paco.gamma": 1.0}
        | {"objective.paco.prior": "uniform"},
        None,
    ),
    ("cifar", "100,joint_supcon"): (
        PACO_C
        | {"objective": "joint_supcon", "objective.joint_supcon.sup_weight": 0.5}
        | {"objective.joint_supcon.temperature": 0.07},
        None,
    ),
    ("cifar", "100,simclr"): (
        PAIRS
        | CIFAR100
        | {"objective.simclr.temperature": 0.5, "objective.simclr.base_temperature": 0.07},
        PAIRS_LINEAR | {"lr": 1.0},
    ),
    ("cifar", "100,supcon"): (
        PAIRS
        | CIFAR100
        | {"objective.supcon.temperature": 0.1, "objective.supcon.base_temperature": 0.07}
        | {"objective.supcon.contrast": "sup_out"},
        PAIRS_LINEAR | {"lr": 5.0},
    ),
    **{
        ("imagenet", f"resnet{depth},100ep"): (D3 | {"arch": f"resnet{depth}"}, None)
        for depth in (18, 34, 50, 101, 152, 200)
    },
    ("imagenet", "resnet18,cross_entropy"): (CE3 | {"arch": "resnet18"}, None),
    ("imagenet", "cross_entropy,projection"): (CE3 | {"head": True}, None),
    ("imagenet", "no_dc"): (D3 | {"objective.cone.dc_weight": 0.0}, None),
    ("imagenet", "no_contrast"): (D3 | {"objective.cone.sup_weight": 0.0}, None),
    ("imagenet", "no_dc,sup_out"): (
        D3 | {"objective.cone.dc_weight": 0.0, "objective.cone.contrast": "sup_out"},
        None,
    ),
    **{
        ("imagenet", f"no_dc,contrastive_view{option}"): (
            D3
            | {"views": 2, "objective.cone.contrastive_view": "key", "aug": aug}
            | {"objective.cone.dc_weight": 0.0},
            None,
        )
        for option, aug in (
            ("", crop(224)),
            (",autoaug", auto_aug()),
            (",randaug", (*crop(224), "rand_augment(2, 9, form='torchvision')")),
            (",simclr_aug", SIMCLR),
        )
    },
    ("imagenet", "two_views,stacked"): (
        D3 | {"views": 2, "objective.cone.views": "rows", "aug": infomin()},
        None,
    ),
    ("imagenet", "cmsf,with_ce"): (
        D3
        | {"objective": "cmsf", "objective.cmsf.ce_weight": 1.0, "objective.cmsf.shift_weight": 1.0}
        | {"objective.cmsf.neighbours": 10},
        None,
    ),
    ("imagenet", "nnclr,with_ce"): (
        D3
        | {"objective": "nnclr", "objective.nnclr.ce_weight": 1.0, "objective.nnclr.nn_weight": 1.0}
        | {"objective.nnclr.temperature": 0.1, "objective.nnclr.lookup": "key"}
        | {"objective.nnclr.same_class_only": False},
        None,
    ),
    ("imagenet", "resnet50,long"): (D4 | {"arch": "resnet50", "aug": auto_aug()}, None),
    ("imagenet", "resnet101,long"): (D4 | {"arch": "resnet101", "aug": infomin()}, None),
    ("imagenet", "resnet200,long"): (
        D4 | {"E": 400, "arch": "resnet200", "aug": infomin()},
        None,
    ),
    **{
        ("imagenet", f"resnet{depth},timm"): (D5 | {"arch": f"resnet{depth}", "aug": aug}, None)
        for depth, aug in (
            *((18, auto_aug(176)), (34, auto_aug(176)), (50, auto_aug(176))),
            *((101, infomin(176)), (152, infomin(176))),
        )
    },
    ("imagenet", "cross_entropy,mixup,300ep"): (CE3 | {"E": 300, "mixup": 0.2}, None),
    ("imagenet", "cross_entropy,cutmix,300ep"): (CE3 | {"E": 300, "cutmix": 1.0}, None),
    ("imagenet", "cross_entropy,autoaug,300ep"): (CE3 | {"E": 300, "aug": auto_aug()}, None),
    ("imagenet", "resnet200,cross_entropy,stacked,700ep"): (
        CE3 | {"E": 700, "aug": infomin()},
        None,
    ),
    ("imagenet_baselines", "ce_reference"): (
        STEPWISE
        | IMAGENET
        | {"E": 200, "B": 6144, "lr": 2.4, "wd": 1e-4, "opt": "sgd", "nesterov": True}
        | {"head": False, "aug": auto_aug(policy="v0")},
        None,
    ),
    ("imagenet_baselines", "sl_mlp"): (CE3 | {"h": 2048, "D": 256, "head": True}, None),
    ("imagenet_baselines", "supcon"): (SUPCON_IN, RMSPROP | {"lr": 1.2}),
    ("imagenet_baselines", "resnet101,supcon"): (
        SUPCON_IN | {"wd": 1e-4, "aug": SUPCON_STACKED},
        RMSPROP | {"lr": 1.2},
    ),
    ("imagenet_baselines", "resnet200,supcon"): (
        SUPCON_IN | {"E": 700, "B": 4096, "lr": 3.2, "wd": 1e-4, "aug": SUPCON_STACKED},
        RMSPROP | {"lr": 0.8},
    ),
    ("imagenet_baselines", "supcon_bank"): (
        SGD
        | TO_ZERO
        | IMAGENET
        | {"E": 350, "B": 1024, "lr": 0.12, "wd": 1e-4, "warm": 0, "K": 8192, "aug": auto_aug()}
        | {"m0": 0.999, "m": "constant", "D": 128, "h": 2048, "head_bn": False, "views": 2}
        | {"objective.supcon_bank.temperature": 0.07},
        RMSPROP | {"lr": 0.2},
    ),
    ("imagenet_baselines", "paco"): (
        PACO_IN | {"aug": (*crop(224), PLAIN_JITTER, "rand_augment(2, 10, form='timm', std=0.5)")},
        None,
    ),
    ("imagenet_baselines", "resnet101,paco"): (
        PACO_IN
        | {"arch": "resnet101"}
        | {"aug": (*crop(224), PLAIN_JITTER, GREY, BLUR, "rand_augment(2, 10, form='timm')")},
        None,
    ),
    ("imagenet_baselines", "resnet200,paco"): (
        PACO_IN
        | {"arch": "resnet200"}
        | {"aug": (*crop(224), PLAIN_JITTER, GREY, BLUR, "rand_augment(3, 12, form='timm')")},
        None,
    ),
    ("imagenet_baselines", "cmsf"): (
        SGD
        | TO_ZERO
        | IMAGENET
        | {"E": 200, "B": 256, "lr": 0.05, "wd": 1e-4, "warm": 0, "K": 128_000, "m0": 0.99}
        | {"m": "constant", "D": 512, "h": 4096, "model.predictor_hidden": 4096, "views": 2}
        | {"objective.cmsf.neighbours": 10, "objective.cmsf.ce_weight": 0.0}
        | {"aug": MOCO_V2, "key_aug": crop(224, 0.2)},
        RMSPROP | {"lr": 0.05},
    ),
    ("imagenet_baselines", "nnclr"): (
        LARS
        | {"E": 1000, "K": 98_304, "D": 256, "h": 2048, "layers": 2, "aug": SIMCLR}
        | {"objective.nnclr.temperature": 0.1, "objective.nnclr.lookup": "query"}
        | {"model.predictor_hidden": 4096, "model.head_output_batch_norm": True},
        RMSPROP | {"lr": 0.8},
    ),
    ("imagenet_baselines", "rsb_a1"): (RSB_A1, None),
    ("imagenet_baselines", "rsb_a2"): (RSB_A2, None),
    ("imagenet_baselines", "rsb_a3"): (RSB_A3, None),
    ("imagenet_light", "regnetx_400mf"): (
        LIGHT | {"E": 100, "lr": 0.8, "wd": 5e-5, "start": 0.1, "arch": "regnetx_400mf"},
        None,
    ),
    ("imagenet_light", "mobilenet_v2"): (
        LIGHT | {"E": 150, "B": 256, "lr": 0.05, "wd": 4e-5, "warm": 0, "arch": "mobilenet_v2"},
        None,
    ),
    ("imagenet_light", "shufflenet_v2"): (
        LIGHT
        | UNIFORM
        | {"E": 240, "lr": 0.5, "wd": 4e-5, "decay": "linear", "unit": "step", "warm": 0}
        | {"scope": "exclude_1d", "aug": (*crop(224), PLAIN_JITTER), "arch": "shufflenet_v2"},
        None,
    ),
    ("imagenet_light", "deit_tiny"): (DEIT, None),
    ("imagenet_light", "deit_tiny,cross_entropy,no_mixing"): (
        DEIT
        | NO_HEAD
        | {"mixup": 0.0, "cutmix": 0.0, "objective.cross_entropy.label_smoothing": 0.1}
        | {"objective.cross_entropy.smoothing_form": "uniform"},
        None,
    ),
    ("imagenet_light", "deit_tiny,deit_original"): (
        DEIT
        | {"warm": 5, "optimizer.clip_norm": 0.0, "drop": 0.1}
        | {"average": 0.99996, "every": 1, "average.rescale": False}
        | {"aug": DEIT_WITH_JITTER},
        None,
    ),
}
