"""Networks that start from given weights: what `init_from` names, and the state made from it.

`adopt` finds out which network it is, `check` and `check_weights` whether the weights fit it. A
grid takes long, and a probe of random weights looks like a result, so a misfit must be found before
either begins. `load` makes the state.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cone_jax import interop, models, objectives, storage, workdir
from cone_jax.config.run_config import load_recipe
from cone_jax.console import Report
from cone_jax.data import datasets
from cone_jax.errors import UserError
from cone_jax.interop import (
    ImportReport,
    IncompleteImport,
    files,
    first_resnets,
    hub,
    metadata,
)
from cone_jax.models import ModelSpec
from cone_jax.settings import Model
from cone_jax.training.run import Run
from cone_jax.training.run_directory import RunDirectory
from cone_jax.training.train_state import TrainState

# Options of an architecture that its weights are made for.
WEIGHT_OPTIONS = ("width", "last_width", "distilled", "channel_order", "stride_in_1x1")
_INPUT_FIELDS = ("data.mean", "data.std", *(f"model.options.{name}" for name in WEIGHT_OPTIONS))
_SHOWN = 20  # names that are not simply mapped


def adopt(config: ConfigDict, recipe: str, step: str) -> ConfigDict:
    """`config` with the network that `init_from` says it holds, and one checkpoint of it.

    Of a run or an export these are the architecture, its stem and width, and the normalisation
    of pixels, except what the user has changed in `recipe`. A run is replaced by its checkpoint
    `step`, so that it means the same network as long as a grid takes. Of bare weights nothing is
    known.
    """
    adopted = config.copy_and_resolve_references()
    if hub.is_reference(config.init_from):
        _apply(_of_published(hub.fetch(config.init_from)), config, recipe, adopted)
        return adopted
    path = storage.path(config.init_from, "init_from")
    if (path / workdir.CONFIG_FILE).exists():
        run = RunDirectory.open(path)
        adopted.init_from = str(run.checkpoint(step))
        known = _of_run(run.config)
    elif (path.parent.parent / workdir.CONFIG_FILE).exists():
        known = _of_run(workdir.load_config(path.parent.parent))
    elif (path / metadata.FILE).exists():
        known = _of_export(path)
    else:
        known = _of_file(path)
    _apply(known, config, recipe, adopted)
    return adopted


def _apply(
    known: dict[str, Any], config: ConfigDict, recipe: str, adopted: ConfigDict
) -> list[str]:
    """Sets what the user has left as `recipe` has it; returns the fields that changed."""
    given, stated = (workdir.flatten(c) for c in (config, load_recipe(*recipe.split(":", 1))))
    changed = []
    for field, value in known.items():
        if given[field] == stated[field] and value is not None and value != given[field]:
            adopted.update_from_flattened_dict({field: value})
            changed.append(field)
    return changed


def adopt_input(config: ConfigDict, recipe: str, directory: Path, report: Report) -> ConfigDict:
    """`config` with what published weights need at the input, where the user has not set it.

    Of runs and exports these are only the options that they were made with. A run that goes on
    keeps what it began with.
    """
    adopted = config.copy_and_resolve_references()
    if workdir.has_checkpoints(directory):
        stored = workdir.flatten(workdir.load_config(directory))
        _apply({field: stored.get(field) for field in _INPUT_FIELDS}, config, recipe, adopted)
        return adopted
    known, fields = _known(config, report)
    known = {field: value for field, value in known.items() if field in fields}
    for field in _apply(known, config, recipe, adopted):
        report(f"{field} = {known[field]}, as {config.init_from} needs it")
    return adopted


def _known(config: ConfigDict, report: Report) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The description that comes with weights, and the part of it that training takes over."""
    init_from = config.init_from
    # A detector has a reader of its own for the names of others.
    detects = objectives.chosen(config.objective).needs.labels == "objects"
    if hub.is_reference(init_from):
        fetched = hub.fetch(init_from)
        if fetched.metadata:
            report(f"{init_from} was evaluated with {', '.join(fetched.metadata.transforms)}")
        found = {} if fetched.metadata or detects else _of_file(fetched.path)
        return {**found, **_of_published(fetched)}, _INPUT_FIELDS
    path = storage.path(init_from, "init_from")
    options = _INPUT_FIELDS[2:]
    if (path / workdir.CONFIG_FILE).exists():
        return _of_run(workdir.load_config(path)), options
    if (path / metadata.FILE).exists():
        return _of_export(path), options
    if files.read_description(path):
        return _of_file(path), options
    return ({} if detects else _of_file(path)), _INPUT_FIELDS


