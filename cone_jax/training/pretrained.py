"""Networks that do not start from random weights: what `init_from` holds, and a state made of it.

`adopt` finds out which network it is, `check` and `check_weights` whether the weights are really
its own. A grid is long, and a probe of random weights looks like a result: that weights do not fit
must come out before either begins. `load` makes the state.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cone_jax import interop, models, workdir
from cone_jax.config.run_config import load_recipe
from cone_jax.console import Report
from cone_jax.data import datasets
from cone_jax.errors import UserError
from cone_jax.interop import ImportReport, IncompleteImport, metadata
from cone_jax.settings import Model
from cone_jax.training.run import Run
from cone_jax.training.run_directory import RunDirectory
from cone_jax.training.train_state import TrainState

# Options of an architecture that decide the shapes of its weights.
_SHAPE_OPTIONS = ("width", "last_width")
_SHOWN = 20  # names that are not simply mapped


def adopt(config: ConfigDict, recipe: str, step: str) -> ConfigDict:
    """`config` with the network that `init_from` says it holds, and one checkpoint of it.

    Of a run or an export these are the architecture, its stem and width, and the normalisation
    of pixels, except what the user has changed in `recipe`. A run is replaced by its checkpoint
    `step`, so that it means the same network as long as a grid takes. Of bare weights nothing is
    known.
    """
    path = Path(config.init_from).expanduser()
    adopted = config.copy_and_resolve_references()
    if (path / workdir.CONFIG_FILE).exists():
        run = RunDirectory.open(path)
        adopted.init_from = str(run.checkpoint(step))
        known = _of_run(run.config)
    elif (path.parent.parent / workdir.CONFIG_FILE).exists():
        known = _of_run(workdir.load_config(path.parent.parent))
    elif (path / metadata.FILE).exists():
        known = _of_export(path)
    else:
        known = {}
    given, stated = (workdir.flatten(c) for c in (config, load_recipe(*recipe.split(":", 1))))
    for field, value in known.items():
        if given[field] == stated[field] and value is not None:
            adopted.update_from_flattened_dict({field: value})
    return adopted


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
            f"init_from ({config.init_from}) is no {config.model.name} as the config describes "
            f"it: {lost[0]} and {len(lost) - 1} others are missing or differ; set model.name, "
            "model.stem and model.options to those it was trained with, or model.projection to "
            "False where only its head differs"
        )
    return _account(report)


def _of_run(run: ConfigDict) -> dict[str, Any]:
    options = {f"model.options.{name}": run.model.options[name] for name in _SHAPE_OPTIONS}
    return {
        "model.name": run.model.name,
        "model.stem": run.model.stem,
        **options,
        "data.mean": run.data.mean,
        "data.std": run.data.std,
    }


def _of_export(path: Path) -> dict[str, Any]:
    _, spec, described = metadata.read(path)
    options = {
        f"model.options.{name}": value for name, value in spec.options if name in _SHAPE_OPTIONS
    }
    return {
        "model.name": spec.name,
        "model.stem": spec.stem,
        **options,
        "data.mean": described.mean,
        "data.std": described.std,
    }


def _account(report: ImportReport) -> str:
    fresh = len(report.missing) + len(report.mismatched) + len(report.reinitialised)
    return (
        f"{report.source} ({report.layout} names): {len(report.mapped)} arrays taken over, "
        f"{fresh} of the classifier new, {len(report.unexpected)} of no use here"
    )


def check(run: Run, report: Report) -> None:
    """Raises what `load` would, without making a state."""
    shapes = run.abstract_state().variables
    _read(run, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes), report)


def load(run: Run, report: Report) -> tuple[TrainState, ImportReport]:
    """A new state whose networks, query and key alike, start from the weights the config names.

    With it what became of every name; what was not simply mapped is reported, also where that
    is an error.
    """
    state = run.init_state()
    variables, account = _read(run, jax.device_get(state.variables), report)
    report(account.summary())
    _report_rest(account, report)
    for name in account.reinitialised:
        report(f"{name} starts anew: another number of classes")
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
        raise UserError(f"init_from: {error}") from error


def _report_rest(account: ImportReport, report: Report) -> None:
    rest = [line for line in account.table().splitlines()[1:] if not line.startswith("mapped ")]
    for line in rest[:_SHOWN]:
        report(line)
    if len(rest) > _SHOWN:
        report(f"... and {len(rest) - _SHOWN} more")
