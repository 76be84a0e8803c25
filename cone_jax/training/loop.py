"""Training from a config to a finished run in a directory."""

import time
from pathlib import Path

import jax
from clu import parameter_overview
from ml_collections import ConfigDict
from rich.console import Console

from cone_jax import workdir
from cone_jax.checkpointing import Checkpoints, Restored
from cone_jax.errors import UserError
from cone_jax.metric_writers import METRICS_FILE, MetricWriter, latest_values
from cone_jax.training.progress import ProgressDisplay
from cone_jax.training.run import Run
from cone_jax.training.train_log import TrainLog
from cone_jax.training.train_step import train_step


def train(
    config: ConfigDict, directory: Path | str, console: Console | None = None
) -> dict[str, float]:
    """Trains until the config's last step, going on where an earlier start left off.

    Returns the final metrics, such as ``test/top1``. Everything else is in `directory`.
    """
    directory = Path(directory).expanduser().absolute()
    console = console or Console()
    run = Run.open(config)
    workdir.claim(directory, config)
    with Checkpoints(
        directory, keep=config.checkpoint.keep, best_metric=config.checkpoint.best_metric
    ) as checkpoints:
        start = _resume(run, checkpoints)
        first_step = int(start.state.step)
        if first_step < run.total_steps:
            overview = parameter_overview.get_parameter_overview(
                start.state.params, include_stats=False, max_lines=40
            )
            console.print(overview, soft_wrap=True, highlight=False, markup=False)
            console.print(_headline(run, first_step), soft_wrap=True, highlight=False)
            display = ProgressDisplay(
                console,
                total_steps=run.total_steps,
                steps_per_epoch=run.steps_per_epoch,
                batch_size=config.batch_size,
                first_step=first_step,
            )
            with MetricWriter(directory, last_step=first_step) as writer, display:
                writer.write_text("config", f"```\n{config}\n```")
                _fit(run, start, checkpoints, writer, display)
        else:
            line = f"{directory} is finished; another --workdir starts a new run"
            console.print(line, soft_wrap=True)
    return latest_values(directory / METRICS_FILE)


def _fit(
    run: Run,
    start: Restored,
    checkpoints: Checkpoints,
    writer: MetricWriter,
    display: ProgressDisplay,
) -> None:
    """The loop itself. The host stays one step ahead of the devices, and no further."""
    config, state = run.config, start.state
    evaluate_every = _interval(config.evaluation.every_epochs, run)
    save_every = _interval(config.checkpoint.every_epochs, run)
    log = TrainLog(writer, display, every=config.log_every, saved=start.progress["window"])
    seconds_before, began = start.progress["seconds"], time.monotonic()
    first_step = int(state.step)
    stream = run.train_stream(first_step, display.say)
    previous: jax.Array | None = None
    for step, batch in enumerate(stream, start=first_step + 1):
        state, metrics = train_step(state, batch)
        jax.block_until_ready(previous)
        previous = metrics["loss"]
        last = step == run.total_steps
        log.add(step, metrics, last=last)
        display.advance(step)
        scores: dict[str, float] = {}
        if last or step % evaluate_every == 0:
            scores = run.evaluate(state.variables, display.say).scalars("test")
            log.write(step, scores)
            display.say(_score_line(step, scores))
            display.restart_clock(step)
        if last or step % save_every == 0:
            log.flush()
            seconds = seconds_before + time.monotonic() - began
            writer.write_timing(step, {"time/seconds": seconds})
            writer.sync()
            progress = {"window": log.to_save(), "seconds": seconds}
            checkpoints.save(step, state, _data_state(run, step), progress, scores)


def _resume(run: Run, checkpoints: Checkpoints) -> Restored:
    """The newest checkpoint, or the beginning."""
    step = checkpoints.latest_step()
    if step is None:
        return Restored(run.init_state(), _data_state(run, 0), {"window": {}, "seconds": 0.0})
    restored = checkpoints.restore(step, run.abstract_state())
    expected = _data_state(run, step)
    if restored.data != expected:
        raise UserError(
            f"data: the checkpoint at step {step} was made with {restored.data}, "
            f"now the training set gives {expected}; restore the data or use another --workdir"
        )
    return restored


def _data_state(run: Run, step: int) -> dict[str, int]:
    """The position in the training stream, for any number of processes."""
    return {"next_step": step, "records": len(run.dataset.train), "seed": run.config.seed}


def _interval(epochs: float, run: Run) -> int:
    """Epochs as steps; 0 epochs: at the end only."""
    return max(round(epochs * run.steps_per_epoch), 1) if epochs > 0 else run.total_steps


def _headline(run: Run, first_step: int) -> str:
    config = run.config
    kinds = {device.device_kind for device in run.mesh.devices.flat}
    begin = f"from step {first_step:,}" if first_step else "from the start"
    return (
        f"{config.objective.name} · {config.model.name} · {len(run.dataset.train):,} images, "
        f"{run.dataset.num_classes} classes · batch {config.batch_size} on {run.mesh.size} x "
        f"{', '.join(sorted(kinds))} · {run.total_steps:,} steps {begin}"
    )


def _score_line(step: int, scores: dict[str, float]) -> str:
    return f"step {step}: test top-1 {scores['test/top1']:.2%}, loss {scores['test/loss']:.4f}"
