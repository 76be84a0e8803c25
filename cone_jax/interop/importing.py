"""Weights from elsewhere into an encoder, with an account of every name.

Nothing is guessed silently: each of our variables is mapped, re-initialised or missing, each
name in the file is mapped, ignored or unexpected, and by default anything missing or unexpected
is an error. Only classifier and projection head may be left over on request: a backbone that does
not fit is always an error, which names the architecture that the file looks like.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax
import jax.numpy as jnp
import numpy as np

from cone_jax import models, storage
from cone_jax.errors import UserError
from cone_jax.interop import files, first_resnets, hub, layouts, published, state_dict
from cone_jax.interop.layout_rules import Layout
from cone_jax.interop.transformers_names import LAYOUT as TRANSFORMERS
from cone_jax.interop.transformers_names import translate as from_transformers
from cone_jax.models import Encoder, ModelSpec, convnext, deit, resnet

Variables = Mapping[str, Any]

# Not of the network to load: PyTorch's counters, a released checkpoint's key network and bank.
IGNORED = re.compile(r"(.*\.)?num_batches_tracked|n_averaged|(module\.)?(encoder_k\..*|queue.*)")
# What follows a backbone, as programs call it, in the wrappers that they put around a network.
_WRAPPED = r"((module|model|timm_model|net|encoder|encoder_q|backbone|student)\.)*"
HEADS = re.compile(
    _WRAPPED + r"(fc|heads?|head_dist|classifier|linear|last_linear|proj\w*|pred\w*|mlp|pooler)\..*"
    r"|\w+/(classifier|projection|predictor)/.*"  # our own
)
FIRST_CONVOLUTION = re.compile(_WRAPPED + r"conv1\.weight")  # of a ResNet
# A transformer's positions, in the layouts that there are.
POSITIONS = re.compile(_WRAPPED + r"(pos_embed|encoder\.pos_embedding)|\w+/backbone/position")


@dataclasses.dataclass(frozen=True)
class ImportReport:
    """What became of every name. Ours are paths such as ``params/classifier/bias``.

    >>> report = ImportReport("resnet50.pth", "torchvision", missing=("params/classifier/bias",))
    >>> report.complete, report.summary()
    (False, 'resnet50.pth (torchvision names): 1 missing')
    """

    source: str  # the file
    layout: str  # the naming it follows
    mapped: tuple[tuple[str, str], ...] = ()  # pairs of names: ours, theirs
    resized: tuple[str, ...] = ()  # ours; positions that were interpolated to another grid
    reinitialised: tuple[str, ...] = ()  # ours; a classifier with another number of classes
    missing: tuple[str, ...] = ()  # ours; absent from the file
    mismatched: tuple[str, ...] = ()  # ours; the shape in the file does not fit
    unexpected: tuple[str, ...] = ()  # theirs; no place for them here
    ignored: tuple[str, ...] = ()  # theirs; known not to be needed

    @property
    def complete(self) -> bool:
        """Whether everything has its place."""
        return not (self.missing or self.mismatched or self.unexpected)

    @property
    def misfits(self) -> tuple[str, ...]:
        """Names without a place that belong to neither classifier nor head."""
        ours = (*self.missing, *self.mismatched)
        theirs = [name for name in self.unexpected if not HEADS.fullmatch(name)]
        return (*(name for name in ours if "/backbone/" in name), *theirs)

    def summary(self) -> str:
        """The account in one line."""
        statuses = [field.name for field in dataclasses.fields(self)][2:]
        counts = [f"{len(getattr(self, s))} {s}" for s in statuses if getattr(self, s)]
        return f"{self.source} ({self.layout} names): {', '.join(counts)}"

    def table(self) -> str:
        """A line for every name: what became of it, ours, theirs."""
        rows = [("resized" if o in self.resized else "mapped", o, t) for o, t in self.mapped]
        for status in ("reinitialised", "missing", "mismatched"):
            rows += [(status, name, "") for name in getattr(self, status)]
        for status in ("unexpected", "ignored"):
            rows += [(status, "", name) for name in getattr(self, status)]
        widest = max((len(ours) for _, ours, _ in rows), default=0)
        lines = [
            f"{status:13}  {ours:{widest}}  {theirs}".rstrip() for status, ours, theirs in rows
        ]
        return "\n".join((self.summary(), *lines))


class IncompleteImport(UserError):  # noqa: N818 - as its base, it names the user's situation
    """A strict import that left something over; `report` says what.

    Args:
        message: one line for the user.
        report: what became of every name.

    >>> report = ImportReport("a.pth", "torchvision", missing=("params/classifier/bias",))
    >>> IncompleteImport("a.pth lacks a bias", report).report.missing
    ('params/classifier/bias',)
    """

    def __init__(self, message: str, report: ImportReport) -> None:
        super().__init__(message)
        self.report = report  # what became of every name


def load_initial(
    path: Path | str, encoder: Encoder, variables: Variables, *, strict: bool = True
) -> tuple[dict[str, Any], ImportReport]:
    """`variables` with the weights at `path` in place of their values.

    A classifier for another number of classes keeps the value it has in `variables`.

        variables, report = interop.load_initial("resnet50.pth", encoder, variables, strict=False)
        print(report.table())

    Args:
        path: a ``.safetensors`` or ``.pth`` file with torchvision's, timm's or the released CoNe
            names, the name of published weights (`cone_jax.interop.hub`), the directory of a run,
            one of its checkpoints, or an export.
        encoder: the network.
        variables: its ``params`` and ``batch_stats``.
        strict: False forgives a classifier and projection head that are missing or do not fit,
            never a backbone.

    Returns:
        The variables, as float32 NumPy arrays, and an account of every name.
    """
    if hub.is_reference(str(path)):
        weights = files.read_weights(hub.fetch(str(path)).path)
    else:
        weights = files.read_weights(storage.path(path))
    if encoder.inputs:  # a detector
        from cone_jax.interop import detector_weights

        values, layout, lists = detector_weights.from_tensors(
            weights, encoder, variables, source=str(path)
        )
        report = ImportReport(str(path), layout, **lists)
        if strict and not report.complete:
            raise IncompleteImport(_complaint(report), report)
        return values, report
    return from_tensors(
        weights.tensors, encoder, variables, source=str(path), layout=weights.layout, strict=strict
    )


def from_tensors(
    tensors: Mapping[str, np.ndarray],
    encoder: Encoder,
    variables: Variables,
    *,
    source: str,
    layout: str = "",
    strict: bool = True,
) -> tuple[dict[str, Any], ImportReport]:
    """As `load_initial`, from arrays by name; an empty `layout` is detected."""
    if not layout:
        published.refuse_lookalike(source.rpartition("/")[2], source)
        if found := first_resnets.translate(tensors):
            first_resnets.check(found, encoder.spec, source)
            tensors = found.tensors
    own = None if layout else from_transformers(tensors)
    values, report = place(own or tensors, encoder, variables, source=source, layout=layout)
    if own:
        report = dataclasses.replace(report, layout=TRANSFORMERS)
    if not (report.mapped or report.mismatched or report.reinitialised):
        raise UserError(
            f"init_from ({source}) has no tensor of {encoder.spec.name}; its first names are "
            f"{', '.join(list(tensors)[:3])}{_looks(tensors)}"
        )
    if report.misfits:
        raise IncompleteImport(_misfit(report, encoder, tensors), report)
    if strict and not report.complete:
        raise IncompleteImport(_complaint(report), report)
    return values, report


def place(
    tensors: Mapping[str, np.ndarray],
    encoder: Encoder,
    variables: Variables,
    *,
    source: str = "",
    layout: str = "",
) -> tuple[dict[str, Any], ImportReport]:
    """As `from_tensors`, but without errors; the report says what has no place."""
    tensors = state_dict.join(encoder, tensors)
    names, layout = _names(tensors, encoder, variables, layout)
    values = flax.traverse_util.flatten_dict(dict(variables))
    found: dict[str, list[Any]] = {field.name: [] for field in dataclasses.fields(ImportReport)}
    for path, name in names.items():
        ours = "/".join(path)
        if name not in tensors:
            found["missing"].append(ours)
            continue
        value = state_dict.restore(layout, path, np.asarray(tensors[name], np.float32))
        shape = tuple(values[path].shape)
        is_resized = path[-1] == "position" and value.shape != shape and value.ndim == 3
        if is_resized:
            tokens = 2 if getattr(encoder.backbone, "distilled", False) else 1
            value = _fit_positions(value, shape, tokens)
        if value.shape == shape:
            values[path] = value
            found["mapped"].append((ours, name))
            found["resized"] += [ours] if is_resized else []
        elif path[1] == "classifier" and value.shape[:-1] == shape[:-1]:
            found["reinitialised"].append(ours)
        else:
            found["mismatched"].append(f"{ours} {value.shape}, not {shape}")
    for name in tensors.keys() - set(names.values()):
        found["ignored" if IGNORED.fullmatch(name) else "unexpected"].append(name)
    lists = {field: tuple(sorted(rows)) for field, rows in found.items() if rows}
    report = ImportReport(source, layout, **lists)
    return flax.traverse_util.unflatten_dict(values), report


def _names(
    tensors: Mapping[str, np.ndarray], encoder: Encoder, variables: Variables, layout: str
) -> tuple[dict[layouts.Path, str], str]:
    """The names to look for: those of the layout and prefix under which most are found."""
    if layout:
        return layouts.names(encoder, variables, layout), layout
    candidates = []
    for candidate in layouts.available(encoder):
        names = layouts.names(encoder, variables, candidate)
        prefixes = {
            name.removesuffix(known)
            for known in names.values()
            for name in tensors
            if name.endswith(f".{known}")
        }
        for prefix in ("", *sorted(prefixes)):
            if not IGNORED.fullmatch(f"{prefix}x"):
                prefixed = {path: prefix + name for path, name in names.items()}
                count = sum(name in tensors for name in prefixed.values())
                candidates.append((count, prefixed, candidate))
    _, names, layout = max(candidates, key=lambda candidate: candidate[0])
    return names, layout


def _fit_positions(value: np.ndarray, shape: tuple[int, ...], tokens: int) -> np.ndarray:
    """Interpolates positions to another square grid; other shapes are left as they are."""
    side, old = (round((count - tokens) ** 0.5) for count in (shape[1], value.shape[1]))
    if old * old != value.shape[1] - tokens:
        return value
    return np.asarray(deit.interpolate_positions(jnp.asarray(value), (side, side), tokens))


def recognise(tensors: Mapping[str, np.ndarray]) -> ModelSpec | None:
    """The network whose backbone these are, without a head; None if it is not one of ours.

    The number of classes is the number of rows of the layer that has the classifier's name.
    """
    if not any(np.ndim(value) == 4 for value in tensors.values()):  # no convolution of an image
        return None
    if found := first_resnets.translate(tensors):
        tensors = found.tensors
    tensors = from_transformers(tensors) or tensors
    for name in models.names():
        for stem in ("imagenet", "cifar"):
            for options in _shapes(name, stem, tensors):
                spec = _recognised(name, stem, options, tensors)
                if spec is not None:
                    return spec
    return None


def _recognised(
    name: str, stem: str, options: dict[str, Any], tensors: Mapping[str, np.ndarray]
) -> ModelSpec | None:
    encoder = models.create(name, 1, stem=stem, projection=None, **options)
    if layouts.available(encoder) == [layouts.OWN]:
        return None
    size = 224 if stem == "imagenet" else 32  # the grid of a transformer's positions
    shapes = models.abstract_variables(encoder, size)
    _, report = place(tensors, encoder, shapes)
    backbone = [ours for ours, _ in report.mapped if "/backbone/" in ours]
    if report.misfits or not backbone:
        return None
    names = layouts.names(encoder, shapes, report.layout)
    classifier = names[("params", "classifier", "kernel")].partition(layouts.JOINT)[0]
    found = [value for key, value in tensors.items() if key.endswith(classifier)]
    classes = found[0].shape[0] if found and found[0].ndim == 2 else 1
    return dataclasses.replace(encoder.spec, num_classes=classes)


def _shapes(name: str, stem: str, tensors: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Options that decide shapes, worth a try with these tensors."""
    if not _has_blocks(name, tensors):
        return []
    if name in resnet.VARIANTS:
        first = next((v for key, v in tensors.items() if FIRST_CONVOLUTION.fullmatch(key)), None)
        if first is None or first.ndim != 4:
            return []
        width = first.shape[0]
        return [{} if width == resnet.VARIANTS[name].width else {"width": width}]
    if name in deit.VARIANTS:
        distilled = any("dist_token" in key or "distillation_token" in key for key in tensors)
        size = _size_of_positions(name, stem, 2 if distilled else 1, tensors)
        options = {"distilled": True} if distilled else {}
        return [options | ({} if size in (0, deit.IMAGE_SIZE[stem]) else {"image_size": size})]
    if name == "shufflenet_v2":
        of_authors = any("branch_main" in key for key in tensors)
        return [{"channel_order": "authors"} if of_authors else {}]
    return [{}, {"last_width": 384}] if name == "regnetx_400mf" else [{}]


