"""Training from a config to a finished run in a directory."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clu import parameter_overview
from ml_collections import ConfigDict
from rich.console import Console

from cone_jax import distributed, storage, workdir
from cone_jax.console import Report, plain_lines
from cone_jax.data import datasets, sources
from cone_jax.errors import Interrupted, UserError
from cone_jax.evaluation import registry
from cone_jax.evaluation.accuracy import interval_text
from cone_jax.evaluation.registry import Evaluator
from cone_jax.training import pretrained, train_log
from cone_jax.training.faults import Interruption, NonfiniteGuard, Patience
from cone_jax.training.run import Run
from cone_jax.training.train_log import Profile, ProgressDisplay, TrainLog
from cone_jax.training.train_state import TrainState, laid_out
from cone_jax.training.train_step import train_step
from cone_jax.workdir import lock, metrics
from cone_jax.workdir.checkpoints import Checkpoints, Restored, write_failures_explained
from cone_jax.workdir.lock import Lock
from cone_jax.workdir.metrics import (
    METRICS_FILE,
    MetricWriter,
    SilentWriter,
    WandbMirror,
    latest_values,
)

_SHOWN_FILES = 20  # unreadable ones
# Sources whose pictures are somebody's own files; others were written by a program that read them.
_OF_PICTURES = ("image_folder", "table", "webdataset", "hf_datasets", "coco")
# Learning rates that no trained network should start with.
_FROM_SCRATCH = {"sgd": 0.05, "adamw": 1e-3}
_SMALL_TEST_SET = 2000  # an accuracy on fewer pictures is shown with its interval

# Called after an evaluation to look at the state; must not change it.
Watch = Callable[[Run, int, TrainState, MetricWriter], None]


@distributed.lost_processes_explained()
def train(
    config: ConfigDict,
    directory: Path | str,
    console: Console | None = None,
    watch: Watch | None = None,
) -> dict[str, float]:
    """Trains until the config's last step, continuing where an earlier start left off.

        import cone_jax

        config = cone_jax.load_recipe("digits")
        config.epochs = 5
        cone_jax.train(config, "runs/digits")["test/top1"]

    Args:
        config: from `load_recipe`. If the run exists already, it must have the same config.
        directory: the run's own, on a disk or below ``gs://``; made if it is not there.
        console: where to print; None: the terminal.
        watch: called after every evaluation, for programs that follow a run.

    Returns:
        The final metrics, such as ``test/top1``. Everything else is in `directory`.
    """
    directory = storage.path(directory, "workdir").absolute()
    primary = distributed.is_primary()
    console = (console or Console()) if primary else Console(quiet=True)
    say = plain_lines(console)
    with workdir.unwritable_refused(directory):  # before anything is opened or compiled
        storage.reach(directory, config.checkpoint.store_timeout, say)
    config = _settled(config, directory, say)
    run = Run.open(config)
    metrics.check_wandb(config)
    if not workdir.has_checkpoints(directory):
        _look_before_training(run, say)
    with (
        write_failures_explained(directory),
        lock.held(directory, say, config.checkpoint.store_timeout) as ownership,
    ):
        if primary:
            workdir.claim(directory, config)
            workdir.keep_class_names(directory, run.dataset.class_names)
        distributed.barrier("the workdir is claimed")
        _train_to_the_end(run, directory, console, watch, ownership)
    distributed.barrier("everything is written")
    return latest_values(directory / METRICS_FILE)


def _train_to_the_end(
    run: Run, directory: Path, console: Console, watch: Watch | None, ownership: Lock | None
) -> None:
    """Trains in a directory that is this run's."""
    config, say = run.config, plain_lines(console)
    keep, best_metric = config.checkpoint.keep, config.checkpoint.best_metric
    best = {"best_metric": best_metric, "lower_is_better": registry.lower_is_better(config)}
    with Checkpoints(directory, keep=keep, **best) as checkpoints:
        if ownership is not None:
            ownership.watch(checkpoints)
        start = _resume(run, directory, checkpoints, say)
        first_step = int(start.state.step)
        if not _is_finished(run, directory, first_step):
            say(_parameter_line(start.state.params))
            with (
                _open_writer(config, directory, first_step, ownership) as writer,
                Interruption() as interruption,
            ):
                parameters = parameter_overview.get_parameter_overview(
                    start.state.params, include_stats=False
                )
                for name, text in (("config", config), ("parameters", parameters)):
                    writer.write_text(name, f"```\n{text}\n```")
                for stage in run.stages:
                    if int(start.state.step) < stage.last_step:
                        start = _run_stage(
                            stage, start, checkpoints, writer, interruption, console, watch
                        )
        else:
            say(f"{directory} is finished; another --workdir starts a new run")


def _settled(config: ConfigDict, directory: Path, say: Report) -> ConfigDict:
    """The config with whatever its recipe leaves open."""
    if not config.derive:
        return config
    from cone_jax.training import plan  # most recipes leave nothing open

    return plan.resolve(config, directory, say)


