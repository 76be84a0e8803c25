"""A state that does not start from random weights."""

from typing import Any

import jax
import numpy as np

from cone_jax import interop
from cone_jax.errors import UserError
from cone_jax.evaluation.evaluator import Report
from cone_jax.interop import ImportReport, IncompleteImport
from cone_jax.training.run import Run
from cone_jax.training.train_state import TrainState

_SHOWN = 20  # names that are not simply mapped


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
