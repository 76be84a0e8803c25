"""The config of a run: its recipe, defaults, options and stages, and whether its sections fit.

A recipe in `configs/` starts from `default()`, changes what it needs and returns the result locked,
so that a misspelt field is an error. Fields are declared in `cone_jax/settings/` or, for a method,
in its file in `cone_jax/objectives/`. Defaults follow the released code (preset ``official``);
where the paper's text differs, `apply_preset(config, "paper")` sets its value.

Recipes and sweeps are Python files with one function, given by path or by name (``digits``). A name
means ``configs/NAME.py`` or ``NAME.py`` in the current directory, otherwise the package's recipe.

A method whose loss trains no classifier (SimCLR, SupCon, ...) is followed by a linear stage: a new
classifier is trained on the pooled features of the frozen backbone, with objective ``linear``.
"""

import functools
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cone_jax import objectives
from cone_jax.errors import UserError, closest
from cone_jax.evaluation import registry
from cone_jax.settings import Settings


def default() -> ConfigDict:
    """A complete config: CoNe as released, on the bundled digits.

    >>> default().objective.name
    'cone'
    """
    config = Settings().to_config()
    for name in objectives.names():  # one section per method: config.objective.cone.sup_weight
        config.objective[name] = objectives.default_settings(name)
    return config


def get_field(config: ConfigDict, field: str) -> Any:
    """The value of `field`, which is its full name.

    >>> get_field(default(), "bank.size")
    65536
    """
    value = config
    for part in field.split("."):
        value = value[part]
    return value


def leave_open(config: ConfigDict, *fields: str) -> None:
    """Leaves `fields` to follow from the number of images and the budget, unless set by hand.

    >>> config = default()
    >>> leave_open(config, "epochs")
    >>> open_fields(config)
    ('epochs',)
    """
    config.derive = tuple((field, get_field(config, field)) for field in fields)


def open_fields(config: ConfigDict) -> tuple[str, ...]:
    """The fields that `leave_open` left open and that have not been changed since."""
    return tuple(field for field, value in config.derive if get_field(config, field) == value)


def stage_configs(config: ConfigDict) -> tuple[ConfigDict, ...]:
    """The config of each stage, in order; the first is `config` itself.

    >>> [stage.objective.name for stage in stage_configs(load_recipe("digits", "supcon"))]
    ['supcon', 'linear']
    """
    if objectives.chosen(config.objective).needs.classifier:
        return (config,)
    return (config, _linear_stage(config))


def deployed(config: ConfigDict) -> ConfigDict:
    """The config of the last stage, which describes the network that a finished run leaves behind.

    >>> deployed(load_recipe("digits", "supcon")).objective.name
    'linear'
    """
    return stage_configs(config)[-1]


def _linear_stage(config: ConfigDict) -> ConfigDict:
    settings = config.linear_stage
    stage = ConfigDict(config.to_dict())
    stage.objective.name = "linear"
    stage.model.projection = False
    stage.model.predictor = False
    stage.model.classifier = "linear"
    stage.model.classifier_bias = True
    for field in ("epochs", "steps", "batch_size"):
        stage[field] = settings[field]
    stage.optimizer = ConfigDict(settings.optimizer.to_dict())
    stage.schedule = ConfigDict(settings.schedule.to_dict())
    stage.data.views, stage.data.key_transforms = 1, ()
    if settings.train_transforms:
        stage.data.train_transforms = settings.train_transforms
    stage.mixing.mixup_alpha = stage.mixing.cutmix_alpha = 0.0
    stage.average.decay = 0.0
    stage.accumulate = 1  # a frozen network needs little memory
    return stage.lock()


PRESETS = ("official", "paper")  # the released code, and the text of the paper

Option = Callable[[ConfigDict], object]  # changes a config in place


def apply_preset(config: ConfigDict, preset: str) -> ConfigDict:
    """The config with every field as `preset` has it where paper and released code disagree.

    Warm-up of the learning rate is not among them: its length belongs to the recipe.

    >>> apply_preset(default(), "paper").model.classifier
    'cosine'
    """
    if preset not in PRESETS:
        raise UserError(f"preset ({preset!r}) is unknown; {closest(preset, PRESETS)}")
    paper = preset == "paper"
    cone = config.objective.cone
    cone.min_positive_prob = 0.0 if paper else 1e-8
    cone.conf_mask_eps = 0.0 if paper else 1e-8
    cone.start_epochs = 0 if paper else 1
    config.model.classifier = "cosine" if paper else "linear"
    config.model.classifier_bias = not paper
    config.ema.schedule = "cosine_to_one" if paper else "official_auto"
    config.ema.order = "after_update" if paper else "before_forward"
    config.schedule.unit = "step" if paper else "epoch"
    config.schedule.floor = 0.0 if paper else 1e-3
    return config


