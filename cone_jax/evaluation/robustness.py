"""The evaluator ``robustness``: top-1 error under fifteen corruptions at five severities."""

import dataclasses
import re
from pathlib import Path
from typing import ClassVar

from cone_jax import storage
from cone_jax.console import Metric, Report
from cone_jax.data.sources import Source
from cone_jax.errors import UserError
from cone_jax.evaluation import accuracy, corrupted_sets, corruption_error
from cone_jax.evaluation.corrupted_sets import CorruptedSet
from cone_jax.evaluation.corruption_error import CorruptionErrors, Normalised
from cone_jax.evaluation.corruptions import CORRUPTIONS, SEVERITIES, frost
from cone_jax.evaluation.corruptions.parameters import PARAMETERS
from cone_jax.evaluation.registry import EvaluatedRun, Evaluator, Outcome, Variables

# The name of AlexNet as a baseline; any other is the directory of a run.
ALEXNET = "alexnet"
ALEXNET_CLASSES = 1000  # of the pictures that its errors are of: ImageNet's


@dataclasses.dataclass(frozen=True)
class RobustnessOutcome(Outcome):
    """Errors by corruption and severity, and what they are in terms of a baseline."""

    errors: CorruptionErrors
    normalised: Normalised | None
    baseline: str
    data: str
    pictures: int  # corrupted ones of each kind, and clean ones
    frost: str = ""  # which it was, where pictures were corrupted here
    remark: str = ""  # what keeps the numbers from standing beside published ones


@dataclasses.dataclass(frozen=True)
class Robustness(Evaluator):
    """Errors on corrupted test pictures.

    `data` is empty to corrupt the run's own test pictures, or the name of a TFDS set such as
    ``imagenet2012_corrupted``, or a folder ``<corruption>/<severity>/<class>/``. `baseline` is
    ``alexnet``, the directory of a run that was evaluated the same way, or empty for plain errors.
    `frost` is the folder with the benchmark's photographs of frost, ``generated`` for a texture, or
    ``auto``: those of the package imagecorruptions where it is installed.
    """

    data: str = ""
    baseline: str = ""
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    parameters: str = "auto"  # imagenet, cifar, or by the size of the pictures
    seed: int = 0  # of pictures made here
    frost: str = frost.INSTALLED

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("error", better="lower", unit="share"),
        Metric("clean_error", better="lower", unit="share"),
        # In per cent of a baseline's; only where there is one.
        Metric("mce", better="lower"),
        Metric("relative_mce", better="lower"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for corruption in self.corruptions:
            if corruption not in CORRUPTIONS:
                known = ", ".join(CORRUPTIONS)
                raise ValueError(f"corruptions must be among {known}, not {corruption!r}")
        if not self.corruptions:
            raise ValueError("corruptions must not be empty")
        if self.baseline and set(self.corruptions) != set(CORRUPTIONS):
            raise ValueError("corruptions must be all fifteen when there is a baseline")
        if self.parameters not in ("auto", *PARAMETERS):
            known = ", ".join(("auto", *PARAMETERS))
            raise ValueError(f"parameters must be one of {known}, not {self.parameters!r}")

    @property
    def default_name(self) -> str:
        """Contains the name of the data, so that one set's results do not replace another's."""
        if not self.data:
            return "robustness"
        return "robustness_" + re.sub(r"[^\w.-]+", "_", Path(self.data).name)

    def declared(self) -> dict[str, Metric]:
        every = super().declared()
        found = list(every) if self.baseline else list(every)[:2]
        return {name: every[name] for name in found}

    def evaluate(
        self, run: EvaluatedRun, variables: Variables, report: Report
    ) -> RobustnessOutcome:
        baseline = self._baseline()  # first: a mistake in it should not cost an evaluation

        classes: set[int] = set()

        def error(source: Source, transforms: tuple[str, ...] | None = None) -> float:
            batches = run.eval_stream(source, report, transforms)
            examples = accuracy.examine(run.learner, variables, batches)
            classes.update(examples.labels.tolist())
            return float((examples.predictions != examples.labels).mean())

        folder = "" if self.data else frost.find(self.frost)
        first = self._open(run, self.corruptions[0], SEVERITIES[0], folder).source
        same = corrupted_sets.clean_counterpart(run.dataset.test, first)
        if same is None:
            report(
                f"no clean error: the test split has {len(run.dataset.test):,} pictures, "
                f"{self.data} {len(first):,}, and their names do not match"
            )
        clean = float("nan") if same is None else error(same)
        corrupted: dict[str, tuple[float, ...]] = {}
        for corruption in self.corruptions:
            sets = [self._open(run, corruption, severity, folder) for severity in SEVERITIES]
            self._require_as_many(corruption, sets, len(first))
            corrupted[corruption] = tuple(error(each.source, each.transforms) for each in sets)
            shown = ", ".join(f"{each:.1%}" for each in corrupted[corruption])
            report(f"{corruption}: error {shown}")
        errors = CorruptionErrors(clean, corrupted)
        scores = {"error": errors.overall(), "clean_error": clean}
        normalised = None
        if baseline is not None:
            normalised = corruption_error.normalise(errors, baseline)
            scores |= {"mce": normalised.mce, "relative_mce": normalised.relative_mce}
        which = "" if self.data or "frost" not in self.corruptions else frost.describe(folder)
        remark = self._remark(len(classes))
        if remark:
            report(remark)
        about = (self.baseline, self.data, len(first), which, remark)
        return RobustnessOutcome(scores, errors, normalised, *about)

    def _remark(self, classes: int) -> str:
        if self.baseline != ALEXNET or classes >= ALEXNET_CLASSES:
            return ""
        return (
            f"AlexNet's errors are for all {ALEXNET_CLASSES:,} classes of ImageNet, these pictures "
            f"have {classes}: compare mCE only for the same pictures"
        )

    def _open(
        self, run: EvaluatedRun, corruption: str, severity: int, frost_folder: str
    ) -> CorruptedSet:
        if self.data:
            return corrupted_sets.ready_made(run, self.data, corruption, severity)
        return corrupted_sets.generated(
            run,
            corruption,
            severity,
            seed=self.seed,
            parameters=self.parameters,
            frost_folder=frost_folder,
        )

    def _require_as_many(self, corruption: str, sets: list[CorruptedSet], wanted: int) -> None:
        """Means over sets of different pictures would compare nothing."""
        for severity, each in zip(SEVERITIES, sets, strict=True):
            if len(each.source) != wanted:
                raise UserError(
                    f"data ({self.data}) has {len(each.source):,} pictures under {corruption} "
                    f"{severity}, but {wanted:,} under {self.corruptions[0]} {SEVERITIES[0]}; "
                    "give all sets the same pictures"
                )

    def _baseline(self) -> CorruptionErrors | None:
        if not self.baseline:
            return None
        if self.baseline == ALEXNET:
            return corruption_error.ALEXNET
        directory = storage.path(self.baseline, "baseline") / "evaluation" / self.prefix
        return corruption_error.read(directory / corruption_error.ERRORS_FILE)
