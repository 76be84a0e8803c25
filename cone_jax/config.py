"""Every field of a run, with its default, its meaning and its limits.

A recipe in `configs/` starts from `default()`, changes what it needs and returns the result
locked, so that a misspelt field is an error. `validate` checks what can be checked without
data. Defaults follow the released code (preset ``official``); where the paper's text differs,
`apply_preset(config, "paper")` sets the text's value. The comments marked "design choice" are
points that neither paper nor code settles.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from cone_jax import objectives
from cone_jax.errors import UserError, closest

PRESETS = ("official", "paper")


def default() -> ConfigDict:
    """A complete config: CoNe as released, on the bundled digits."""
    config = ConfigDict()
    config.seed = 0
    config.epochs = 100
    config.steps = 0  # when positive, replaces `epochs`
    config.batch_size = 256  # over all devices and processes
    config.data = _data()
    config.model = _model()
    config.objective = ConfigDict({"name": "cone"})
    for name in objectives.names():  # one section a method: config.objective.cone.sup_weight
        config.objective[name] = ConfigDict(objectives.default_settings(name))
    config.bank = _bank()
    config.ema = _ema()
    config.optimizer = _optimizer()
    config.schedule = _schedule()
    config.log_every = 20  # steps between two records of train metrics
    config.evaluation = ConfigDict()
    config.evaluation.every_epochs = 1.0  # 0: at the end only
    config.evaluation.batch_size = 256
    config.checkpoint = ConfigDict()
    config.checkpoint.every_epochs = 1.0  # 0: at the end only
    config.checkpoint.keep = 2  # the latest so many, and the best one
    config.checkpoint.best_metric = "test/top1"
    return config


def _data() -> ConfigDict:
    data = ConfigDict()
    data.source = "digits"  # or tfds, image_folder, packed, array
    data.name = ""  # of a TFDS set: name[/config][:version]
    data.path = ""  # image folder, packed folder, .npz file or folder, or TFDS data_dir
    data.label_key = "label"  # the TFDS feature to learn
    data.holdout = 0.1  # fraction of each class to test on where there is no test part
    data.holdout_seed = 0
    data.cache_bytes = 2**30  # memory for decoded small pictures, a process and split; 0: none
    data.train_split = "train"
    data.test_split = "test"
    data.num_classes = 0  # 0: what the source says
    data.image_size = 8  # of the training images that reach the network
    data.train_transforms = ()  # in order, e.g. ("random_resized_crop(224)", "flip")
    data.test_transforms = ()
    data.mean = (0.485, 0.456, 0.406)  # of pixels in [0, 1]
    data.std = (0.229, 0.224, 0.225)
    data.views = 1  # augmented views a sample; the second one is the key's
    data.last_batch = "drop"  # of an epoch: drop, or carry into the next epoch
    data.damaged_limit = 0.01  # the fraction of unreadable images that ends the run
    data.threads = 4
    data.workers = 0  # processes that read ahead, each with its own threads; 0: threads alone
    data.prefetch = 4  # batches ready ahead of the step
    return data


def _model() -> ConfigDict:
    model = ConfigDict()
    model.name = "resnet50"
    model.stem = "imagenet"  # or cifar
    model.dtype = "float32"  # of the computation; parameters are float32
    model.options = ConfigDict({"width": 0})  # planes of the first stage; 0: the architecture's
    model.projection = True  # False: classifier on pooled features
    model.embedding_dim = 256
    model.head_layers = 1  # hidden layers of the projection head
    model.head_hidden = 0  # 0: max(2 d, 4096)
    model.head_batch_norm = True
    model.classifier = "linear"  # or cosine, on the unit-norm embedding
    model.classifier_input = "embedding"  # or features
    model.classifier_bias = True
    return model


def _bank() -> ConfigDict:
    bank = ConfigDict()
    bank.size = 65536
    bank.init = "masked"  # rows count once written; "official": noise that counts from step 0
    bank.probs_dtype = "float32"
    bank.exclude_self = False  # hide a sample's own older copy from its neighbours
    bank.sharding = "replicated"
    return bank


def _ema() -> ConfigDict:
    ema = ConfigDict()
    ema.momentum = 0.996
    ema.schedule = "official_auto"  # or cosine_to_one, constant
    ema.order = "before_forward"  # or after_update (Algorithm 1 of the paper)
    return ema


def _optimizer() -> ConfigDict:
    optimizer = ConfigDict()
    optimizer.name = "sgd"
    optimizer.learning_rate = 0.1  # for a batch of `reference_batch`
    optimizer.reference_batch = 256  # 0: the learning rate is not scaled by the batch
    optimizer.momentum = 0.9
    optimizer.nesterov = False
    optimizer.weight_decay = 1e-4
    optimizer.decay_scope = "all"  # or exclude_1d: no decay on biases and norms
    optimizer.clip_norm = 0.0  # 0: gradients are not clipped
    return optimizer


def _schedule() -> ConfigDict:
    schedule = ConfigDict()
    schedule.warmup_epochs = 5.0  # from 0, a step at a time
    schedule.decay = "cosine"  # or linear, constant, steps
    schedule.milestones = ()  # of decay "steps": pairs (epoch, fraction of the peak from then on)
    schedule.unit = "epoch"  # the rate changes once an epoch after warm-up, or each "step"
    schedule.floor = 1e-3  # of the peak rate
    return schedule


def apply_preset(config: ConfigDict, preset: str) -> ConfigDict:
    """Sets every field on which the paper's text and its released code disagree.

    Learning-rate warm-up is not among them: its length belongs to the recipe.
    """
    if preset not in PRESETS:
        raise UserError(f"preset ({preset!r}) is unknown; {closest(preset, PRESETS)}")
    paper = preset == "paper"
    cone = config.objective.cone
    cone.min_positive_prob = 0.0 if paper else 1e-8
    cone.conf_mask_eps = 0.0 if paper else 1e-8
    cone.start_epochs = 0 if paper else 1
    config.model.classifier = "cosine" if paper else "linear"
    config.model.classifier_bias = not paper
    config.ema.schedule = "cosine_to_one" if paper else "official_auto"
    config.ema.order = "after_update" if paper else "before_forward"
    config.schedule.unit = "step" if paper else "epoch"
    config.schedule.floor = 0.0 if paper else 1e-3
    return config


def apply_options(
    config: ConfigDict,
    options: str,
    recipe_options: Mapping[str, Callable[[ConfigDict], object]] | None = None,
) -> ConfigDict:
    """Applies what follows the colon in ``--config=configs/x.py:a,b`` and locks the config.

    Every recipe understands the presets, and the names of the objectives, which replace CoNe in
    the same recipe; `recipe_options` are its own. ``cross_entropy`` is the plain classifier
    without projection head; ``--config.model.projection=True`` gives it one.
    """
    known: dict[str, Callable[[ConfigDict], object]] = dict(recipe_options or {})
    known |= {preset: functools.partial(apply_preset, preset=preset) for preset in PRESETS}
    known |= {name: functools.partial(_use_objective, name=name) for name in objectives.names()}
    for option in filter(None, (part.strip() for part in options.split(","))):
        if option not in known:
            raise UserError(f"config option ({option!r}) is unknown; {closest(option, known)}")
        known[option](config)
    return config.lock()


def _use_objective(config: ConfigDict, name: str) -> None:
    config.objective.name = name
    if name == "cross_entropy":
        config.model.projection = False


CHOICES: dict[str, tuple[str, ...]] = {
    "data.last_batch": ("drop", "carry"),
    "model.stem": ("imagenet", "cifar"),
    "model.dtype": ("float32", "bfloat16"),
    "model.classifier": ("linear", "cosine"),
    "model.classifier_input": ("embedding", "features"),
    "bank.init": ("masked", "official"),
    "bank.probs_dtype": ("float32", "bfloat16"),
    "bank.sharding": ("replicated",),
    "ema.schedule": ("official_auto", "cosine_to_one", "constant"),
    "ema.order": ("before_forward", "after_update"),
    "optimizer.decay_scope": ("all", "exclude_1d"),
    "schedule.decay": ("cosine", "linear", "constant", "steps"),
    "schedule.unit": ("epoch", "step"),
}

# field: (lowest, highest) allowed; None: no limit
RANGES: dict[str, tuple[float | None, float | None]] = {
    "seed": (0, 2**31 - 1),
    "steps": (0, None),
    "batch_size": (1, None),
    "log_every": (1, None),
    "data.num_classes": (0, None),
    "data.cache_bytes": (0, None),
    "data.image_size": (1, None),
    "data.views": (1, 2),
    "data.damaged_limit": (0.0, 1.0),
    "data.threads": (1, None),
    "data.workers": (0, None),
    "data.prefetch": (1, None),
    "model.embedding_dim": (1, None),
    "model.head_layers": (0, None),
    "model.head_hidden": (0, None),
    "bank.size": (1, None),
    "ema.momentum": (0.0, 1.0),
    "optimizer.learning_rate": (0.0, None),
    "optimizer.reference_batch": (0, None),
    "optimizer.momentum": (0.0, 1.0),
    "optimizer.weight_decay": (0.0, None),
    "optimizer.clip_norm": (0.0, None),
    "schedule.warmup_epochs": (0.0, None),
    "schedule.floor": (0.0, 1.0),
    "evaluation.every_epochs": (0.0, None),
    "evaluation.batch_size": (1, None),
    "checkpoint.every_epochs": (0.0, None),
    "checkpoint.keep": (1, None),
}


def validate(config: ConfigDict) -> None:
    """Raises `UserError` for the first field that cannot work."""
    for field, valid in CHOICES.items():
        value = _get(config, field)
        if value not in valid:
            raise UserError(f"{field} ({value!r}) is unknown; {closest(str(value), valid)}")
    for field, (low, high) in RANGES.items():
        value = _get(config, field)
        # `not >=` also refuses NaN
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            limits = f"at least {low}" if high is None else f"between {low} and {high}"
            raise UserError(f"{field} ({value}) must be {limits}")
    if not config.epochs > 0 and config.steps == 0:
        raise UserError(f"epochs ({config.epochs}) must be positive, or set steps")
    name = config.objective.name
    if name not in objectives.names():
        raise UserError(
            f"objective.name ({name!r}) is unknown; {closest(name, objectives.names())}"
        )
    objective = objectives.create(name, config.objective[name])
    if objective.needs.bank and config.bank.size < config.batch_size:
        raise UserError(
            f"bank.size ({config.bank.size}) must be at least the global batch "
            f"({config.batch_size})"
        )
    neighbours = getattr(objective, "neighbours", 0)
    if objective.needs.bank and neighbours > config.bank.size:
        raise UserError(
            f"objective.{name}.neighbours ({neighbours}) must be at most bank.size "
            f"({config.bank.size})"
        )
    for field in ("mean", "std"):
        if len(config.data[field]) != 3:
            raise UserError(f"data.{field} ({config.data[field]}) must have three values, R G B")


def _get(config: ConfigDict, field: str) -> Any:
    value = config
    for part in field.split("."):
        value = value[part]
    return value
