"""Checkpoints of a run: the whole train state, the position in the data, and the progress.

Orbax writes `checkpoints/<step>/` in the background and makes it visible only when complete.
The latest few are kept, and the best one by a named metric: the highest, or the lowest where less
is better.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from orbax.checkpoint import checkpoint_managers as policies

from cone_jax import distributed, storage
from cone_jax.console import Report
from cone_jax.errors import Failure, TrainingFailed, UserError
from cone_jax.workdir import compatibility, integrity
from cone_jax.workdir.orbax_s3 import ocp

CHECKPOINTS_FOLDER = "checkpoints"
# Where checkpoints go that turn out to be damaged: out of the way, but not lost.
DAMAGED_FOLDER = "damaged"
# Orbax puts it last into a checkpoint in a bucket; without it the checkpoint does not count.
COMMIT_FILE = "commit_success.txt"

Tree = Any


class Restored(NamedTuple):
    """The contents of a checkpoint."""

    state: Tree
    data: dict[str, Any]  # state of the training stream
    progress: dict[str, Any]  # what the loop knows beside the state


class Checkpoints:
    """The checkpoints below a workdir. A context manager: leaving it waits for writes."""

    def __init__(
        self,
        workdir: Path | str,
        *,
        keep: int = 1,
        best_metric: str = "",
        lower_is_better: bool = False,
        read_only: bool = False,
    ) -> None:
        self._workdir = storage.path(workdir, "workdir").absolute()
        self._directory = self._workdir / CHECKPOINTS_FOLDER
        self._best_metric = best_metric
        self._lower_is_better = lower_is_better
        self._damage: list[str] = []
        self._known_good: int | None = None
        self._finalised: int | None = None
        if not read_only:  # before Orbax reads anything
            if distributed.is_primary():
                self._damage = self._set_damaged_aside()
            distributed.barrier("damaged checkpoints are set aside")
        # Readers need no agreement: each takes what it needs, also while others do not read.
        alone = {"primary_host": jax.process_index(), "active_processes": {jax.process_index()}}
        processes = ocp.options.MultiprocessingOptions(**alone if read_only else {})
        handlers = {
            "state": ocp.PyTreeCheckpointHandler(multiprocessing_options=processes),
            "data": ocp.JsonCheckpointHandler(multiprocessing_options=processes),
            "progress": ocp.JsonCheckpointHandler(multiprocessing_options=processes),
        }
        keep_best = policies.BestN(
            get_metric_fn=self._rank, n=1, keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            best_fn=self._rank,  # makes Orbax write the metrics beside the checkpoint
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), keep_best]),
            # What a killed process left half written is of no use; but a reader must not touch
            # what a running process is writing.
            cleanup_tmp_directories=not read_only,
            create=not read_only,
            multiprocessing_options=processes,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._update_manifests),
        )
        try:
            self._manager = ocp.CheckpointManager(
                self._directory, options=options, item_handlers=handlers
            )
        except ValueError as error:
            raise UserError(f"{self._directory} cannot be read: {error}") from error

    @property
    def workdir(self) -> Path:
        """The directory that they are below."""
        return self._workdir

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *rest: object
    ) -> None:
        # Closing waits for all processes, and after such an error some may be gone.
        if not distributed.is_desertion(error):
            self._manager.close()

    def save(
        self,
        step: int,
        state: Tree,
        data: dict[str, Any],
        progress: dict[str, Any],
        metrics: dict[str, float] | None = None,
    ) -> None:
        """Starts writing; returns once the arrays have been copied out of the devices' reach."""
        self._manager.wait_until_finished()  # raises where the one before could not be completed
        self._known_good = self._finalised
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave(state),
                data=ocp.args.JsonSave(data),
                progress=ocp.args.JsonSave(progress),
            ),
            metrics=metrics or {},
            force=True,
        )

    @property
    def last_good(self) -> str:
        """Names the intact checkpoint, without contacting the store.

        A checkpoint counts a moment before Orbax says so: until then it may be this one or the
        one before it, and only the store knows. So it is, too, where that moment failed.
        """
        before, newest = self._known_good, self._finalised
        if newest is None:
            return "there is no checkpoint yet"
        if before == newest or self._was_completed(newest):
            return f"checkpoint {newest} is intact"
        if before is None:
            return f"checkpoint {newest} was being completed"
        return f"checkpoint {newest} is intact, or else {before}"

    def _was_completed(self, step: int) -> bool:
        """Whether Orbax has finished the newest checkpoint without an error."""
        if self._manager.is_saving_in_progress():
            return False
        with contextlib.suppress(Exception):  # the loop gets it, too
            self._manager.wait_until_finished()  # returns at once, and forgets a step that failed
        return step in self._manager.all_steps()

    def latest_step(self) -> int | None:
        """The newest complete checkpoint."""
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The checkpoint that is best by the best metric, the later one of equals."""
        measured = {step: self._manager.metrics(step) or {} for step in self._manager.all_steps()}
        scored = [(self._rank(m), step) for step, m in measured.items() if self._best_metric in m]
        return max(scored)[1] if scored else None

    def newest_intact_step(self, report: Report) -> int | None:
        """The newest checkpoint whose files are as written; None where there never was one.

        Damaged ones, which were moved to `damaged/`, are reported. When all are damaged, that is an
        error: a run must not silently start from zero. With several processes the first decides.
        """
        for line in self._damage:
            report(line)
        nothing = -1
        found = self._manager.latest_step() if distributed.is_primary() else None
        if found is None and distributed.is_primary() and (self._workdir / DAMAGED_FOLDER).exists():
            raise TrainingFailed(
                f"every checkpoint of {self._workdir} is damaged; they are in "
                f"{self._workdir / DAMAGED_FOLDER}; start anew with another --workdir"
            )
        step = distributed.from_primary(nothing if found is None else found)
        self._known_good = self._finalised = found
        return None if step == nothing else step

    def _set_damaged_aside(self) -> list[str]:
        """Moves damaged checkpoints away, and says which.

        Down to the newest intact one all files are looked at; of older ones only those that
        Orbax reads when it opens the directory.
        """
        said: list[str] = []
        intact = False
        for step in reversed(_visible_steps(self._directory)):
            damage = integrity.find_damage(
                self._path(step), self._manifest(step), only="metrics" if intact else ""
            )
            if damage is None:
                intact = True
                continue
            target = self._place_for_damaged(step)
            said.append(f"checkpoint {step} is damaged ({damage}); moved to {target}")
            storage.move_directory(self._path(step), target)
        return said

    def _place_for_damaged(self, step: int) -> Path:
        directory = self._workdir / DAMAGED_FOLDER
        if directory.is_symlink():
            raise UserError(f"{directory} is a link, out of the workdir perhaps; remove it")
        directory.mkdir(exist_ok=True)
        # The same step may be damaged a second time.
        names = itertools.chain([str(step)], (f"{step}-{n}" for n in itertools.count(2)))
        return next(directory / name for name in names if not (directory / name).exists())

    def restore(self, step: int, abstract_state: Tree) -> Restored:
        """The whole checkpoint, arrays placed as `abstract_state` says.

        Raises `UserError` if it is the checkpoint of another state, naming what differs.
        """
        stored = compatibility.shapes(self._manager.item_metadata(step)["state"].tree)
        expected = compatibility.shapes(abstract_state)
        bank = getattr(abstract_state, "bank", None)
        misfit = compatibility.find_misfit(stored, expected, bank.size if bank else 0)
        if misfit:
            raise UserError(
                f"checkpoint {step} of {self._workdir} does not fit the config: {misfit}; "
                "choose another --workdir or the run's own config and data"
            )
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=_restore_args(abstract_state),
                data=ocp.args.JsonRestore(),
                progress=ocp.args.JsonRestore(),
            ),
        )
        return Restored(restored["state"], restored["data"], restored["progress"])

    def restore_fields(self, step: int, abstract_fields: dict[str, Tree]) -> dict[str, Tree]:
        """Some fields of the state only, such as ``params`` and ``batch_stats``."""
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(state=_restore_args(abstract_fields, partial_restore=True)),
        )
        return restored["state"]

    def wait(self) -> None:
        """Returns when everything saved is on disk."""
        self._manager.wait_until_finished()

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    def _manifest(self, step: int) -> Path:
        return self._workdir / integrity.MANIFESTS / f"{step}.json"

    def _update_manifests(self) -> None:
        """Writes the manifest of a checkpoint that is complete, and about to become visible.

        Orbax calls this just before it renames the temporary directory, `<step>.<something>`, or
        in a bucket, which cannot rename, before it adds the file that makes `<step>` count.
        """
        if not distributed.is_primary():
            return
        numbered = ((path.name.split(".")[0], path) for path in self._directory.iterdir())
        written = {int(name): path for name, path in numbered if name.isdecimal()}
        visible = _visible_steps(self._directory)
        for step, path in written.items():
            if step not in visible:
                integrity.write_manifest(path, self._manifest(step))
                self._finalised = step
        for manifest in self._manifest(0).parent.glob("*.json"):
            if manifest.stem.isdecimal() and int(manifest.stem) not in written:
                manifest.unlink(missing_ok=True)

    def _rank(self, metrics: dict[str, float]) -> float:
        value = metrics.get(self._best_metric, math.nan)
        if self._lower_is_better:
            value = -value
        return -math.inf if math.isnan(value) else value


def _restore_args(abstract: Tree, **options: Any) -> ocp.args.PyTreeRestore:
    restore_args = jax.tree_util.tree_map_with_path(
        _with_padding, ocp.checkpoint_utils.construct_restore_args(abstract)
    )
    return ocp.args.PyTreeRestore(item=abstract, restore_args=restore_args, **options)


def _with_padding(path: tuple[Any, ...], args: ocp.RestoreArgs) -> ocp.RestoreArgs:
    """Lets the columns of a bank be cut or padded: how much padding they have depends on devices.

    `checkpoint_fit` has seen to it that no row is lost.
    """
    of_bank = compatibility.name_of(path[:1]) == "bank"
    return dataclasses.replace(args, strict=False) if of_bank and args.global_shape else args


def _visible_steps(directory: Path) -> list[int]:
    """The steps of the complete checkpoints, in ascending order."""
    names = (path.name for path in storage.whole_directories(directory, COMMIT_FILE))
    return sorted(int(name) for name in names if name.isdecimal())


def resolve_step(
    workdir: Path | str,
    step: int | str | None = "latest",
    *,
    best_metric: str = "",
    lower_is_better: bool = False,
) -> int:
    """The number of the checkpoint that `step` means: a number, ``latest`` or ``best``.

    Only reads; raises `UserError` where there is no such checkpoint.
    """
    directory = storage.path(workdir, "workdir") / CHECKPOINTS_FOLDER
    steps = _visible_steps(directory)
    if not steps:
        raise UserError(f"workdir ({workdir}) has no checkpoint; train first with --mode=train")
    if step in (None, "latest"):
        return steps[-1]
    if step == "best":
        with Checkpoints(
            workdir, best_metric=best_metric, lower_is_better=lower_is_better, read_only=True
        ) as checkpoints:
            best = checkpoints.best_step()
        if best is None:
            raise UserError(f"--step (best): no checkpoint of {workdir} has {best_metric!r}")
        return best
    if not str(step).isdecimal():
        raise UserError(f"--step ({step!r}) must be a number, 'latest' or 'best'")
    if int(step) not in steps:
        listing = ", ".join(map(str, steps))
        raise UserError(f"--step ({step}) has no checkpoint in {directory}; there are: {listing}")
    return int(step)


@contextlib.contextmanager
def write_failures_explained(workdir: Path) -> Iterator[None]:
    """Turns failed writes into `TrainingFailed`, saying what is safe and how to go on."""
    try:
        yield
    except (UserError, Failure):  # say already what there is to say
        raise
    except Exception as error:
        said = storage.write_failure(error)
        if said is None:
            raise
        try:
            saved = f"checkpoint {resolve_step(workdir)} is intact"
        except UserError:
            saved = "there is no checkpoint yet"
        raise TrainingFailed(
            f"workdir ({workdir}) cannot be written: {said}; {saved}; fix that, and start again "
            "with the same flags"
        ) from error
