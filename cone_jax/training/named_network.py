"""Published weights as a network to predict with, evaluate and export, without a run.

    network = named_network.open_network("timm:mobilenetv2_100.ra_in1k", print)

The architecture is recognised by the tensors. The input that the weights need comes with them; if
it does not, ImageNet's classes and statistics at 224 pixels are assumed, with a message. A folder
is evaluated in the classes of the network: its class folders are matched by name or, for ImageNet,
by WordNet id.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from cone_jax import models, storage, workdir
from cone_jax.config.run_config import load_recipe, use_objective
from cone_jax.console import Report
from cone_jax.data import datasets, transforms
from cone_jax.data.datasets import Dataset
from cone_jax.data.sources import Source, image_folder
from cone_jax.errors import UserError
from cone_jax.evaluation import label_maps
from cone_jax.evaluation.label_maps import RelabelledSource
from cone_jax.evaluation.registry import Variables
from cone_jax.interop import (
    files,
    first_resnets,
    hub,
    importing,
    layouts,
    metadata,
    published,
)
from cone_jax.interop.first_resnets import FirstResNet
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.models import ModelSpec
from cone_jax.settings import Data
from cone_jax.training import pretrained
from cone_jax.training.run import Run
from cone_jax.training.run_directory import DeployedNetwork

# Fields of a config that say how pictures become input, as a description of weights has them.
_PICTURES = {
    "data.mean": "mean",
    "data.std": "std",
    "data.test_transforms": "transforms",
    "data.test_pixels": "pixels",
}
# What is assumed of weights that come with no word about their input.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_STEP = 0  # nothing has been trained


def open_network(
    reference: str,
    report: Report,
    options: Mapping[str, Any] = MappingProxyType({}),
    pictures: Mapping[str, Any] = MappingProxyType({}),
) -> DeployedNetwork:
    """The network of published weights, or of a file, with its classifier.

    `options` of the architecture are those that only the user knows, `pictures` the fields of its
    description that the user wants otherwise than the weights say.
    """
    if hub.is_reference(reference):
        fetched = hub.fetch(reference)
    else:
        fetched = _described(storage.path(reference, "--model"))
    weights = files.read_weights(fetched.path)
    if weights.layout == layouts.OWN and fetched.spec is None:
        raise UserError(f"--model ({reference}) is a run; give it as --workdir")
    spec = fetched.spec or importing.recognise(weights.tensors)
    if spec is None:
        raise UserError(
            f"--model ({reference}) holds none of the networks here ({', '.join(models.names())})"
        )
    first = None if weights.layout else first_resnets.translate(weights.tensors)
    known = first_resnets.options(first) if first else {}
    spec = _with_options(spec, {**known, **fetched.options, **options})
    spec = dataclasses.replace(spec, dtype="float32")
    encoder = models.build(spec)
    description = fetched.metadata or _assumed(spec, reference, first, report)
    if pictures:
        description = _prepared(description, pictures)
    if len(description.class_names) != spec.num_classes:
        names = tuple(map(str, range(spec.num_classes)))
        description = dataclasses.replace(description, class_names=names)
    expected = models.abstract_variables(encoder, description.image_size)
    try:
        variables, account = importing.from_tensors(
            weights.tensors, encoder, expected, source=reference, layout=weights.layout
        )
    except importing.IncompleteImport as error:
        if error.report.misfits:
            raise
        raise UserError(
            f"--model ({reference}) has the backbone of {spec.name} without a plain classifier "
            "on it; give the export of a run, or train one: --config.init_from with "
            "--config.init_strict=False"
        ) from error
    steps = " ".join(description.transforms)
    said = "; the stride is in the 1x1 convolutions" if _has_stride_in_1x1(spec) else ""
    report(f"{account.summary()}; {spec.name}, {steps}, mean {description.mean}{said}")
    origin = {"step": _STEP, "weights": reference, **description.origin}
    return DeployedNetwork(encoder, variables, dataclasses.replace(description, origin=origin))


def options_of(config: ConfigDict) -> dict[str, Any]:
    """The architecture's options that the user has set, as `open_network` takes them."""
    given = config.model.options
    return {name: given[name] for name in pretrained.WEIGHT_OPTIONS if given[name] is not None}


def pictures_of(config: ConfigDict, recipe: str) -> dict[str, Any]:
    """The input settings that the user, not `recipe`, has set, as `open_network` takes them."""
    given, stated = (workdir.flatten(c) for c in (config, load_recipe(*recipe.split(":", 1))))
    changed = [field for field in _PICTURES if given[field] != stated[field]]
    if changed:
        Data.read(config.data)  # which checks them
    return {_PICTURES[field]: given[field] for field in changed}