def apply_options(
    config: ConfigDict,
    options: str,
    recipe_options: Mapping[str, Option] | None = None,
) -> ConfigDict:
    """The config with what follows the colon in ``--config=configs/x.py:a,b``, locked.

    Every recipe understands the names of the objectives, which replace CoNe in the same recipe,
    CoNe's variants and the presets. Whatever the order in which they are given, they take effect
    in this one: objectives, variants, the recipe's own as it lists them, presets.

    Args:
        config: is changed, and returned.
        options: names, separated by commas.
        recipe_options: the recipe's own, which replace common options of the same name.

    >>> apply_options(default(), "no_dc,paper").objective.cone.dc_weight
    0.0
    """
    recipe_options = recipe_options or {}
    methods = {
        name: functools.partial(use_objective, name=name) for name in objectives.exchangeable()
    }
    common: dict[str, Option] = {**methods, **VARIANTS}
    known: dict[str, Option] = {
        **{name: option for name, option in common.items() if name not in recipe_options},
        **recipe_options,
        **{preset: functools.partial(apply_preset, preset=preset) for preset in PRESETS},
    }
    chosen = {part.strip() for part in options.split(",")} - {""}
    unknown = sorted(chosen - known.keys())
    if unknown:
        raise UserError(f"config option ({unknown[0]!r}) is unknown; {closest(unknown[0], known)}")
    for name, option in known.items():
        if name in chosen:
            option(config)
    return config.lock()


def use_objective(config: ConfigDict, name: str) -> None:
    """Chooses the method `name`, and what it needs: views, heads, a classifier's form.

    >>> config = default()
    >>> use_objective(config, "nnclr")
    >>> config.data.views, config.model.predictor
    (2, True)
    """
    config.objective.name = name
    needs = objectives.chosen(config.objective).needs
    config.data.views = 1 if needs.views == "any" else 2
    config.model.projection = needs.embedding
    config.model.predictor = needs.predictor
    config.model.classifier_bias = not needs.class_centres
    config.model.classifier_input = needs.classifier_sees
    if needs.bank_first:
        config.bank.exclude_self = False


def _set_cone(config: ConfigDict, **fields: Any) -> None:
    config.objective.cone.update(fields)


def _contrastive_view(config: ConfigDict) -> None:
    config.objective.cone.contrastive_view = "key"
    config.data.views = 2


def _two_views(config: ConfigDict) -> None:
    config.objective.cone.views = "rows"
    config.data.views = 2


def _add_projection(config: ConfigDict) -> None:
    config.model.projection = True


def _add_cross_entropy(config: ConfigDict) -> None:
    """Cross-entropy beside CMSF or NNCLR, on CoNe's frame: one view, its bank and key."""
    config.objective.cmsf.ce_weight = 1.0
    config.objective.nnclr.ce_weight = 1.0
    config.objective.nnclr.lookup = "key"
    config.data.views = 1


# What the paper's ablations change, for any recipe.
VARIANTS: dict[str, Option] = {
    "no_dc": functools.partial(_set_cone, dc_weight=0.0),
    "no_contrast": functools.partial(_set_cone, sup_weight=0.0),
    "sup_out": functools.partial(_set_cone, contrast="sup_out"),
    "contrastive_view": _contrastive_view,
    "two_views": _two_views,
    "projection": _add_projection,
    "with_ce": _add_cross_entropy,
}


def validate(config: ConfigDict) -> None:
    """Raises `UserError` for the first field that cannot work.

    >>> config = default()
    >>> config.bank.size = 100
    >>> validate(config)
    Traceback (most recent call last):
    cone_jax.errors.UserError: bank.size (100) must be at least the global batch (256)
    """
    settings, objective = Settings.read(config), objectives.chosen(config.objective)
    _check_needs(settings, objective)
    if settings.evaluation.patience and not (
        objective.needs.classifier and settings.checkpoint.best_metric
    ):
        raise UserError(
            f"evaluation.patience ({settings.evaluation.patience}) must be 0 for a run of two "
            "stages, and without checkpoint.best_metric"
        )
    stages = [(objective.needs, settings.average.decay > 0)]
    if not objective.needs.classifier:
        linear = objectives.create("linear", config.objective.linear)
        stages.append((linear.needs, False))
    registry.check(config, stages)


def require_classifier(config: ConfigDict, mode: str) -> None:
    """Raises `UserError` unless `config` trains a classifier, which `mode` requires.

    >>> require_classifier(load_recipe("coco"), "probe")
    Traceback (most recent call last):
    cone_jax.errors.UserError: --mode=probe is for classifiers; objective.name ('detection') ...
    """
    if objectives.chosen(config.objective).needs.labels != "class":
        raise UserError(
            f"--mode={mode} is for classifiers; objective.name ({config.objective.name!r}) is "
            "not one"
        )


