"""The command line: flags to arguments, mistakes to one clear line."""

import functools
import operator
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from cone_jax import storage, sweeps
from cone_jax.config.run_config import load_recipe
from cone_jax.console import Report, program
from cone_jax.errors import UserError, closest
from cone_jax.workdir import flatten

_PATIENCE = 60.0  # seconds that a bucket may stay away at the start
DEFAULT_CONFIG = "digits"
MODEL_CONFIG = "folder"  # of the data that published weights are evaluated on

# Flags that only some modes read: default and help.
FLAGS = {
    "step": ("latest", "which checkpoint: a step, 'latest' (default) or 'best'"),
    "evaluators": ("", "what to measure; default: the config's evaluation.evaluators"),
    "corrupted": (
        "",
        "corrupted pictures, a TFDS set or a folder; default: made from the run's own",
    ),
    "baseline": ("", "errors are relative to it: 'alexnet' (ImageNet's default) or another run"),
    "frost": ("auto", "a folder with the benchmark's photographs of frost, or 'generated'"),
    "folds": ("4", "number of networks to train (default 4); 0: the run judges its own labels"),
    "model": ("", "weights instead of a run: timm:NAME, hf://OWNER/NAME, a file or an export"),
    "format": (
        "safetensors",
        "safetensors (default), pth, onnx, onnx_pixels, stablehlo, orbax, detectron2",
    ),
    "push": ("", "upload to hf://OWNER/NAME instead of exporting to a disk; asks first"),
    "license": ("", "licence of what is uploaded, such as apache-2.0; default: that of --model"),
    "yes": ("", "upload without asking"),
    "images": ("", "pictures to predict: files or folders, joined by commas"),
    "output": ("", "the file or folder to write, instead of the mode's default"),
    "address": ("127.0.0.1:8000", "where serve listens; only this machine can reach the default"),
    "workdirs": ("", "several runs, joined by commas, for analyze, compare and transfer"),
    "sweep": ("", "the table to fill: its name or file in configs/sweeps/, then :OPTIONS"),
    "jobs": ("1", "how many runs of a sweep train at the same time"),
    "topology": ("", "accelerators to compile for, such as v5e:4x4, v5p:2x2x2 or h100:8"),
    "slices": ("1", "number of TPU slices of that topology"),
    "train_images": ("", "number of training images, if the data set is not on this machine"),
    "cures": ("list", "if it does not fit: 'list' fields to change, or 'compile' each of them"),
    "coordinator": ("", "HOST:PORT of process 0, when several processes share a run"),
    "num_processes": ("", "how many processes share it; SLURM, MPI and TPU pods are recognised"),
    "process_id": ("", "which of them this is, counted from 0"),
}
# What a flag means in a mode that uses it in a way of its own.
SPECIAL = {
    ("preview", "step"): "draw the batch that a run took, or will take, in this step",
    ("transfer", "jobs"): "how many runs of the grid train at the same time",
    ("weights", "model"): "any part of a name",
}


class Arguments(NamedTuple):
    """What the user asked for."""

    mode: str
    recipe: str  # its name or file, and its options after a colon
    config: ConfigDict  # what the recipe gives, with the user's changes
    workdir: Path
    flags: Mapping[str, str]  # the values of FLAGS, "" or the default where not given

    @property
    def output(self) -> Path | None:
        """The path given by --output; None if there is none."""
        given = self.flags["output"]
        return storage.path(given, "--output") if given else None

    @property
    def workdirs(self) -> tuple[Path, ...]:
        """The runs of --workdirs."""
        named = filter(None, self.flags["workdirs"].split(","))
        return tuple(storage.path(name.strip(), "--workdirs") for name in named)


