"""``--mode=compile``: what an accelerator's compiler says about a recipe, before renting one."""

import dataclasses

from rich.console import Console

from cone_jax.compilation import compiler, programs, report
from cone_jax.compilation.accelerators import parse_topology
from cone_jax.compilation.compiler import Progress
from cone_jax.compilation.report import Findings
from cone_jax.console import duration, plain_lines, readable
from cone_jax.errors import Failure, UserError
from cone_jax.modes.command_line import Arguments
from cone_jax.training import cures
from cone_jax.training.cures import Cure

# Seconds between two lines about a compilation, where lines stay.
_PATIENCE = 60


def compile_run(arguments: Arguments, console: Console) -> None:
    """Compiles every program of the run for --topology; a `Failure` where it does not fit."""
    flags, say = arguments.flags, plain_lines(console)
    topology = parse_topology(flags["topology"], flags["slices"])
    if flags["cures"] not in ("list", "compile"):
        raise UserError(f"--cures ({flags['cures']!r}) must be 'list' or 'compile'")
    data = compiler.describe_data(arguments.config, flags["train_images"])
    with console.status("") as status:

        def progress(program: str, seconds: float) -> None:
            line = f"compiling the {program} for {topology.text}"
            status.update(f"{line}: {duration(seconds)}")
            if not console.is_terminal and round(seconds) % _PATIENCE == 0:
                say(f"{line}: {duration(seconds)}" if seconds else line)

        answers = compiler.ask_all(arguments.config, topology, data, say, progress)
        found = Findings(arguments.recipe, arguments.config, topology, data, answers)
        if not found.fits:
            listed = cures.find(
                found.config,
                platform=topology.accelerator.kind,
                devices=topology.num_devices,
                state=found.state,
            )
            if flags["cures"] == "compile":
                listed = [_compiled(found, cure, progress) for cure in listed]
            found = dataclasses.replace(found, cures=tuple(listed))
    written = report.write(found, arguments.workdir)
    say(found.text())
    for path in written:
        say(f"written: {path}")
    if not found.fits:
        fields = ", ".join(map(str, found.cures))
        raise Failure(
            f"{arguments.recipe} does not fit into a device of {topology.text}, which has "
            f"{readable(topology.accelerator.memory)}; cheapest first: {fields}"
        )


def _compiled(found: Findings, cure: Cure, progress: Progress) -> Cure:
    """The compiler's answer for the training step with one field changed."""
    config = cures.apply(found.config, cure)
    program = programs.TRAINING

    def named(_: str, seconds: float) -> None:
        progress(f"{program} with {cure}", seconds)

    answer = compiler.ask(config, program, found.topology, found.data, named)
    with_it = dataclasses.replace(found, config=config, answers={program: answer})
    saves = found.needed(program) - with_it.needed(program)
    return dataclasses.replace(cure, saves=saves, compiled=True, fits=with_it.fits)