def _size_of_positions(name: str, stem: str, tokens: int, tensors: Mapping[str, np.ndarray]) -> int:
    """The picture size that a transformer's positions were learned for; 0 if not known."""
    found = [value for key, value in tensors.items() if POSITIONS.fullmatch(key)]
    if len(found) != 1 or found[0].ndim != 3:
        return 0
    patches = found[0].shape[1] - tokens
    side = math.isqrt(max(patches, 0))
    return side * deit.patch_of(deit.VARIANTS[name], stem) if side * side == patches else 0


def _has_blocks(name: str, tensors: Mapping[str, np.ndarray]) -> bool:
    """Whether a file has the first layer of the network `name`, and as many blocks.

    It takes names only; tracing the shapes of all networks would take a minute.
    """
    wanted = {"patch_embedding" if name in deit.VARIANTS else "stem_conv": True}
    if name in resnet.VARIANTS:
        variant = resnet.VARIANTS[name]
        wanted = {"layer1_0/conv3": variant.block is resnet.Bottleneck}
        wanted |= _ends(variant.depths, "layer", "conv1")
    if name in convnext.DEPTHS:
        wanted |= _ends(convnext.DEPTHS[name], "stage", "depthwise")
    return any(
        all(_has_layer(layout, module, tensors) == there for module, there in wanted.items())
        for layout in layouts.of_network(name)
    )


