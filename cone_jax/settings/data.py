"""Where pictures come from, what becomes of them, and how they are read."""

import dataclasses
from typing import Literal

from cone_jax.errors import UserError
from cone_jax.settings.section import Section, field


@dataclasses.dataclass(frozen=True)
class Data(Section, path="data"):
    """The data set, its splits, its transforms, and the processes that read it."""

    source: str = field("digits", "where records come from; docs/data.md lists the kinds")
    name: str = field("", "of a TFDS set: name[/config][:version]")
    path: str = field(
        "",
        "image folder, packed or archive folder, .npz file or folder, or TFDS data_dir",
        free=True,
    )
    label_key: str = field("label", "the TFDS feature to learn")
    holdout: float = field(0.1, "fraction of each class to test on where there is no test part")
    holdout_seed: int = field(0, "decides which records are held out")
    cache_bytes: int = field(
        2**30, "memory for small decoded pictures, per process and split; 0: none", low=0
    )
    train_split: str = field("train", "what is trained on; may be an expression")
    test_split: str = field("test", "what is tested on; may be an expression")
    num_classes: int = field(0, "how many classes the source must have; 0: what it says", low=0)
    image_size: int = field(8, "of the training images that reach the network", low=1)
    train_transforms: tuple[str, ...] = field(
        (), 'in order, such as ("random_resized_crop(224)", "flip")'
    )
    key_transforms: tuple[str, ...] = field(
        (), "of the second view, the key's; (): as train_transforms"
    )
    test_transforms: tuple[str, ...] = field((), "of the images that are evaluated")
    mean: tuple[float, ...] = field((0.485, 0.456, 0.406), "R, G, B of pixels in [0, 1]")
    std: tuple[float, ...] = field((0.229, 0.224, 0.225), "R, G, B of pixels in [0, 1]")
    views: int = field(
        1, "augmented views per sample; the objective says what the second is for", low=1, high=2
    )
    last_batch: Literal["drop", "carry"] = field(
        "drop", "what becomes of the rest of an epoch: dropped, or carried into the next one"
    )
    damaged_limit: float = field(
        0.01, "the fraction of unreadable images that ends the run", low=0.0, high=1.0
    )
    threads: int = field(4, "threads that read ahead, of each process", low=1, free=True)
    workers: int = field(
        0,
        "processes that read ahead, each with its own threads; 0: threads alone",
        low=0,
        free=True,
    )
    prefetch: int = field(4, "batches ready ahead of the step", low=1, free=True)

    def check(self) -> None:
        for name in ("mean", "std"):
            if len(getattr(self, name)) != 3:
                raise UserError(
                    f"data.{name} ({getattr(self, name)}) must have three values, R G B"
                )
        if self.key_transforms and self.views == 1:
            raise UserError(
                "data.key_transforms are for the second view: set data.views (1) to 2, or leave "
                "them empty"
            )


@dataclasses.dataclass(frozen=True)
class Mixing(Section, path="mixing"):
    """MixUp and CutMix, on the devices: see `cone_jax.data.on_device.mix`."""

    mixup_alpha: float = field(0.0, "of MixUp's Beta distribution; 0: no MixUp", low=0.0)
    cutmix_alpha: float = field(0.0, "of CutMix's Beta distribution; 0: no CutMix", low=0.0)
    switch: float = field(0.5, "probability of CutMix where both are on", low=0.0, high=1.0)

    @property
    def on(self) -> bool:
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0
