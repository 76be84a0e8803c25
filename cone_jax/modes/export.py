"""``--mode=export``: a checkpoint in the form other programs use, checked."""

from rich.console import Console

from cone_jax import interop, trained_run
from cone_jax.console import plain_lines
from cone_jax.modes.command_line import Arguments


def export(arguments: Arguments, console: Console) -> None:
    """Writes ``<workdir>/exports/<format>/``, or below --output."""
    run = trained_run.open_run(arguments.workdir, arguments.flags["step"])
    directory = arguments.flags["output"] or arguments.workdir / "exports"
    path = interop.export(
        arguments.flags["format"], run.variables, run.encoder, run.metadata, directory
    )
    step = run.metadata.origin["step"]
    plain_lines(console)(f"written: {path} (step {step}; read back, same logits)")
