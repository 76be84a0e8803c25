"""The sections on data, training, evaluation and checkpoints; and all settings together."""

import dataclasses
import functools
from typing import Literal

from cone_jax.errors import UserError
from cone_jax.settings.model import Average, Bank, Ema, Model
from cone_jax.settings.section import Section, field


@dataclasses.dataclass(frozen=True)
class Data(Section, path="data"):
    """The data set, its splits, its transforms, and the processes that read it."""

    source: str = field("digits", "the kind of data set; docs/data.md lists them")
    name: str = field("", "the name of a TFDS set: name[/config][:version]")
    path: str = field(
        "",
        "image folder, packed or archive folder, .npz file or folder, or TFDS data_dir",
        free=True,
    )
    stage: str = field(
        "",
        'local folder for copies of data from a bucket; "": the user\'s cache directory',
        free=True,
    )
    label_key: str = field("label", "the TFDS feature to learn")
    holdout: float = field(0.1, "fraction of each class to test on where there is no test part")
    holdout_seed: int = field(0, "decides which records are held out")
    empty_images: Literal["drop", "keep"] = field(
        "drop", "what to do with training pictures without objects, when training a detector"
    )
    folds: int = field(
        0,
        "number of folds to cut train into, one of which is tested on; 0: test on test_split",
        low=0,
    )
    fold: int = field(0, "the fold to test on, from 0; the others are trained on", low=0)
    sampling: Literal["uniform", "balanced", "sqrt"] = field(
        "uniform",
        "how often each class is seen; uniform: as often as it occurs; balanced: as often as any "
        "other; sqrt: in proportion to the square root of its number of records",
    )
    imbalance: float = field(
        1.0,
        "thins train out to a long tail (CIFAR-100-LT): records of the first class divided by "
        "those of the last; 1: train stays as it is",
        low=1.0,
    )
    corrections: str = field(
        "", "CSV file of corrected labels, as saved by the page of --mode=label_errors"
    )
    cache_bytes: int = field(
        2**30, "memory for small decoded pictures, per process and split; 0: none", low=0
    )
    train_split: str = field("train", "the split to train on; may be an expression")
    test_split: str = field("test", "the split to test on; may be an expression")
    num_classes: int = field(0, "number of classes that the source must have; 0: any number", low=0)
    image_size: int = field(
        8, "side, in pixels, of the training images that reach the network", low=1
    )
    train_transforms: tuple[str, ...] = field(
        (),
        'augmentation of training images, in order, such as ("random_resized_crop(224)", "flip")',
    )
    key_transforms: tuple[str, ...] = field(
        (), "augmentation of the second view, the key's; (): as train_transforms"
    )
    test_transforms: tuple[str, ...] = field(
        (), "preparation of the images that are evaluated or predicted"
    )
    test_pixels: Literal["exact", "stored", "fast"] = field(
        "exact",
        "how those images are read; exact: resized and cropped as Pillow does it; stored: the same "
        "without turning them by EXIF, as torchvision and timm read folders; fast: a JPEG is "
        "decoded no finer than needed",
    )
    mean: tuple[float, ...] = field(
        (0.485, 0.456, 0.406), "mean of R, G and B, for pixels in [0, 1]"
    )
    std: tuple[float, ...] = field(
        (0.229, 0.224, 0.225), "deviation of R, G and B, for pixels in [0, 1]"
    )
    views: int = field(
        1, "augmented views per sample; the objective says what the second is for", low=1, high=2
    )
    last_batch: Literal["drop", "carry"] = field(
        "drop",
        "whether the images left at the end of an epoch are dropped or carried into the next one",
    )
    damaged_limit: float = field(
        0.01,
        "the run ends if more than this fraction of the images, and more than a handful, is "
        "unreadable; 0: if any is",
        low=0.0,
        high=1.0,
    )
    threads: int = field(4, "threads per process that read ahead", low=1, free=True)
    workers: int = field(
        0,
        "processes that read ahead, each with its own threads; 0: threads alone",
        low=0,
        free=True,
    )
    prefetch: int = field(4, "batches prepared ahead of the step", low=1, free=True)

    def check(self) -> None:
        if "://" in self.stage:
            raise UserError(
                f"data.stage ({self.stage}) must be a local folder: it is where data from a bucket "
                "are copied to"
            )
        for name in ("mean", "std"):
            if len(getattr(self, name)) != 3:
                raise UserError(
                    f"data.{name} ({getattr(self, name)}) must have three values, R G B"
                )
        if self.folds == 1 or self.fold >= max(self.folds, 1):
            raise UserError(
                f"data.fold ({self.fold}) must be less than data.folds ({self.folds}), and "
                "data.folds at least 2, or 0"
            )
        if self.key_transforms and self.views == 1:
            raise UserError(
                "data.key_transforms are for the second view: set data.views (1) to 2, or leave "
                "them empty"
            )

    def check_of_objects(self) -> None:
        """`UserError` where a field is about the one class that a picture with objects lacks."""
        unused = {"corrections": "", "folds": 0, "imbalance": 1.0, "sampling": "uniform"}
        for name, value in unused.items():
            given = getattr(self, name)
            if given != value:
                raise UserError(
                    f"data.{name} ({given!r}) must be {value!r} for pictures with objects, which "
                    "have no class of their own"
                )


