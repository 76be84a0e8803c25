"""The command line: ``cone``, ``python -m cone_jax`` and, in a clone, ``python main.py``."""

import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence

from cone_jax import runtime, storage

runtime.set_up()  # JAX reads these settings when it is first imported

from rich.console import Console

from cone_jax import distributed
from cone_jax.console import program
from cone_jax.errors import Failure, Interrupted, UserError
from cone_jax.modes import MODES, command_line


def main(argv: Sequence[str]) -> int:
    """Runs one command; returns the exit code."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    help_lines = {name: mode.help for name, mode in MODES.items()}
    if any(argument in ("-h", "-help", "--help", "--helpfull", "--helpshort") for argument in argv):
        try:
            print(_help(command_line.named_mode(argv), help_lines), flush=True)
        except BrokenPipeError:  # whoever read it has seen enough, such as `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    # Orbax and Grain log their inner workings; a user wants warnings only. What goes wrong in
    # their threads is raised in ours as well.
    logging.getLogger("absl").setLevel(logging.WARNING)
    logging.getLogger("absl").addFilter(lambda record: record.levelno < logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # It prints what it logs by itself, and would say it a second time through Python's own logger.
    logging.getLogger("huggingface_hub").propagate = False
    try:
        arguments = command_line.parse(argv, help_lines)
        mode = MODES[arguments.mode]
        if not mode.joint:
            distributed.require_single_process(arguments.mode, arguments.flags["coordinator"])
        distributed.initialize(
            *(arguments.flags[name] for name in ("coordinator", "num_processes", "process_id"))
        )
        command_line.reach_buckets(arguments, errors.print)
        quiet = not distributed.is_primary()
        # Without markup: names of files and classes may look like it.
        with distributed.lost_processes_explained():
            mode.run(arguments, Console(highlight=False, quiet=quiet, markup=False))
    except UserError as error:
        errors.print(f"error: {error}")
        return 2
    except Interrupted as stopped:
        errors.print(f"{stopped}; continue with: {shlex.join([*program(), *argv])}")
    except KeyboardInterrupt:  # where there is nothing to save
        errors.print("interrupted")
        return 128 + signal.SIGINT
    except Failure as error:
        errors.print(f"failed: {error}")
        return 1
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename:
            errors.print(f"error: {error.filename} cannot be used: {error.strerror}")
            return 2
        if storage.write_failure(error) is None:
            raise
        errors.print(f"failed: {error}")
        return 1
    return 0


def _help(name: str | None, lines: Mapping[str, str]) -> str:
    """The help of the mode `name`, or the general help if there is no such mode."""
    mode = MODES.get(name or "")
    if mode is None or name is None:
        return command_line.help_text(lines)
    processes = ("coordinator", "num_processes", "process_id") if mode.joint else ()
    flags = (*mode.flags, *processes)
    return command_line.mode_help(name, mode.help, mode.example, mode.page, flags)


def run() -> None:
    """Runs the command that started this process, and ends the process."""
    for stream in (sys.stdout, sys.stderr):
        # Names of files may not be text in any encoding.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = main(sys.argv[1:])
    except Exception:  # a bug, told as ever; but Python's own end would wait for other processes
        traceback.print_exc()
        code = 1
    distributed.leave(code)


if __name__ == "__main__":
    run()