def _check_needs(settings: Settings, objective: objectives.Objective) -> None:
    """Checks that the rest of the config provides what the method needs."""
    needs, name, model = objective.needs, settings.objective.name, settings.model
    if needs.views != "any" and settings.data.views != 2:
        raise UserError(
            f"data.views ({settings.data.views}) must be 2 for {name}, which compares two views"
        )
    if needs.predictor and not (model.predictor and model.projection):
        raise UserError(
            f"model.predictor ({model.predictor}) and model.projection ({model.projection}) must "
            f"both be True for {name}"
        )
    if needs.class_centres and (model.classifier_bias or model.classifier != "linear"):
        raise UserError(
            f"model.classifier ({model.classifier!r}) must be 'linear' and model.classifier_bias "
            f"({model.classifier_bias}) False for {name}, whose margin is an angle"
        )
    if settings.mixing.on and not needs.mixed_labels:
        raise UserError(
            f"mixing.mixup_alpha ({settings.mixing.mixup_alpha}) and mixing.cutmix_alpha "
            f"({settings.mixing.cutmix_alpha}) must be 0 for {name}, which takes one label per "
            "image"
        )
    if settings.accumulate > 1 and (needs.whole_batch or needs.bank_first):
        raise UserError(
            f"accumulate ({settings.accumulate}) must be 1 for {name}, which needs the whole batch "
            "at once"
        )
    if needs.bank:
        _check_bank(settings, objective)
    objective.check_settings(settings)


def _check_bank(settings: Settings, objective: objectives.Objective) -> None:
    needs, name = objective.needs, settings.objective.name
    rows = settings.batch_size * (2 if needs.views == "rows" and needs.key else 1)
    if settings.bank.size < rows:
        each = " of two rows each" if rows > settings.batch_size else ""
        raise UserError(
            f"bank.size ({settings.bank.size}) must be at least the global batch "
            f"({settings.batch_size}{each})"
        )
    neighbours = getattr(objective, "neighbours", 0)
    if neighbours > settings.bank.size:
        raise UserError(
            f"objective.{name}.neighbours ({neighbours}) must be at most bank.size "
            f"({settings.bank.size})"
        )
    if needs.bank_first and settings.bank.exclude_self:
        raise UserError(
            f"bank.exclude_self (True) must be False for {name} with these settings: a sample's "
            "own key is meant to be among its neighbours"
        )


# In the project a link to its folder of that name, in an installed package a copy.
FOLDER = "configs"
PACKAGED = Path(__file__).parent.parent / "recipes"


def load_recipe(path: str, options: str = "") -> ConfigDict:
    """The config that a recipe's ``get_config(options)`` returns.

    Args:
        path: the recipe's file, or the name of one that comes with the package.
        options: what follows the colon on the command line.

    Returns:
        A config to change and give to `train`. It refuses fields that do not exist.

    >>> load_recipe("digits", "cross_entropy").objective.name
    'cross_entropy'
    """
    return call(path, options, flag="--config", function="get_config")


def call(path: str, options: str, *, flag: str, function: str, folder: str = "") -> Any:
    """Calls a function of the file, which is looked for in `folder` of the folder of recipes."""
    if options.startswith("//"):
        raise UserError(f"{flag} ({path}:{options}) must be a local file; copy it here")
    if (file := find(path, folder)) is None:
        raise UserError(f"{flag} ({path}) is not a file; {_cure(path, folder)}")
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{flag} ({file}) must be a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise UserError(f"{flag} ({file}) must define {function}(options)")
    get = getattr(module, function)
    without = not options and not inspect.signature(get).parameters
    return get() if without else get(options)


def find(path: str, folder: str = "") -> Path | None:
    """The file that `path` means, or None.

    >>> find("digits").name, find("configs/sweeps/momentum.py").name, find("digit")
    ('digits.py', 'momentum.py', None)
    """
    return next((file for file in _candidates(path, folder) if file.is_file()), None)


def _candidates(path: str, folder: str) -> Iterator[Path]:
    """What `path` may mean: the first of them that exists."""
    if _is_name(path):
        places = (Path(FOLDER, folder), Path(), PACKAGED / folder)
        yield from (place / f"{path}.py" for place in places)
    yield Path(path).expanduser()
    if Path(path).parts[:1] == (FOLDER,):
        yield PACKAGED.joinpath(*Path(path).parts[1:])


def _is_name(path: str) -> bool:
    return re.fullmatch(r"\w+", path) is not None


def _cure(path: str, folder: str) -> str:
    """The nearest existing recipe, in the form in which the user wrote theirs."""
    places = (Path(FOLDER, folder), PACKAGED / folder)
    names = {file.stem for place in places for file in place.glob("*.py")}
    if _is_name(path):
        return closest(path, names)
    return closest(path, [str(Path(FOLDER, folder, f"{name}.py")) for name in names])