@dataclasses.dataclass(frozen=True)
class Mixing(Section, path="mixing"):
    """MixUp and CutMix, on the devices: see `cone_jax.data.on_device.mix`."""

    mixup_alpha: float = field(0.0, "parameter of MixUp's Beta distribution; 0: no MixUp", low=0.0)
    cutmix_alpha: float = field(
        0.0, "parameter of CutMix's Beta distribution; 0: no CutMix", low=0.0
    )
    switch: float = field(0.5, "probability of CutMix where both are on", low=0.0, high=1.0)

    @property
    def on(self) -> bool:
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0


@dataclasses.dataclass(frozen=True)
class Optimizer(Section, path="optimizer"):
    """The optimiser, its learning rate at the peak of the schedule, and weight decay."""

    name: str = field("sgd", "the optimiser; cone_jax/training/optimizers.py lists them")
    learning_rate: float = field(
        0.1, "peak learning rate for a batch of reference_batch images", low=0.0
    )
    reference_batch: int = field(
        256, "batch size that learning_rate is for; 0: the rate is not scaled with the batch", low=0
    )
    momentum: float = field(0.9, "momentum of sgd, lars and rmsprop", low=0.0, high=1.0)
    nesterov: bool = field(False, "Nesterov momentum, for sgd, lars and rmsprop")
    beta1: float = field(0.9, "beta1 of adamw and lamb", low=0.0, high=1.0)
    beta2: float = field(0.999, "beta2 of adamw and lamb", low=0.0, high=1.0)
    rms_decay: float = field(0.9, "decay of rmsprop's average of squares", low=0.0, high=1.0)
    epsilon: float = field(1e-8, "epsilon of adamw, lamb and rmsprop", low=0.0)
    trust_coefficient: float = field(1e-3, "trust coefficient of lars", low=0.0)
    weight_decay: float = field(1e-4, "weight decay of the parameters in decay_scope", low=0.0)
    decay_scope: Literal["all", "exclude_1d", "exclude_norms"] = field(
        "all",
        "exclude_1d: not biases, norms, class token and positions; exclude_norms: not norms",
    )
    backbone_rate: float = field(
        1.0, "factor of the backbone's learning rate; below 1 for fine-tuning", low=0.0, high=1.0
    )
    layer_decay: float = field(
        1.0,
        "for fine-tuning: the rate of a layer of the backbone, divided by that of the next layer",
        above=0.0,
        high=1.0,
    )
    head_epochs: float = field(
        0.0, "for fine-tuning: epochs in which only what follows the backbone is trained", low=0.0
    )
    clip_norm: float = field(
        0.0, "largest norm of a gradient; 0: gradients are not clipped", low=0.0
    )


