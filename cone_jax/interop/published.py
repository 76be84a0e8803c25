"""Weights that others have published, by name: the table and ImageNet's classes.

`published.csv` has a row per set of weights: what it is called, which network of ours it is, where
the file is, the beginning of its SHA-256 where that is published, how pictures become its input,
and the top-1 accuracy that its publisher reports. `imagenet_classes.csv` has the 1,000 classes in
the order of their labels, which is that of their WordNet ids.
"""

import ast
import csv
import difflib
import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Any, NamedTuple

from cone_jax.errors import UserError
from cone_jax.interop.metadata import ExportMetadata

IMAGENET = "imagenet"
# Of ImageNet's classes by their first names; some lists differ in a few.
_SAME_NAMES = 0.9

# timm's networks that have the names and shapes of one of ours, and compute something else.
_LOOKALIKES = {
    r"tf_.*": "it pads as TensorFlow does and has another epsilon in BatchNorm",
    r"(resnet(blur|aa)\d+|efficientnet_blur_b\d)([._-].*)?": "it blurs where it halves the "
    "resolution",
}
# What may be said of an architecture of timm without changing what it computes.
_HARMLESS_ARGUMENTS = re.compile(r"img_size|num_classes|\w*drop\w*")
_USUAL_POOLING = ("avg", "token")  # of convolutional networks, of transformers


class PublishedWeights(NamedTuple):
    """A row of the table."""

    id: str  # timm:resnet50.a1_in1k
    network: str
    options: dict[str, Any]
    file: str  # hf://owner/name, or https://...
    sha256: str  # the digits that are published; "" where none are
    size: int
    resize: int | tuple[int, int]  # the short side, or both: 384x384
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: str
    top1: float | None  # per cent, as its publisher reports
    licence: str

    @property
    def names(self) -> tuple[str, ...]:
        """Its usual names: ours, its publisher's, and the publisher's with the training's name."""
        name = self.id.partition(":")[2].lower()
        return self.network, name.partition(".")[0], name

    @property
    def pixels(self) -> str:
        """How pictures become input, in few words."""
        squashed = isinstance(self.resize, tuple)
        cut = f"{self.size}, squashed" if squashed else f"{self.size} of {self.resize}"
        return f"{cut}, {self.interpolation}"

    @property
    def metadata(self) -> ExportMetadata:
        """The input that the weights need, and their classes."""
        return ExportMetadata(
            class_names=class_names() if self.classes == IMAGENET else (),
            image_size=self.size,
            mean=self.mean,
            std=self.std,
            transforms=evaluation_transforms(self.resize, self.size, self.interpolation),
            origin={"weights": self.id, "licence": self.licence},
        )


def evaluation_transforms(
    resize: int | tuple[int, int], size: int, interpolation: str
) -> tuple[str, ...]:
    """The short side to `resize`, or both sides, then the centre."""
    return (f"resize({resize}, interpolation={interpolation!r})", f"centre_crop({size})")


@functools.cache
def table() -> dict[str, PublishedWeights]:
    """All rows, by id."""
    return {row["id"]: _row(row) for row in _read("published.csv")}


def find(reference: str) -> PublishedWeights:
    """The weights called ``timm:NAME`` or ``torchvision:NAME``.

    Of torchvision's the last are meant where only the network is named.
    """
    rows = table()
    if reference in rows:
        return rows[reference]
    of_network = [name for name in rows if name.startswith(f"{reference}.")]
    if of_network and (reference.startswith("torchvision:") or len(of_network) == 1):
        return rows[of_network[-1]]
    if of_network:
        raise UserError(
            f"{reference} has been published {len(of_network)} times; choose one of "
            f"{', '.join(of_network)}"
        )
    near = difflib.get_close_matches(reference, rows, n=1, cutoff=0.5)
    cure = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(
        f"{reference} is not in the table of published weights; {cure}--mode=weights lists it, and "
        "hf://OWNER/NAME takes any repository"
    )


