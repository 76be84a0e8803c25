"""``--mode=train``: train a recipe, or go on with an interrupted run."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from cone_jax import training
from cone_jax.analysis import report
from cone_jax.analysis.snapshot import pictures_tested
from cone_jax.analysis.tensorboard_images import TensorboardImages
from cone_jax.console import plain_lines, print_training
from cone_jax.evaluation import registry
from cone_jax.evaluation.accuracy import SPLIT_ACCURACIES, interval_text
from cone_jax.modes.command_line import Arguments
from cone_jax.training import pretrained
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir.metrics import TIMING_FILE, latest_values


def train(arguments: Arguments, console: Console) -> None:
    """Trains, or says that there is nothing left to do."""
    config = arguments.config
    if config.init_from:
        say = plain_lines(console)
        config = pretrained.adopt_input(config, arguments.recipe, arguments.workdir, say)
    metrics = training.train(config, arguments.workdir, console, TensorboardImages())
    report.write_after_training(arguments.workdir, plain_lines(console))
    timing = latest_values(arguments.workdir / TIMING_FILE)
    declared = registry.declared_metrics(config)
    detects = RunDirectory.open(arguments.workdir).has_objects
    use = "detect objects" if detects else "classify pictures"
    seconds, sure = timing["time/seconds"], _intervals(metrics, arguments.workdir)
    print_training(console, metrics, declared, seconds, arguments.workdir, use, sure)


def _intervals(metrics: Mapping[str, float], directory: Path) -> dict[str, str]:
    """The intervals of test accuracies, if the report's snapshot has the number of pictures."""
    tested = pictures_tested(directory, int(metrics["step"]))
    if tested is None:
        return {}
    known = (name for name in SPLIT_ACCURACIES if name in metrics)
    return {name: interval_text(metrics[name], tested) for name in known}