@dataclasses.dataclass(frozen=True)
class Schedule(Section, path="schedule"):
    """The learning rate as a function of time."""

    warmup_epochs: float = field(
        5.0, "epochs of linear warm-up; the rate rises in every step", low=0.0
    )
    warmup_steps: int = field(0, "when positive, replaces warmup_epochs", low=0)
    warmup_start: float = field(
        0.0, "rate at the start, as a fraction of the peak", low=0.0, high=1.0
    )
    decay: Literal["cosine", "linear", "constant", "steps", "exponential"] = field(
        "cosine", "how the rate falls after warm-up"
    )
    milestones: tuple[tuple[float, float], ...] = field(
        (), 'for decay "steps": pairs (epoch, fraction of the peak from then on)'
    )
    milestone_steps: tuple[tuple[int, float], ...] = field(
        (), "when given, replaces milestones: pairs (step, fraction of the peak from then on)"
    )
    decay_epochs: float = field(
        1.0, 'for decay "exponential": epochs between two multiplications by decay_factor', low=0.0
    )
    decay_factor: float = field(1.0, 'for decay "exponential": the factor', low=0.0)
    unit: Literal["epoch", "step"] = field(
        "epoch", "how often the rate changes after warm-up: once per epoch or in each step"
    )
    floor: float = field(1e-3, "rate at the end, as a fraction of the peak", low=0.0, high=1.0)

    def warmup(self, steps_per_epoch: int) -> int:
        """The length of the warm-up in steps."""
        return self.warmup_steps or round(self.warmup_epochs * steps_per_epoch)


@dataclasses.dataclass(frozen=True)
class Stage(Section):
    """How long a stage takes, and in what batches."""

    epochs: float = field(100, "passes over the training set")
    steps: int = field(0, "when positive, replaces epochs", low=0)
    batch_size: int = field(256, "images per step, over all devices and processes", low=1)

    def check(self) -> None:
        if not self.epochs > 0 and self.steps == 0:
            raise UserError(
                f"{self.field_path('epochs')} ({self.epochs}) must be positive, or set "
                f"{self.field_path('steps')}"
            )


@dataclasses.dataclass(frozen=True)
class LinearStage(Stage, path="linear_stage"):
    """The second stage of methods whose loss trains no classifier; the others ignore it."""

    train_transforms: tuple[str, ...] = field(
        (), "augmentation in this stage; (): as data.train_transforms"
    )
    optimizer: Optimizer = field(Optimizer(weight_decay=0.0), "the optimiser of this stage")
    schedule: Schedule = field(Schedule(warmup_epochs=0.0), "the schedule of this stage")


@dataclasses.dataclass(frozen=True)
class Transfer(Section, path="transfer"):
    """The grid of ``--mode=transfer``; other modes ignore it."""

    name: str = field("", "name of the data set, as in the heading of the paper's table")
    metric: Literal["top1", "mean_per_class"] = field(
        "top1", "the metric to choose by and to report; both are recorded"
    )
    learning_rates: tuple[float, ...] = field(
        (), "peak rates; each is combined with each weight decay", above=0
    )
    weight_decays: tuple[float, ...] = field(
        (), "weight decays; each is divided by the learning rate", low=0
    )
    train_split: str = field("", "the split that the runs of the grid are trained on")
    validation_split: str = field(
        "", "the split that these runs are compared on; the final run uses the splits of data"
    )


@dataclasses.dataclass(frozen=True)
class Nonfinite(Section, path="nonfinite"):
    """What happens when a loss or gradient is not finite. A stopped run may go on skipping."""

    policy: Literal["stop", "skip"] = field("stop", "end the run, or skip the update", free=True)
    skip_limit: int = field(
        10, "number of updates that a run may skip; one more ends it", low=0, free=True
    )


