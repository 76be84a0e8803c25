"""``--mode=analyze``: the paper's figures, of one run or of several side by side."""

from rich.console import Console

from cone_jax.analysis import figure_style, paper_figures
from cone_jax.analysis.report_inputs import gather
from cone_jax.analysis.run_comparison import group_runs
from cone_jax.console import plain_lines
from cone_jax.errors import UserError
from cone_jax.modes.command_line import Arguments
from cone_jax.training.run_directory import RunDirectory


def analyze(arguments: Arguments, console: Console) -> None:
    """Writes PNG and SVG files below the workdir."""
    say = plain_lines(console)
    directories = arguments.workdirs or (arguments.workdir,)
    for directory in directories:
        RunDirectory.open(directory).require_classes("analyze")
    step = arguments.flags["step"]
    evidence = [gather(directory, step) for directory in directories]
    groups = group_runs([item.run for item in evidence])
    # Seeds of one config would share a name.
    distinct = len(groups) == len(evidence)
    names = [group.name for group in groups] if distinct else [e.run.name for e in evidence]
    for item in evidence:
        if item.missing:
            say(f"left out of {item.run.path}: {item.missing}")
    drawn = paper_figures.draw(evidence, names)
    if not drawn:
        raise UserError(f"--workdir ({arguments.workdir}): nothing recorded to draw a figure of")
    for stem, figure in drawn.items():
        for path in figure_style.save(figure, arguments.workdir / "figures" / stem):
            say(f"written: {path}")
