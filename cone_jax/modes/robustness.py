"""``--mode=robustness``: a checkpoint on corrupted test pictures."""

from rich.console import Console

from cone_jax.data import datasets
from cone_jax.errors import UserError
from cone_jax.evaluation.robustness import ALEXNET, ALEXNET_CLASSES, Robustness
from cone_jax.modes.command_line import Arguments
from cone_jax.modes.evaluate import evaluate_checkpoint, open_evaluated
from cone_jax.training.named_network import NamedRun


def robustness(arguments: Arguments, console: Console) -> None:
    """Errors by corruption and severity; for ImageNet also mCE and relative mCE.

    --corrupted names data that are corrupted already, --baseline a run to compare with, --frost a
    folder with the benchmark's photographs of frost.
    """
    directory = open_evaluated(arguments, console)
    if not isinstance(directory, NamedRun):
        directory.require_classes("robustness")
    baseline = arguments.flags["baseline"]
    if not baseline:
        if isinstance(directory, NamedRun):
            names = directory.network.metadata.class_names
        else:
            data = directory.config.data
            names = datasets.open_split(data, data.train_split).class_names
        baseline = ALEXNET if len(names) == ALEXNET_CLASSES else ""
    try:
        evaluator = Robustness(
            data=arguments.flags["corrupted"], baseline=baseline, frost=arguments.flags["frost"]
        )
    except ValueError as error:
        raise UserError(f"--mode=robustness: {error}") from error
    evaluate_checkpoint(directory, arguments.flags["step"], console, (evaluator,))
