"""The augmentations that the paper and its baselines name, as lists of specs for `parse`.

Each returns a tuple of strings, so a config can print, store and edit it. Values that no source
states are arguments, and the docstring calls them a design choice. Normalisation is not here: it
happens on the device, with the statistics that the config names.
"""

from cone_jax.errors import UserError

Specs = tuple[str, ...]
Interval = tuple[float, float]

_FULL_RANGE: Interval = (0.08, 1.0)
_NARROW_RANGE: Interval = (0.2, 1.0)


def standard(size: int = 224, scale: Interval = _FULL_RANGE) -> Specs:
    """Random resized crop and flip, the recipe of the ImageNet results.

    >>> standard(176)
    ('random_resized_crop(176, scale=(0.08, 1.0))', 'flip')
    """
    return (_crop(size, scale), "flip")


def simclr(
    size: int = 224, strength: float = 1.0, blur: bool = True, scale: Interval = _FULL_RANGE
) -> Specs:
    """SimCLR: standard, then jitter of the given strength, grey and blur.

    CIFAR (SupCon's and CoNe's main CIFAR recipe) is `simclr(32, 0.5, blur=False, scale=(0.2, 1))`.
    The strength of the ImageNet ablation is a design choice: 1.

    >>> simclr(32, 0.5, blur=False, scale=(0.2, 1))[2:]
    ('colour_jitter(0.4, 0.4, 0.4, 0.1, p=0.8)', 'grey(p=0.2)')
    """
    specs = (*standard(size, scale), _jitter(strength), "grey(p=0.2)")
    return (*specs, "blur(p=0.5)") if blur else specs


def auto_augment(size: int = 224, policy: str = "imagenet") -> Specs:
    """Standard, then AutoAugment: `imagenet` of its paper, or `v0`, which SupCon's code used.

    Which of the two the paper's AutoAugment rows used is not stated; `imagenet` is a design choice.
    """
    return (*standard(size), f"auto_augment({policy!r})")


def rand_augment(size: int = 224, n: int = 2, m: float = 9, form: str = "torchvision") -> Specs:
    """Standard, then RandAugment.

    `n`, `m` and the form of the paper's RandAugment row are a design choice: torchvision's.
    """
    return (*standard(size), f"rand_augment({n}, {m:g}, form={form!r})")


def stacked(
    size: int = 224, form: str = "infomin", n: int = 2, m: float = 10, scale: Interval = _FULL_RANGE
) -> Specs:
    """StackedAug: jitter, blur, grey and RandAugment together, as one of three public codes has it.

    The paper uses the name and defines nothing, so the form is a design choice, as is the crop
    range of `infomin`. PaCo's ResNet-200 is `form='paco', n=3, m=12` (12 is clipped to 10).
    """
    grey, blur, levels = "grey(p=0.2)", "blur(p=0.5)", f"rand_augment({n}, {m:g}, form='timm')"
    if form == "supcon":
        steps = (_jitter(1.0), f"rand_augment({n}, {m:g}, form='tf')", grey, blur)
    elif form == "infomin":
        steps = (_jitter(1.0), blur, levels, grey)
    elif form == "paco":
        steps = ("colour_jitter(0.4, 0.4, 0.4)", grey, blur, levels)
    else:
        raise UserError(f"stacked form must be 'supcon', 'infomin' or 'paco', not {form!r}")
    return (*standard(size, scale), *steps)


def deit(size: int = 224, m: float = 9, erasing: float = 0.25) -> Specs:
    """The host part of DeiT-Tiny's recipe; MixUp and CutMix follow on the device.

    Bicubic resizing is a design choice here (it is DeiT's). With `m=7, erasing=0`, that of the
    "ResNet strikes back" A1 recipe.
    """
    crop = f"random_resized_crop({size}, interpolation='bicubic')"
    specs = (crop, "flip", f"rand_augment(2, {m:g}, form='timm', std=0.5, increasing=True)")
    return (*specs, f"random_erasing({erasing:g})") if erasing else specs


def cifar_standard(size: int = 32) -> Specs:
    """A random crop of the image padded by 4, and flip. Evaluation needs no transform: `()`."""
    return (f"random_crop({size}, padding=4)", "flip")


def cifar_strong_query() -> Specs:
    """PaCo's CIFAR query view: the standard one, AutoAugment, and a 16-pixel black Cutout.

    PaCo normalises with the CIFAR-10 statistics, on CIFAR-100 too. That CoNe used this view for
    both networks is a design choice; the alternative gives the key `cifar_strong_key()`.
    """
    return (*cifar_standard(), "auto_augment('cifar10')", "cutout(16)")


def cifar_strong_key() -> Specs:
    """PaCo's CIFAR key view: SimCLR's at strength 0.5, with blur."""
    return simclr(32, strength=0.5, blur=True, scale=_NARROW_RANGE)


def evaluation(resize: int = 256, crop: int = 224, interpolation: str = "bilinear") -> Specs:
    """Short side to `resize`, then the central `crop`; 232 and 224 after training at 176."""
    return (f"resize({resize}, interpolation={interpolation!r})", f"centre_crop({crop})")


def _crop(size: int, scale: Interval) -> str:
    return f"random_resized_crop({size}, scale={scale!r})"


def _jitter(strength: float) -> str:
    blend, hue = 0.8 * strength, 0.2 * strength
    return f"colour_jitter({blend:g}, {blend:g}, {blend:g}, {hue:g}, p=0.8)"