def _prepared(description: ExportMetadata, pictures: Mapping[str, Any]) -> ExportMetadata:
    changed = dataclasses.replace(description, **pictures)
    size = transforms.parse(changed.transforms, "data.test_transforms").output_size()
    return dataclasses.replace(changed, image_size=size[0]) if size else changed


def _has_stride_in_1x1(spec: ModelSpec) -> bool:
    return bool(dict(spec.options).get(first_resnets.OPTION))


def _described(path: Path) -> hub.Fetched:
    """A file, or an export, which says all; a file of an export does so in its header."""
    if (path / metadata.FILE).exists():
        _, spec, description = metadata.read(path)
        return hub.Fetched(path, description, spec=spec)
    if found := files.read_description(path):
        return hub.Fetched(path, found[1], spec=found[0])
    return hub.Fetched(path)


def _with_options(spec: ModelSpec, options: Mapping[str, Any]) -> ModelSpec:
    merged = {**dict(spec.options), **options}
    return dataclasses.replace(spec, options=tuple(sorted(merged.items())))


def _assumed(
    spec: ModelSpec, reference: str, first: FirstResNet | None, report: Report
) -> ExportMetadata:
    names = published.class_names()
    if spec.num_classes != len(names):
        names = tuple(map(str, range(spec.num_classes)))
    mean, std = (first.mean, first.std) if first else (IMAGENET_MEAN, IMAGENET_STD)
    pixels = "ImageNet's mean and std"
    if std != IMAGENET_STD:
        pixels = "pixels from 0 to 255, less ImageNet's mean"
    size = dict(spec.options).get("image_size", 224)  # what a transformer's positions say
    resize = size * 256 // 224
    report(
        f"{reference} does not say what it needs at its input; assumed: ImageNet's classes, "
        f"{pixels}, {size} of {resize} pixels, bilinear"
    )
    return ExportMetadata(
        class_names=names,
        image_size=size,
        mean=mean,
        std=std,
        transforms=published.evaluation_transforms(resize, size, "bilinear"),
    )


@dataclasses.dataclass(frozen=True)
class NamedRun:
    """What evaluation needs from a run's directory, for a network that has no run."""

    path: Path  # where results go
    config: ConfigDict
    network: DeployedNetwork

    @classmethod
    def open(
        cls, reference: str, config: ConfigDict, recipe: str, path: Path, report: Report
    ) -> "NamedRun":
        """The network on the data of `config`, with its own input where `recipe` is unchanged."""
        pictures = pictures_of(config, recipe)
        network = open_network(reference, report, options_of(config), pictures)
        return cls(path, _fitted(config, network), network)

    def title(self, step: int) -> str:
        """The network's name in results."""
        return str(self.network.metadata.origin["weights"])

    @functools.cached_property
    def run(self) -> Run:
        return Run.open(self.config, _in_classes(self.config, self.network.metadata.class_names))

    def resolve(self, step: int | str = "latest") -> int:
        """There is one network only."""
        if str(step) not in ("latest", str(_STEP)):
            raise UserError(f"--step ({step}) is for runs; --model has one network")
        return _STEP

    def variables(self, stage: Run, step: int, network: str = "evaluated") -> Variables:
        """The only network that there is."""
        return self.network.variables


def _fitted(config: ConfigDict, network: DeployedNetwork) -> ConfigDict:
    """`config` for evaluating `network`: its architecture and its input."""
    fitted, spec, described = ConfigDict(config.to_dict()), network.encoder.spec, network.metadata
    use_objective(fitted, "cross_entropy")
    fitted.model.name, fitted.model.stem = spec.name, spec.stem
    fitted.model.projection = False
    for name, value in spec.options:
        fitted.model.options[name] = value
    for field, name in _PICTURES.items():
        fitted.update_from_flattened_dict({field: getattr(described, name)})
    return fitted.lock()


def _in_classes(config: ConfigDict, class_names: tuple[str, ...]) -> Dataset:
    """The data of `config` in the network's classes; a folder without parts is tested whole."""
    data = config.data
    here = data.source == "image_folder" and not storage.is_remote(data.path)
    if here and not image_folder.has_parts(data.path):
        whole = image_folder.open_whole(data.path)
        return Dataset(*(_relabelled(whole, class_names) for _ in range(2)))
    train, test = (datasets.open_split(data, part) for part in (data.train_split, data.test_split))
    return Dataset(_relabelled(train, class_names), _relabelled(test, class_names))


def _relabelled(source: Source, class_names: tuple[str, ...]) -> RelabelledSource:
    is_imagenet = class_names == published.class_names()
    ids = published.wordnet_ids() if is_imagenet else ()
    return label_maps.by_name(source, class_names, ids, "data.path")
