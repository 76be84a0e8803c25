"""``--mode=serve``: a local web page for a run or an export."""

from rich.console import Console

from cone_jax import prediction, workdir
from cone_jax.console import plain_lines
from cone_jax.errors import UserError
from cone_jax.modes.command_line import Arguments
from cone_jax.prediction import server
from cone_jax.training.run_directory import RunDirectory


def serve(arguments: Arguments, console: Console) -> None:
    """Serves the page until it is interrupted."""
    say, step = plain_lines(console), arguments.flags["step"]
    is_run = (arguments.workdir / workdir.CONFIG_FILE).exists()
    if is_run:
        RunDirectory.open(arguments.workdir).require_classes("serve")
    predictor = prediction.open_model(arguments.workdir, step=step)
    nearest = None
    if is_run:
        try:
            say("going through the training pictures once, to find the nearest ones later")
            nearest = server.NearestPictures(RunDirectory.open(arguments.workdir), step, say)
        except UserError as error:  # the data are gone; the classes are not
            say(f"without nearest training pictures: {error}")
    title = arguments.workdir.absolute().name
    with server.listen(arguments.flags["address"], predictor, nearest, title) as listening:
        host, port = listening.server_address[:2]
        say(f"serving: http://{host!s}:{port}/ (end with Ctrl-C)")
        listening.serve_forever()
