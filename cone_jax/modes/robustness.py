"""``--mode=robustness``: a checkpoint on corrupted test pictures."""

from rich.console import Console

from cone_jax.data import datasets
from cone_jax.errors import UserError
from cone_jax.evaluation.robustness import ALEXNET, Robustness
from cone_jax.modes.command_line import Arguments
from cone_jax.modes.evaluate import evaluate_checkpoint
from cone_jax.training.run_directory import RunDirectory

# AlexNet's errors are known on ImageNet, which has so many classes.
_IMAGENET_CLASSES = 1000


def robustness(arguments: Arguments, console: Console) -> None:
    """Errors by corruption and severity; of ImageNet also mCE and relative mCE.

    --corrupted names data that are corrupted already, --baseline a run to compare with.
    """
    directory = RunDirectory.open(arguments.workdir)
    data = directory.config.data
    baseline = arguments.flags["baseline"]
    if not baseline:
        names = datasets.open_split(data, data.train_split).class_names
        baseline = ALEXNET if len(names) == _IMAGENET_CLASSES else ""
    try:
        evaluator = Robustness(data=arguments.flags["corrupted"], baseline=baseline)
    except ValueError as error:
        raise UserError(f"--mode=robustness: {error}") from error
    evaluate_checkpoint(directory, arguments.flags["step"], console, (evaluator,))