@dataclasses.dataclass(frozen=True)
class Evaluation(Section, path="evaluation"):
    """What is measured during training, and how often."""

    evaluators: tuple[str, ...] = field(
        ("classification",),
        'what to measure, such as ("classification", "knn(k=20, every_epochs=5)"); '
        "cone_jax/evaluation/registry.py lists the kinds",
    )
    every_epochs: float = field(1.0, "epochs between evaluations; 0: at the end only", low=0.0)
    batch_size: int = field(
        256,
        "images per batch, over all devices; rounded up to a multiple of the devices",
        low=1,
    )
    patience: int = field(
        0,
        "evaluations without a better checkpoint.best_metric before training ends; 0: no limit",
        low=0,
    )


@dataclasses.dataclass(frozen=True)
class Checkpoint(Section, path="checkpoint"):
    """What is saved, and how often."""

    every_epochs: float = field(1.0, "epochs between checkpoints; 0: at the end only", low=0.0)
    keep: int = field(
        2, "number of latest checkpoints to keep, besides the best one", low=1, free=True
    )
    best_metric: str = field(
        "test/top1", 'the metric that decides which checkpoint is best; "": none'
    )
    store_timeout: float = field(
        600.0,
        "seconds that a bucket may be silent before the run ends",
        low=1.0,
        free=True,
    )


@dataclasses.dataclass(frozen=True)
class Method(Section, path="objective"):
    """Which objective trains. The fields of each are its own, in ``objective.<name>``."""

    name: str = field("cone", "the training method; docs/recipes.md lists them")


@dataclasses.dataclass(frozen=True)
class Settings(Stage):
    """Everything that a config says, but for the fields of the objectives."""

    seed: int = field(0, "decides everything random", low=0, high=2**31 - 1)
    accumulate: int = field(
        1, "number of parts in which a batch is processed, with the memory of one", low=1
    )
    init_from: str = field(
        "",
        "weights to start from: a file, a run, an export, timm:NAME, torchvision:NAME, hf://OWNER/NAME",
    )
    init_strict: bool = field(
        True, "every weight must have a place; False: except those of classifier and head"
    )
    data: Data = field(Data(), "the data set")
    model: Model = field(Model(), "the network")
    objective: Method = field(Method(), "the training method")
    bank: Bank = field(Bank(), "the memory bank")
    ema: Ema = field(Ema(), "the momentum network")
    mixing: Mixing = field(Mixing(), "MixUp and CutMix")
    average: Average = field(Average(), "the averaged model")
    optimizer: Optimizer = field(Optimizer(), "the optimiser")
    schedule: Schedule = field(Schedule(), "the learning rate over time")
    linear_stage: LinearStage = field(LinearStage(), "the second stage of some methods")
    transfer: Transfer = field(Transfer(), "the grid of --mode=transfer")
    nonfinite: Nonfinite = field(Nonfinite(), "losses and gradients that are not finite")
    evaluation: Evaluation = field(Evaluation(), "what is measured")
    checkpoint: Checkpoint = field(Checkpoint(), "what is saved")
    budget: str = field(
        "", "how long a run may take, such as 30min; for recipes that choose their own length"
    )
    derive: tuple[str, ...] = field(
        (),
        "fields that follow from the number of images and the budget unless they are set by hand",
    )
    log_every: int = field(20, "steps between two records of training metrics", low=1)
    profile_steps: tuple[int, ...] = field(
        (), "(first, last): trace these steps into the folder profile of the run", free=True
    )
    wandb_project: str = field(
        "", 'Weights & Biases project to log to as well; "": none', free=True
    )

    def check(self) -> None:
        super().check()
        if self.budget and not self.derive:
            raise UserError(
                f"budget ({self.budget}) is for recipes that derive their length from it, such as "
                "configs/folder.py; set epochs"
            )
        traced = self.profile_steps
        if traced and not (len(traced) == 2 and 1 <= traced[0] <= traced[1]):
            raise UserError(
                f"profile_steps ({traced}) must be the first and the last step to trace, such as "
                "(10, 12), or ()"
            )


@functools.cache
def free_fields() -> frozenset[str]:
    """Fields that change how a run is carried out or watched, but not what it computes."""
    return frozenset(entry.name for entry in Settings().entries() if entry.declaration.free)
