"""``--mode=probe``: how good the features of a network are, without training it further."""

import json
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from cone_jax import distributed, storage
from cone_jax.config import require_classifier
from cone_jax.console import plain_lines
from cone_jax.evaluation.probes import (
    Features,
    extract,
    feature_files,
    few_shot_scores,
    knn_scores,
    linear_scores,
)
from cone_jax.evaluation.probes.extraction import SPACES
from cone_jax.modes.command_line import Arguments
from cone_jax.training import pretrained
from cone_jax.training.run import Run
from cone_jax.training.run_directory import RunDirectory

RESULT_FILE = "probe.json"


def probe(arguments: Arguments, console: Console) -> None:
    """Probes a checkpoint of --workdir, or the weights that ``config.init_from`` names.

    The first needs only the workdir; the second takes the data from the config, and the network
    too where the weights do not say what it is.
    """
    say = plain_lines(console)
    output = arguments.output
    if output is not None:
        feature_files.check_path(output)
    if arguments.config.init_from:
        require_classifier(arguments.config, "probe")
        config = pretrained.adopt(arguments.config, arguments.recipe, arguments.flags["step"])
        pretrained.check_weights(config)
        run = Run.open(config)
        origin: dict[str, Any] = {"init_from": config.init_from}
        state, _ = pretrained.load(run, say)
        variables = state.variables
    else:
        directory = RunDirectory.open(arguments.workdir)
        directory.require_classes("probe")
        step = directory.resolve(arguments.flags["step"])
        run = directory.run.stage_at(step)
        variables = directory.variables(run, step)
        origin = {"step": step}
    splits = {
        name: extract(run.learner, variables, run.eval_stream(source, say))
        for name, source in (("train", run.dataset.train), ("test", run.dataset.test))
    }
    if output is not None and distributed.is_primary():
        feature_files.write(output, splits, run.dataset.class_names)
        say(f"written: {output}")
    scores = all_scores(run, splits["train"], splits["test"])
    counts = {f"{name}_examples": len(rows.labels) for name, rows in splits.items()}
    if distributed.is_primary():
        arguments.workdir.mkdir(parents=True, exist_ok=True)
        with storage.replacing(arguments.workdir / RESULT_FILE) as unfinished:
            unfinished.write_text(json.dumps({**origin, **counts, **scores}, indent=2) + "\n")
    _print(console, scores)
    say(f"written: {arguments.workdir / RESULT_FILE}")


def all_scores(run: Run, train: Features, test: Features) -> dict[str, dict[str, float]]:
    """Every probe on the backbone's features, and on the head's embedding where it has a head."""
    scores = {}
    for space in SPACES:
        if space == "embedding" and run.learner.encoder.spec.projection is None:
            continue
        sets = train.labelled(space), test.labelled(space)
        scores[space] = {
            name: value
            for scored_by in (knn_scores, linear_scores, few_shot_scores)
            for name, value in scored_by(
                *sets, num_classes=run.dataset.num_classes, mesh=run.mesh
            ).items()
        }
    return scores


def _print(console: Console, scores: dict[str, dict[str, float]]) -> None:
    table = Table(box=box.SIMPLE)
    table.add_column("probe", style="bold")
    for space in scores:
        table.add_column(space, justify="right")
    for name in scores["features"]:
        shown = (values.get(name) for values in scores.values())
        form = "{:g}" if name.endswith("/l2") else "{:.2%}"
        table.add_row(name, *("-" if value is None else form.format(value) for value in shown))
    console.print(table)