def named_like(text: str) -> str:
    """A hint if `text` is not a file but may be meant as a name; "" if no name is close.

    >>> named_like("resnet34")
    ', or weights by name such as timm:resnet34.a1_in1k or torchvision:resnet34.IMAGENET1K_V1 \
(all: --mode=weights --model=resnet34)'
    """
    wanted = _letters(text.rpartition(":")[2])
    found = {
        row.id: name for row in table().values() for name in row.names if _letters(name) == wanted
    }
    if not found:
        return ""
    firsts = {each.partition(":")[0]: each for each in reversed(found)}
    listed = " or ".join(sorted(firsts.values()))
    name = next(iter(found.values()))
    return f", or weights by name such as {listed} (all: --mode=weights --model={name})"


def _letters(name: str) -> str:
    """A name without what people join its parts with: mobilenet_v2 is mobilenetv2."""
    return re.sub(r"[\W_]", "", name.lower())


def refuse_lookalike(
    name: str, reference: str, arguments: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """`UserError` for a network of timm's that would load silently but is a different one.

    `name` is its architecture or file, `arguments` what its repository calls it with.
    """
    for pattern, reason in _LOOKALIKES.items():
        if re.fullmatch(pattern, name):
            raise UserError(
                f"{reference} is {name}, which has the names and shapes of a network here but is "
                f"a different one: {reason}; choose other weights"
            )
    strange = [
        key
        for key, value in arguments.items()
        if not _HARMLESS_ARGUMENTS.fullmatch(key)
        and not (key == "global_pool" and value in _USUAL_POOLING)
    ]
    if strange:
        raise UserError(
            f"{reference} changes timm's {name} by {strange[0]}={arguments[strange[0]]!r}, which "
            "is not known here; choose weights without that"
        )


@functools.cache
def wordnet_ids() -> tuple[str, ...]:
    """The WordNet ids of ImageNet's classes, by label."""
    return tuple(row["wordnet_id"] for row in _read("imagenet_classes.csv"))


@functools.cache
def class_names() -> tuple[str, ...]:
    """The names of ImageNet's classes, by label; two of the same name get their ids.

    >>> class_names()[:3], len(set(class_names()))
    (('tench', 'goldfish', 'great white shark'), 1000)
    """
    names = [row["name"] for row in _read("imagenet_classes.csv")]
    counts = Counter(names)
    pairs = zip(names, wordnet_ids(), strict=True)
    return tuple(name if counts[name] == 1 else f"{name} ({number})" for name, number in pairs)


def is_imagenet(names: Sequence[str]) -> bool:
    """Whether these are ImageNet's classes by label, as others write them: with all synonyms, too.

    >>> is_imagenet(wordnet_ids()), is_imagenet([f"{name}, X" for name in class_names()])
    (True, True)
    >>> is_imagenet(class_names()[::-1])
    False
    """
    if tuple(names) == wordnet_ids() or len(names) != len(class_names()):
        return len(names) == len(class_names())
    pairs = zip(names, class_names(), strict=True)
    firsts = sum(_first(theirs) == _first(ours) for theirs, ours in pairs)
    return firsts > _SAME_NAMES * len(names)


def _first(name: str) -> str:
    """The first of several names of a class, without an addition in brackets."""
    return re.split(r", | \(", name.replace("_", " ").lower())[0]


def _row(row: dict[str, str]) -> PublishedWeights:
    options = (part.partition("=") for part in row["options"].split())
    side = row["resize"].partition("x")[0]
    parsed: dict[str, Any] = {
        "options": {name: ast.literal_eval(value) for name, _, value in options},
        "size": int(row["size"]),
        "resize": int(side) if side == row["resize"] else (int(side),) * 2,
        "mean": tuple(map(float, row["mean"].split())),
        "std": tuple(map(float, row["std"].split())),
        "top1": float(row["top1"]) if row["top1"] else None,
    }
    return PublishedWeights(**{**row, **parsed})


def _read(file: str) -> list[dict[str, str]]:
    text = resources.files("cone_jax.interop").joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