def _is_finished(run: Run, directory: Path, step: int) -> bool:
    return step >= run.total_steps or Patience(run, directory, step, print).exhausted


def _look_before_training(run: Run, say: Report) -> None:
    """Checks data and weights before anything is written."""
    datasets.check_classes(run.dataset, run.config.data, say)
    if run.config.data.source in _OF_PICTURES and distributed.is_primary():
        _look_at_pictures(run, say)
    optimizer = run.config.optimizer
    if run.config.model.options.bn_frozen and not run.config.init_from:
        raise UserError(
            "model.options.bn_frozen (True) needs weights whose statistics it can keep; give "
            "--config.init_from, or set it to False"
        )
    if run.config.init_from:
        pretrained.check(run, say)
        gentle = min(
            optimizer.backbone_rate, optimizer.layer_decay
        ) < 1 or optimizer.learning_rate < _FROM_SCRATCH.get(optimizer.name, math.inf)
        if not gentle:
            say(
                f"warning: optimizer.learning_rate ({optimizer.learning_rate:g}) is meant for "
                f"training from scratch with {optimizer.name} and will undo much of init_from; "
                "use configs/finetune.py, or lower the rate or optimizer.backbone_rate"
            )
    elif warning := run.learner.objective.missing_weights():
        say(f"warning: init_from is empty, but {warning}")


def _look_at_pictures(run: Run, say: Report) -> None:
    """Looks for folders that may not be classes and unusable files, in a few seconds."""
    from cone_jax.data import inspection, pipeline  # a run on arrays has no files to look at

    data = run.config.data
    alone = run.share.count == 1  # otherwise another process would wait for this one
    if data.source == "image_folder":
        for level in inspection.wrong_level(Path(data.path).expanduser(), run.dataset.class_names):
            say(f"warning: data.path ({level.path}): {level.detail}")
    for split in (run.dataset.train, run.dataset.test):
        try:
            bad, looked = inspection.quick_look(split, threads=data.threads)
        except UserError as error:
            if alone:
                raise
            say(f"warning: {error}")
            continue
        for path, reason in bad[:_SHOWN_FILES]:
            say(f"unreadable: {path}: {reason}")
        if bad:
            more = "" if sources.has_objects(split) else "; --mode=check tells more"
            say(f"{len(bad)} of {looked:,} pictures cannot be read{more}")
        if bad and alone:
            last = f"{bad[-1][0]} ({bad[-1][1]})"
            pipeline.check_damaged(split, len(bad), len(split), data.damaged_limit, last)


def _length_field(config: ConfigDict) -> str:
    """The field that decides the length of the run."""
    if config.steps:
        return "steps"
    return "budget" if "epochs" in dict(config.derive) else "epochs"


def _open_writer(
    config: ConfigDict, directory: Path, first_step: int, ownership: Lock | None
) -> MetricWriter:
    if ownership is None:
        return SilentWriter()
    mirror = WandbMirror(config, directory) if config.wandb_project else None
    return MetricWriter(directory, first_step, mirror, before_sync=ownership.check)


def _run_stage(
    stage: Run,
    start: Restored,
    checkpoints: Checkpoints,
    writer: MetricWriter,
    interruption: Interruption,
    console: Console,
    watch: Watch | None,
) -> Restored:
    """Trains to the end of a stage, from where `start` is: inside it, or at its beginning."""
    first_step = int(start.state.step)
    if first_step == stage.first_step > 0:
        start = start._replace(state=stage.start_from(start.state))
    say = plain_lines(console)
    say(_headline(stage, first_step))
    for line in stage.idle_terms():
        say(line)
    display = ProgressDisplay(
        console,
        total_steps=stage.last_step,
        steps_per_epoch=stage.steps_per_epoch,
        batch_size=stage.config.batch_size,
        first_step=first_step,
        epoch_zero=stage.first_step,
        length_field=_length_field(stage.config),
    )
    profile = Profile(stage.config.profile_steps, checkpoints.workdir)
    with display, train_log.explained(stage.config, stage.mesh), contextlib.closing(profile):
        return _fit(stage, start, checkpoints, writer, display, interruption, watch, profile)