def parse(argv: Sequence[str], modes: Mapping[str, str]) -> Arguments:
    """The arguments in `argv`, which lacks the program's name; `modes` are the known modes.

    The mode may be the first word: ``evaluate`` stands for ``--mode=evaluate``.
    """
    recipe, rest = _take(_with_mode_flag(argv, modes), "config")
    sweep, _ = _take(rest, "sweep")
    model, _ = _take(rest, "model")
    rest = ["--yes=true" if argument == "--yes" else argument for argument in rest]
    if sweep and recipe is None:
        definition = sweeps.load_sweep(sweep)
        recipe, config = definition.base, sweeps.base_config(definition)
    else:
        recipe = recipe or (MODEL_CONFIG if model else DEFAULT_CONFIG)
        path, _, options = recipe.partition(":")
        config = load_recipe(path, options)
    _check_fields(rest, config)

    command = ["main.py", *rest]
    values = flags.FlagValues()
    flags.DEFINE_string("mode", "train", "", flag_values=values)
    flags.DEFINE_string("workdir", "", "", flag_values=values)
    for name, (default, _) in FLAGS.items():
        flags.DEFINE_string(name, default, "", flag_values=values)
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=command)
        unparsed = values(command)[1:]
    except flags.UnrecognizedFlagError as error:
        raise UserError(
            f"--{error.flagname} is not a flag; {_cure(error.flagname, config)}"
        ) from error
    except flags.Error as error:
        raise UserError(_explain(error, config)) from error
    if unparsed:
        raise UserError(
            f"argument ({unparsed[0]!r}) is not understood; flags are --name=value, after the mode"
        )
    if values.mode not in modes:
        raise UserError(f"--mode ({values.mode!r}) is unknown; {closest(values.mode, modes)}")
    _keep_what_is_given(values.config, rest)
    named = model or recipe
    workdir = values.workdir or _default_workdir(values.mode, named, sweep, values.workdirs)
    return Arguments(
        mode=values.mode,
        recipe=recipe,
        config=values.config,
        workdir=storage.path(workdir, "--workdir"),
        flags={name: str(values[name].value) for name in FLAGS},
    )


def reach_buckets(arguments: Arguments, report: Report) -> None:
    """Contacts every bucket that is named anywhere; `UserError` if one cannot be used.

    `report` is told when one does not answer.
    """
    given = {"--workdir": str(arguments.workdir)}
    given |= {f"--{name}": value for name, value in arguments.flags.items()}
    given |= flatten(arguments.config) | {"data.stage": ""}  # which must be local, and is told so
    named = [(name, each) for name, value in given.items() for each in str(value).split(",")]
    remote = ((name, place) for name, place in named if storage.is_remote(place))
    buckets = {tuple(place.split("/")[:3]): (name, place) for name, place in remote}
    for name, place in buckets.values():
        path = storage.path(place, name)
        try:
            storage.reach(path, _PATIENCE, report)
        except Exception as error:
            said = storage.refusal(path, error)
            if said is None:
                raise
            raise UserError(f"{name} ({place}) cannot be used: {said}") from error


def help_text(modes: Mapping[str, str]) -> str:
    """What ``--help`` prints."""
    width = max(map(len, modes))
    listing = "\n".join(f"  {name:<{width}}  {text}" for name, text in modes.items())
    return _HELP.format(modes=listing, flags=_SHARED, command=shlex.join(program()))


def mode_help(name: str, text: str, example: str, page: str, own: Sequence[str]) -> str:
    """What ``--help`` prints after a mode, which reads the flags `own`."""
    command = shlex.join(program())
    meanings = ((each, SPECIAL.get((name, each), FLAGS[each][1])) for each in own)
    flags = "\n".join([_SHARED, *(f"  --{each:<20}{meaning}" for each, meaning in meanings)])
    return (
        f"{name}: {text}\n\n  {command} {name} {example}\n\nflags\n{flags}\n\n"
        f"{page} says more. Other modes: {command} --help\n"
    )


_SHARED = f"""\
  --config              a recipe by name or file; options follow a colon; default {DEFAULT_CONFIG}
  --config.FIELD=VALUE  changes one field of the recipe, such as --config.bank.size=4096
  --workdir             the folder that holds everything about a run; default runs/<recipe>"""

_HELP = """\
Train image classifiers with CoNe (Contrast Your Neighbours) and its baselines.

  {command} [MODE] [--config=NAME[:OPTIONS]] [--config.FIELD=VALUE] [--workdir=DIR]

modes
{modes}

flags of all modes
{flags}
  --mode                the mode, if it is not the first word; default train

examples
  {command}
  {command} --config=digits:cross_entropy
  {command} evaluate --workdir=runs/digits --step=best
  {command} predict --workdir=runs/digits --images=photos/

Most modes have flags of their own: {command} MODE --help lists them.
To continue an interrupted run, give the same command again.
docs/fields.md explains every field.
Exit codes: 0 done, 1 failed, 2 wrong input.
"""


