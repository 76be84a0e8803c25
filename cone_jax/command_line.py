"""The command line: flags to arguments, mistakes to one clear line."""

import importlib.util
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from cone_jax.errors import UserError, closest

DEFAULT_CONFIG = "configs/digits.py"


class Arguments(NamedTuple):
    """What the user asked for."""

    mode: str
    config: ConfigDict
    workdir: Path
    step: str  # a number, "latest" or "best"


def parse(argv: Sequence[str], modes: Mapping[str, str]) -> Arguments:
    """The arguments of `argv`, without the program's name; `modes` are those there are."""
    recipe, rest = _take_recipe(argv)
    path, _, options = recipe.partition(":")
    config = load_recipe(path, options)
    _check_fields(rest, config)

    command = ["main.py", *rest]
    values = flags.FlagValues()
    flags.DEFINE_string("mode", "train", "", flag_values=values)
    flags.DEFINE_string("workdir", "", "", flag_values=values)
    flags.DEFINE_string("step", "latest", "", flag_values=values)
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=command)
        unparsed = values(command)[1:]
    except flags.UnrecognizedFlagError as error:
        known = ("config", "mode", "workdir", "step", "help")
        raise UserError(
            f"--{error.flagname} is no flag; {closest(error.flagname, known)}"
        ) from error
    except flags.Error as error:
        raise UserError(" ".join(str(error).split())) from error
    if unparsed:
        raise UserError(f"argument ({unparsed[0]!r}) is not understood; flags are --name=value")
    if values.mode not in modes:
        raise UserError(f"--mode ({values.mode!r}) is unknown; {closest(values.mode, modes)}")
    name = "-".join(filter(None, (Path(path).stem, re.sub(r"[^\w.]+", "-", options))))
    return Arguments(
        mode=values.mode,
        config=values.config,
        workdir=Path(values.workdir or f"runs/{name}").expanduser(),
        step=values.step,
    )


def load_recipe(path: str, options: str = "") -> ConfigDict:
    """What ``get_config(options)`` of the Python file `path` returns."""
    if not Path(path).is_file():
        raise UserError(f"--config ({path}) is not a file; the recipes are in configs/")
    spec = importlib.util.spec_from_file_location(f"recipe_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"--config ({path}) must be a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise UserError(f"--config ({path}) must define get_config(options)")
    if not options and not inspect.signature(module.get_config).parameters:
        return module.get_config()
    return module.get_config(options)


def help_text(modes: Mapping[str, str]) -> str:
    """What ``--help`` prints."""
    width = max(map(len, modes))
    listing = "\n".join(f"  {name:<{width}}  {text}" for name, text in modes.items())
    return _HELP.format(modes=listing, config=DEFAULT_CONFIG)


_HELP = textwrap.dedent("""\
    Train image classifiers with CoNe (Contrast Your Neighbours) and its baselines.

      python main.py [--mode=MODE] [--config=FILE[:OPTIONS]] [--config.FIELD=VALUE] [--workdir=DIR]

    modes
    {modes}

    flags
      --config              a recipe in configs/, its options after a colon; default {config}
      --config.FIELD=VALUE  changes one field of the recipe, e.g. --config.bank.size=4096
      --workdir             where everything of the run goes; default runs/<recipe>
      --step                checkpoint to use: a step, 'latest' (default) or 'best'

    examples
      python main.py
      python main.py --config=configs/digits.py:cross_entropy
      python main.py --mode=evaluate --workdir=runs/digits --step=best

    A run that was interrupted goes on when it is started again with the same flags.
    Fields and their meaning: cone_jax/config.py. Exit codes: 0 done, 1 failed, 2 your input.
    """)


def _take_recipe(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Separates ``--config=FILE`` (or ``--config FILE``) from the other arguments."""
    recipe, rest = DEFAULT_CONFIG, []
    arguments = iter(argv)
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if name not in ("--config", "-config"):
            rest.append(argument)
        elif separator:
            recipe = value
        else:
            recipe = next(arguments, "")
    return recipe, rest


def _check_fields(arguments: Sequence[str], config: ConfigDict) -> None:
    """Refuses overrides of fields that do not exist, naming the nearest that do."""
    for argument in arguments:
        match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
        if match is None:
            continue
        section, path = config, match[1]
        for part in path.split("."):
            if not isinstance(section, ConfigDict):
                raise UserError(f"--config.{path}: {part!r} is inside a field, not a section")
            if part not in section:
                cure = closest(part, section.keys())
                raise UserError(f"--config.{path}: there is no field {part!r}; {cure}")
            section = section[part]