def _of_published(fetched: hub.Fetched) -> dict[str, Any]:
    described = fetched.metadata
    return {
        **({"model.name": fetched.network} if fetched.network else {}),
        **(_of_spec(fetched.spec) if fetched.spec else {}),
        **({"data.mean": described.mean, "data.std": described.std} if described else {}),
        **{f"model.options.{name}": value for name, value in fetched.options.items()},
    }


def check_weights(config: ConfigDict) -> str:
    """One line about the weights; `UserError` where more than the classifier would stay random."""
    classes = datasets.open_split(config.data, config.data.train_split).class_names
    encoder = models.from_settings(Model.read(config.model), len(classes))
    expected = models.abstract_variables(encoder, config.data.image_size)
    _, report = interop.load_initial(config.init_from, encoder, expected, strict=False)
    absent = (*report.missing, *report.mismatched)
    lost = [name for name in absent if "/classifier/" not in name]
    if lost:
        raise UserError(
            f"init_from ({config.init_from}) is not the {config.model.name} that the config "
            f"describes: {lost[0]} and {len(lost) - 1} others are missing or differ; set "
            "model.name, model.stem and model.options to those it was trained with, or "
            "model.projection to False where only its head differs"
        )
    return _account(report)


def _of_run(run: ConfigDict) -> dict[str, Any]:
    options = {f"model.options.{name}": run.model.options.get(name) for name in WEIGHT_OPTIONS}
    return {
        "model.name": run.model.name,
        "model.stem": run.model.stem,
        **options,
        "data.mean": run.data.mean,
        "data.std": run.data.std,
    }


def _of_export(path: Path) -> dict[str, Any]:
    _, spec, described = metadata.read(path)
    return {**_of_spec(spec), "data.mean": described.mean, "data.std": described.std}


def _of_file(path: Path) -> dict[str, Any]:
    """What the header or the tensors' names of a file without its export reveal."""
    if described := files.read_description(path):
        spec, about = described
        return {**_of_spec(spec), "data.mean": about.mean, "data.std": about.std}
    if path.is_dir():
        return {}
    try:
        found = first_resnets.translate(files.read_weights(path).tensors)
    except UserError:
        return {}  # `load` says what is wrong with it
    if found is None:
        return {}
    options = {f"model.options.{k}": v for k, v in first_resnets.options(found).items()}
    return {**options, "data.mean": found.mean, "data.std": found.std}


def _of_spec(spec: ModelSpec) -> dict[str, Any]:
    options = {
        f"model.options.{name}": value for name, value in spec.options if name in WEIGHT_OPTIONS
    }
    return {"model.name": spec.name, "model.stem": spec.stem, **options}


def _account(report: ImportReport) -> str:
    fresh = len(report.missing) + len(report.mismatched) + len(report.reinitialised)
    return (
        f"{report.source} ({report.layout} names): {len(report.mapped)} arrays taken over, "
        f"{fresh} of the classifier initialised anew, {len(report.unexpected)} not used"
    )


def check(run: Run, report: Report) -> None:
    """Raises the errors of `load`, without making a state."""
    shapes = run.abstract_state().variables
    _read(run, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes), report)


def load(run: Run, report: Report) -> tuple[TrainState, ImportReport]:
    """A new state whose networks, query and key alike, start from the weights the config names.

    Also returns an account of every name. Names that were not simply mapped are reported, even if
    they are an error.
    """
    state = run.init_state()
    variables, account = _read(run, jax.device_get(state.variables), report)
    report(account.summary())
    _report_rest(account, report)
    for name in account.reinitialised:
        report(f"{name} starts anew, since the number of classes differs")
    return state.with_weights(variables), account


def _read(
    run: Run, variables: dict[str, Any], report: Report
) -> tuple[dict[str, Any], ImportReport]:
    config = run.config
    try:
        return interop.load_initial(
            config.init_from, run.learner.encoder, variables, strict=config.init_strict
        )
    except IncompleteImport as error:
        _report_rest(error.report, report)
        raise
    except UserError as error:
        text = str(error)
        raise UserError(text if text.startswith("init_from") else f"init_from: {text}") from error


def _report_rest(account: ImportReport, report: Report) -> None:
    rest = [line for line in account.table().splitlines()[1:] if not line.startswith("mapped ")]
    for line in rest[:_SHOWN]:
        report(line)
    if len(rest) > _SHOWN:
        report(f"... and {len(rest) - _SHOWN} more")