def named_mode(argv: Sequence[str]) -> str | None:
    """The mode that `argv` names, known or not; None where it names none."""
    if argv and not argv[0].startswith("-"):
        return argv[0]
    return _take(argv, "mode")[0]


def _with_mode_flag(argv: Sequence[str], modes: Mapping[str, str]) -> Sequence[str]:
    """`argv` with its first word as a flag, where that is a bare word."""
    if not argv or argv[0].startswith("-"):
        return argv
    word, *rest = argv
    if word not in modes:
        raise UserError(f"mode ({word!r}) is unknown; {closest(word, modes)}")
    given, _ = _take(rest, "mode")
    if given not in (None, word):
        raise UserError(f"mode ({word!r}) and --mode ({given!r}) differ; give one of them")
    return [f"--mode={word}", *rest]


def _take(argv: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Separates ``--flag=FILE`` (or ``--flag FILE``) from the other arguments; None: not given."""
    value, rest = None, []
    arguments = iter(argv)
    for argument in arguments:
        name, separator, given = argument.partition("=")
        if name not in (f"--{flag}", f"-{flag}"):
            rest.append(argument)
        elif separator:
            value = given
        else:
            value = next(arguments, "")
    return value, rest


def _default_workdir(mode: str, recipe: str, sweep: str | None, workdirs: str) -> str:
    """The workdir of a command that names none."""
    if workdirs:
        return f"runs/{mode}"
    if "://" in recipe or recipe.startswith(("timm:", "torchvision:")):
        return "runs/" + re.sub(r"[^\w.]+", "-", recipe)
    path, _, options = (sweep or recipe).partition(":")
    name = "-".join(filter(None, (Path(path).stem, re.sub(r"[^\w.]+", "-", options))))
    return f"runs/sweeps/{name}" if sweep else f"runs/{name}"


def _keep_what_is_given(config: ConfigDict, arguments: Sequence[str]) -> None:
    """Fields set by hand are not derived, even if the value is the recipe's own."""
    given = {match[1] for each in arguments if (match := re.match(r"--?config\.([^=]+)", each))}
    if "steps" in given:
        given.add("epochs")
    config.derive = tuple(pair for pair in config.derive if pair[0] not in given)


def _cure(flag: str, config: ConfigDict) -> str:
    """The field of the config that a flag was meant for, or the nearest flag."""
    fields = flatten(config)
    meant = [name for name in fields if flag in (name, name.rpartition(".")[2])]
    if meant:
        return f"did you mean --config.{min(meant, key=len)}=VALUE?"
    return closest(flag, ("config", "mode", "workdir", "help", *FLAGS))


def _check_fields(arguments: Sequence[str], config: ConfigDict) -> None:
    """Refuses overrides of fields that do not exist, naming the nearest that do."""
    for argument in arguments:
        match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
        if match is None:
            continue
        section, path, field = config, match[1], "config"
        for part in path.split("."):
            if not isinstance(section, ConfigDict):
                raise UserError(
                    f"--config.{path}: {field} is a field, not a section; set --{field}=VALUE"
                )
            field = f"{field}.{part}"
            if part not in section:
                cure = closest(part, section.keys())
                raise UserError(f"--config.{path}: there is no field {part!r}; {cure}")
            section = section[part]


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a tuple"}


def _explain(error: flags.Error, config: ConfigDict) -> str:
    """What absl found wrong with a value, by the kind of value that the field takes."""
    said = " ".join(str(error).split())
    if match := re.match(r"flag --config\.([\w.]+)=(.*?): ", said):
        path, given = match.groups()
        kind = type(functools.reduce(operator.getitem, path.split("."), config))
        if kind in _KINDS:
            return f"--config.{path} ({given!r}) must be {_KINDS[kind]}"
    if match := re.match(r"Missing value for flag (--\S+)", said):
        return f"{match[1]} has no value; give {match[1]}=VALUE"
    return said