def _fit(
    run: Run,
    start: Restored,
    checkpoints: Checkpoints,
    writer: MetricWriter,
    display: ProgressDisplay,
    interruption: Interruption,
    watch: Watch | None,
    profile: Profile,
) -> Restored:
    """The loop itself. The host stays one step ahead of the devices, and no further."""
    config, state = run.config, start.state
    evaluators = [(evaluator, _evaluation_interval(evaluator, run)) for evaluator in run.evaluators]
    save_every = _interval(config.checkpoint.every_epochs, run)
    log = TrainLog(writer, display, every=config.log_every, saved=start.progress["window"])
    seconds_before, began = start.progress["seconds"], time.monotonic()
    first_step = int(state.step)
    stream = run.train_stream(first_step, display.say)
    guard = NonfiniteGuard(run, checkpoints, writer, display.say, start.progress["skipped"])
    patience = Patience(run, checkpoints.workdir, first_step, display.say)
    for step, batch in enumerate(stream, start=first_step + 1):
        if step == first_step + 1:
            train_log.say_memory(state, batch, display.say)
        profile.before(step)
        state, metrics = train_step(state, batch)
        if traced := profile.after(step, metrics):
            display.say(traced)
        guard.add(step, metrics)  # waits for the step before
        last = step == run.last_step
        log.add(step, metrics, last=last)
        display.advance(step)
        scores: dict[str, float] = {}
        due = [item for item, every in evaluators if last or (step - run.first_step) % every == 0]
        if due:
            guard.check()
            scores = _evaluate(run, due, state, display.say)
            log.write(step, scores)
            display.say(_score_line(run, step, scores))
            if watch is not None:
                watch(run, step, state, writer)
            display.restart_clock(step)
        ends = last or patience.add(scores)
        stop = not ends and interruption.requested(step)
        if ends or stop or (step - run.first_step) % save_every == 0:
            guard.check()
            guard.require_finite(step, state)
            log.flush()
            seconds = seconds_before + time.monotonic() - began
            writer.write_timing(step, {"time/seconds": seconds})
            writer.sync()
            progress = {"window": log.to_save(), "seconds": seconds, "skipped": guard.skipped}
            checkpoints.save(step, state, _data_state(run, step), progress, scores)
        if stop:
            raise Interrupted(step)
        if ends:
            break
    return Restored(state, _data_state(run, step), progress)


def _evaluate(
    run: Run, evaluators: list[Evaluator], state: TrainState, report: Report
) -> dict[str, float]:
    scores: dict[str, float] = {}
    for evaluator in evaluators:
        network = state.network(evaluator.network)
        scores |= evaluator.named(evaluator.evaluate(run, network, report))
    return scores


def _resume(run: Run, directory: Path, checkpoints: Checkpoints, report: Report) -> Restored:
    """The newest intact checkpoint, or the beginning."""
    step = checkpoints.newest_intact_step(report)
    if step is None:
        state = _initial_state(run, directory, report)
        return Restored(state, _data_state(run, 0), {"window": {}, "seconds": 0.0, "skipped": 0})
    restored = checkpoints.restore(step, run.stage_at(step).abstract_state())
    expected = _data_state(run, step)
    if restored.data != expected:
        raise UserError(
            f"data: the checkpoint at step {step} was made with {restored.data}, "
            f"now the training set gives {expected}; restore the data or use another --workdir"
        )
    return restored._replace(state=laid_out(restored.state))


def _initial_state(run: Run, directory: Path, report: Report) -> TrainState:
    if not run.config.init_from:
        return run.init_state()
    state, account = pretrained.load(run, report)
    if distributed.is_primary():
        workdir.keep_account(directory, account.table())
    return state


def _data_state(run: Run, step: int) -> dict[str, int]:
    """The position in the training stream, for any number of processes."""
    return {"next_step": step, "records": len(run.dataset.train), "seed": run.config.seed}


def _interval(epochs: float, run: Run) -> int:
    """Epochs as steps; 0 epochs: at the end only."""
    return max(round(epochs * run.steps_per_epoch), 1) if epochs > 0 else run.last_step


def _evaluation_interval(evaluator: Evaluator, run: Run) -> int:
    own = evaluator.every_epochs
    return _interval(run.config.evaluation.every_epochs if own is None else own, run)


def _parameter_line(params: Mapping[str, Any]) -> str:
    counts = {part: parameter_overview.count_parameters(tree) for part, tree in params.items()}
    parts = ", ".join(f"{part} {count:,}" for part, count in counts.items())
    return f"parameters: {sum(counts.values()):,} ({parts})"


def _headline(run: Run, first_step: int) -> str:
    config = run.config
    kinds = {device.device_kind for device in run.mesh.devices.flat}
    begin = f"from step {first_step:,}" if first_step else "from the start"
    end = f"{run.last_step:,} of {run.total_steps:,}" if run.following else f"{run.last_step:,}"
    return (
        f"{config.objective.name} · {config.model.name} · {len(run.dataset.train):,} images, "
        f"{run.dataset.num_classes} classes · batch {config.batch_size} on {run.mesh.size} x "
        f"{', '.join(sorted(kinds))} · {end} steps {begin}"
    )


def _score_line(run: Run, step: int, scores: dict[str, float]) -> str:
    """The first score of each evaluator, in one line; of the test split the loss as well."""
    shown: dict[str, str] = {}
    for name, score in scores.items():
        shown.setdefault(name.partition("/")[0], f"{name} {score:.4f}")
    if "test/top1" in scores:
        top1, tested = scores["test/top1"], len(run.dataset.test)
        sure = f" ({interval_text(top1, tested)})" if tested < _SMALL_TEST_SET else ""
        shown["test"] = f"test top-1 {top1:.2%}{sure}, loss {scores['test/loss']:.4f}"
    epoch = (step - run.first_step) / run.steps_per_epoch
    return f"step {step} (epoch {epoch:.4g}): {', '.join(shown.values())}"
