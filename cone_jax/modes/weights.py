"""``--mode=weights``: published weights that fit networks here, and where they are."""

from rich.console import Console

from cone_jax.console import plain_lines
from cone_jax.errors import UserError
from cone_jax.interop import hub, published
from cone_jax.modes.command_line import Arguments


def weights(arguments: Arguments, console: Console) -> None:
    """Lists the table, or the rows with --model in their names; says which are on this disk."""
    wanted = arguments.flags["model"].lower()
    rows = [
        row
        for row in published.table().values()
        if wanted in row.id.lower() or wanted in row.network
    ]
    if not rows:
        raise UserError(f"--model ({wanted}) matches no name; leave it out to see all of them")
    say = plain_lines(console)
    lines = [("weights", "network", "pixels", "top-1 %", "licence", "on this disk")]
    for row in rows:
        top1 = "" if row.top1 is None else f"{row.top1:.1f}"
        place = str(hub.cached(row.id) or "")
        lines.append((row.id, row.network, row.pixels, top1, row.licence, place))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
    say(f"{len(rows)} of {len(published.table())}; top-1 on ImageNet as their publishers report it")
    say("use: --config.init_from=WEIGHTS to train from, --model=WEIGHTS to predict and evaluate")
