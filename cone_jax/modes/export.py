"""``--mode=export``: a checkpoint in the form other programs use, checked; or on the hub."""

import dataclasses
import shlex
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from cone_jax import interop, workdir
from cone_jax.config.run_config import load_recipe
from cone_jax.console import plain_lines
from cone_jax.errors import UserError
from cone_jax.interop import hub, pushing
from cone_jax.interop.pushing import Story
from cone_jax.modes.command_line import DEFAULT_CONFIG, Arguments
from cone_jax.modes.evaluate import kept_scores, require_no_run
from cone_jax.settings import free_fields
from cone_jax.training import named_network
from cone_jax.training.run_directory import DeployedNetwork, RunDirectory

# Fields of a config that name a place, as data.path does.
_PATHS = ("init_from", "data.corrections")


def export(arguments: Arguments, console: Console) -> None:
    """Writes ``<workdir>/exports/<format>/``, or below --output; with --push, to the hub."""
    say, given = plain_lines(console), arguments.flags["license"]
    if given and not arguments.flags["push"]:
        raise UserError(f"--license ({given}) is of what is pushed; add --push=hf://OWNER/NAME")
    licence = pushing.choose_licence(given, "")
    if model := arguments.flags["model"]:
        if not (arguments.flags["push"] or arguments.output):
            require_no_run(arguments)
        options = named_network.options_of(arguments.config)
        pictures = named_network.pictures_of(arguments.config, arguments.recipe)
        network = named_network.open_network(model, say, options, pictures)
        known = network.metadata.origin.get("licence", "")
        story = Story(licence=pushing.choose_licence(given, known))
    else:
        run = RunDirectory.open(arguments.workdir)
        network = run.deployed(arguments.flags["step"])
        story = _story(run, network)._replace(licence=licence)
    if reference := arguments.flags["push"]:
        if network.encoder.inputs:
            raise UserError(
                f"--push ({reference}) is for classifiers, but --workdir ({arguments.workdir}) is "
                "the run of a detector; leave --push out and upload the export"
            )
        _push(reference, network, story, arguments, console)
        return
    directory = arguments.output or arguments.workdir / "exports"
    path = interop.export(
        arguments.flags["format"], network.variables, network.encoder, network.metadata, directory
    )
    step = network.metadata.origin["step"]
    same = "detections" if network.encoder.inputs else "logits"
    say(f"written: {path} (step {step}; read back, same {same})")


def _story(run: RunDirectory, network: DeployedNetwork) -> Story:
    """The history of a run, from its records and its config."""
    config, data = run.config, run.config.data
    parts = f"{data.source} {data.name or Path(data.path).name}, {data.train_split}"
    recipe = f"{config.objective.name}, {config.model.name}, batch {config.batch_size}"
    length = f"{config.steps} steps" if config.steps else f"{config.epochs:g} epochs"
    start = f", from {_public(config.init_from)}" if config.init_from else ""
    return Story(
        results=_results(run, network.metadata.origin["step"]),
        data=f"{parts} ({len(network.metadata.class_names)} classes)",
        recipe=f"{recipe}, {length}, seed {config.seed}{start}",
        command=_command(run),
    )


def _results(run: RunDirectory, step: int) -> dict[str, float]:
    """The scores of this very checkpoint, from training and later evaluations."""
    found: dict[str, float | None] = {}
    for record in run.records:
        if record["step"] == step:
            found |= {name: value for name, value in record.items() if name.startswith("test")}
    found |= kept_scores(run.path, step)
    return {name: value for name, value in found.items() if value is not None}


def _public(place: str) -> str:
    """A name that means something elsewhere: of a path only the last part."""
    return place if hub.is_reference(place) else Path(place).name


def _command(run: RunDirectory) -> str:
    """A command that trains the same, whatever the recipe; without paths of this machine."""
    stated = workdir.flatten(load_recipe(DEFAULT_CONFIG))
    changed = [
        f"--config.{field}={_public(value) if field in _PATHS else value}"
        for field, value in workdir.flatten(run.config).items()
        if field not in free_fields() and value is not None and value != stated.get(field)
    ]
    path = ["--config.data.path=FOLDER"] if run.config.data.path else []
    return shlex.join(["cone", f"--config={DEFAULT_CONFIG}", *path, *changed])


def _push(
    reference: str, network: DeployedNetwork, story: Story, arguments: Arguments, console: Console
) -> None:
    """Says what would be pushed, asks, and pushes."""
    say, repository = plain_lines(console), pushing.repository_of(reference)
    described, origin = network.metadata, dict(network.metadata.origin)
    if "weights" in origin:
        origin["weights"] = _public(origin["weights"])
        described = dataclasses.replace(described, origin=origin)
    with tempfile.TemporaryDirectory() as folder:
        written = pushing.write_folder(
            Path(folder), repository, network.encoder, network.variables, described, story
        )
        sizes = ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in written)
        say(f"to {reference}, licence {story.licence}: {sizes}")
        if story.licence == pushing.UNKNOWN_LICENCE:
            say("nothing says what others may do with it; choose a licence: --license=apache-2.0")
        if not arguments.flags["yes"]:
            if not sys.stdin.isatty():
                raise UserError("--push asks before it sends anything; add --yes to answer now")
            # As markup the brackets would be a style.
            answer = console.input("push? [y/N] ", markup=False)
            if answer.strip().lower() not in ("y", "yes"):
                say("nothing was pushed")
                return
        say(f"pushed: {pushing.push(Path(folder), reference)}")