def _ends(depths: Sequence[int], stage: str, layer: str) -> dict[str, bool]:
    """The last block of each stage, which must exist, and the one after, which must not."""
    return {
        f"{stage}{number}_{depth - 1 + beyond}/{layer}": not beyond
        for number, depth in enumerate(depths, start=1)
        for beyond in (0, 1)
    }


def _has_layer(layout: Layout, module: str, tensors: Mapping[str, np.ndarray]) -> bool:
    """Under the layout's name or our own."""
    end = f".{layouts.module_name(layout, module)}.weight"
    own = f"/{module}/kernel"
    return any(f".{key}".endswith(end) or key.endswith(own) for key in tensors)


def _looks(tensors: Mapping[str, np.ndarray]) -> str:
    """The end of a message: what the file is instead."""
    found = recognise(tensors)
    if found is None:
        return ""
    stem = "" if found.stem == "imagenet" else f" with model.stem {found.stem!r}"
    options = "".join(f" with model.options.{name} {value!r}" for name, value in found.options)
    return f"; it looks like {found.name}{stem}{options}"


def _misfit(report: ImportReport, encoder: Encoder, tensors: Mapping[str, np.ndarray]) -> str:
    """Why the backbone does not fit, in one line."""
    lost = [name for name in (*report.missing, *report.mismatched) if "/backbone/" in name]
    if lost and all("/downsample" in name for name in lost):
        return (
            f"init_from ({report.source}) has shortcuts without parameters (option A of the "
            f"ResNet paper), where {encoder.spec.name} has convolutions ({len(lost)} missing, such "
            f"as {lost[0]}); such networks are not supported"
        )
    cure = (
        "choose the model.name, model.stem and model.options it was made with (init_strict "
        "forgives only classifier and head)"
    )
    return (
        f"init_from ({report.source}) does not fit the backbone of {encoder.spec.name}: "
        f"{_counts(report)}{_looks(tensors)}; {cure}"
    )


def _counts(report: ImportReport) -> str:
    parts = []
    for status in ("missing", "mismatched", "unexpected"):
        names = getattr(report, status)
        if names:
            more = ", ..." if len(names) > 3 else ""
            parts.append(f"{len(names)} {status} ({', '.join(names[:3])}{more})")
    return "; ".join(parts)


def _complaint(report: ImportReport) -> str:
    return (
        f"init_from ({report.source}) does not fit the model: {_counts(report)}; the backbone "
        "does: set init_strict to False to start classifier and head anew"
    )
