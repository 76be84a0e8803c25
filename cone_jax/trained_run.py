"""What a run leaves behind, ready for use: the network, its variables, what it says of itself.

Read from the directory of the run alone. Where the names of its classes are gone from there, they
come from the training data, and where these have gone too, classes are numbered.
"""

from pathlib import Path
from typing import Any, NamedTuple

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import models, workdir
from cone_jax.data import datasets, transforms
from cone_jax.errors import UserError
from cone_jax.interop import files
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.settings import Model
from cone_jax.workdir.checkpoints import CHECKPOINTS_FOLDER, resolve_step


class TrainedRun(NamedTuple):
    """The network that a run evaluates: the averaged one where the run kept one."""

    encoder: models.Encoder
    variables: dict[str, Any]  # NumPy arrays
    metadata: ExportMetadata


def open_run(directory: Path | str, step: int | str = "latest") -> TrainedRun:
    """The network of the checkpoint that `step` names: a number, ``latest`` or ``best``."""
    directory = Path(directory)
    config = workdir.load_config(directory)
    number = resolve_step(directory, step, best_metric=config.checkpoint.best_metric)
    variables = files.read_checkpoint(directory / CHECKPOINTS_FOLDER / str(number))
    deployed = config_lib.deployed(config)
    num_classes = variables["params"]["classifier"]["kernel"].shape[-1]
    encoder = models.from_settings(Model.read(deployed.model), num_classes)
    description = describe(
        deployed, _class_names(directory, config, num_classes), run=directory.name, step=number
    )
    expected = models.abstract_variables(encoder, description.image_size)
    if flatten_dict(expected).keys() != flatten_dict(variables).keys():
        raise UserError(
            f"--step ({number}) of {directory} holds another network than the one its config ends "
            "with: the first stage of a method that trains its classifier later; choose a later one"
        )
    return TrainedRun(encoder, variables, description)


def describe(config: ConfigDict, class_names: tuple[str, ...], **origin: Any) -> ExportMetadata:
    """What a config says about the use of its network; `origin` is kept as it is."""
    data = config.data
    size = transforms.parse(data.test_transforms).output_size()
    return ExportMetadata(
        class_names=class_names,
        image_size=size[0] if size else data.image_size,
        mean=tuple(data.mean),
        std=tuple(data.std),
        transforms=tuple(data.test_transforms),
        origin=origin,
    )


def _class_names(directory: Path, config: ConfigDict, num_classes: int) -> tuple[str, ...]:
    kept = workdir.class_names(directory)
    if kept is not None:
        if len(kept) != num_classes:
            raise UserError(
                f"{directory / workdir.CLASSES_FILE} has {len(kept)} names, but the network "
                f"{num_classes} classes; delete it, or write it again"
            )
        return kept
    try:
        return datasets.open_split(config.data, config.data.train_split).class_names
    except UserError:
        return tuple(map(str, range(num_classes)))
