"""``--mode=export``: a checkpoint in the form other programs use, checked."""

from rich.console import Console

from cone_jax import interop
from cone_jax.console import plain_lines
from cone_jax.modes.command_line import Arguments
from cone_jax.training.run_directory import RunDirectory


def export(arguments: Arguments, console: Console) -> None:
    """Writes ``<workdir>/exports/<format>/``, or below --output."""
    network = RunDirectory.open(arguments.workdir).deployed(arguments.flags["step"])
    directory = arguments.flags["output"] or arguments.workdir / "exports"
    path = interop.export(
        arguments.flags["format"], network.variables, network.encoder, network.metadata, directory
    )
    step = network.metadata.origin["step"]
    plain_lines(console)(f"written: {path} (step {step}; read back, same logits)")
