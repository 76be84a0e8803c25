"""The evaluator ``detection``: average precision of boxes and masks, by COCO's own program.

Detections come back from the devices for every picture once, in every process, and are judged on
the host; so the numbers do not depend on how many devices or processes there are.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from cone_jax import distributed, objectives
from cone_jax.console import Chart, Metric, Report
from cone_jax.data import datasets, masks, on_device
from cone_jax.data.object_drawing import Drawn
from cone_jax.data.sources import Source, coco_source
from cone_jax.detection import Detections, Detector, Settings
from cone_jax.evaluation import coco_metric, inference
from cone_jax.evaluation.coco_metric import SUMMARY, Score
from cone_jax.evaluation.registry import EvaluatedRun, Evaluator, Outcome, Variables

_CHART = Chart("ap", "Average precision", "AP, %", "By COCO's metric.", factor=100.0)
KINDS = {"box": "bbox", "mask": "segm"}
SHOWN_SCORE = 0.5  # less certain detections are in the files, but not drawn


@dataclasses.dataclass(frozen=True)
class DetectionOutcome(Outcome):
    """A detector's results for every picture of `source`, and their scores."""

    scored: dict[str, Score]  # by kind: box and, where there are masks, mask
    found: list[dict[str, Any]]  # COCO's result entries; image_id is the record, category the label
    source: Source
    class_names: tuple[str, ...]
    config: ConfigDict


@dataclasses.dataclass(frozen=True)
class DetectionEvaluator(Evaluator):
    """COCO's metric on the run's test split, or another split of its data."""

    split: str = ""  # "": data.test_split

    labels: ClassVar[Any] = "objects"
    metrics: ClassVar[tuple[Metric, ...]] = tuple(
        Metric(
            f"{kind}_{name}",
            unit="share",
            chart=_CHART if name == "ap" else None,
            label="{} " + f"{kind} {name.replace('_', ' ').replace('ap', 'AP', 1)}",
            drawn=name == "ap",
        )
        for kind in KINDS
        for name in SUMMARY
    )

    @property
    def default_name(self) -> str:
        return self.split or "test"

    def evaluate(self, run: EvaluatedRun, variables: Variables, report: Report) -> DetectionOutcome:
        source = run.dataset.test
        if self.split:
            source = datasets.open_split(run.config.data, self.split)
            source = coco_source.in_classes_of(run.dataset.train, source)
            objectives.chosen(run.config.objective).check_data(source)
        variables = with_precise_statistics(run, variables)
        found: list[dict[str, Any]] = []
        for rows in inference.infer_batches(
            run.learner, variables, run.eval_stream(source, report), detections_of
        ):
            found += _entries(rows, source)
        scored = score(source, found, with_masks=settings_of(run.learner).masks)
        return DetectionOutcome(
            scores={
                f"{kind}_{name}": value / 100.0
                for kind, each in scored.items()
                for name, value in each.summary.items()
                if np.isfinite(value)
            },
            scored=scored,
            found=found,
            source=source,
            class_names=run.dataset.class_names,
            config=run.config,
        )


def detections_of(out: Detections, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """What leaves the devices: all detections, and the picture that each is on."""
    columns = {each.name: getattr(out, each.name) for each in dataclasses.fields(out)}
    return {**columns, "id": batch["id"], "size": batch["size"]}


def unpack(rows: inference.Rows) -> Detections:
    """The detections among the rows of `detections_of`."""
    columns: dict[str, Any] = {
        each.name: rows[each.name] for each in dataclasses.fields(Detections)
    }
    return Detections(**columns)


def score(source: Source, found: Sequence[dict[str, Any]], *, with_masks: bool) -> dict[str, Score]:
    """COCO's metric of result entries whose pictures are records and categories labels."""
    truth = coco_source.truth(source)
    return {
        kind: coco_metric.evaluate(truth, found, kind=KINDS[kind])  # type: ignore[arg-type]
        for kind in KINDS
        if with_masks or kind == "box"
    }


def with_precise_statistics(run: EvaluatedRun, variables: Variables) -> Variables:
    r"""`variables` with BatchNorm's statistics over many training batches, where asked for.

    A running average is mostly of parameters that the network no longer has (precise BN: Wu and
    Johnson, "Rethinking 'Batch' in BatchNorm", arXiv 2105.07576). With the batches' means and
    variances: $\mu = E[\mu_B]$, $\sigma^2 = E[\mu_B^2 + \sigma_B^2] - \mu^2$. The batches are those
    of the first steps, the same at each evaluation.
    """
    count = settings_of(run.learner).precise_bn_batches
    if not count:
        return variables
    precise = over_batches(
        _batch_statistics(run.learner, variables, batch) for batch in _first_batches(run, count)
    )
    return {**variables, "batch_stats": jax.device_put(precise, distributed.replicated(run.mesh))}


def over_batches(statistics: Iterable[Any]) -> Any:
    """BatchNorm's statistics of several batches -> those of all together, float32.

    >>> each = [{"bn": {"mean": np.array([m]), "var": np.array([1.0])}} for m in (-2.0, 2.0)]
    >>> {name: value.tolist() for name, value in over_batches(each)["bn"].items()}
    {'mean': [0.0], 'var': [5.0]}
    """
    count, total = 0, None
    for batch in statistics:
        found = _with_squares(batch, 1)
        total = found if total is None else jax.tree.map(np.add, total, found)
        count += 1
    precise = _with_squares(jax.tree.map(lambda sums: sums / count, total), -1)
    return jax.tree.map(lambda value: value.astype(np.float32), precise)


def _with_squares(statistics: Any, sign: int) -> Any:
    """Variances plus or minus the square of their mean, in float64; plus, they can be averaged."""
    flat = {
        path: np.asarray(value, np.float64)
        for path, value in traverse_util.flatten_dict(statistics).items()
    }
    changed = {
        path: value + sign * np.square(flat[*path[:-1], "mean"]) if path[-1] == "var" else value
        for path, value in flat.items()
    }
    return traverse_util.unflatten_dict(changed)


def _first_batches(run: EvaluatedRun, count: int) -> Iterator[dict[str, jax.Array]]:
    batches = datasets.train_batches(run.config, run.dataset.train, count, run.share)
    for index in range(count):
        batch = batches[index]
        batch.pop("damaged")
        yield distributed.to_devices(run.mesh, batch)


def settings_of(network: inference.Network) -> Settings:
    """The settings of the detector `network`."""
    detector: object = network.encoder
    if not isinstance(detector, Detector):
        raise TypeError(f"the network is {type(detector).__name__}, not a detector")
    return detector.settings


def _batch_statistics(
    network: inference.Network, variables: Variables, batch: dict[str, jax.Array]
) -> Any:
    """BatchNorm's statistics of one batch alone, on the host; frozen ones stay as they are."""
    settings = dataclasses.replace(settings_of(network), bn_momentum=0.0)
    statistics = _statistics(
        variables,
        batch,
        detector=Detector(settings),
        mean=network.mean,
        std=network.std,
        mesh=network.mesh,
    )
    return jax.device_get(statistics)


def _statistics_of(
    variables: Variables,
    batch: dict[str, jax.Array],
    *,
    detector: Detector,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    mesh: Any,
) -> Any:
    images = on_device.normalise_images(batch["image"], mean, std)
    _, updated = detector.apply(
        variables, images, batch, jax.random.key(0), method="batch_losses", mutable=["batch_stats"]
    )
    found = updated.get("batch_stats", {})
    return jax.lax.with_sharding_constraint(found, distributed.replicated(mesh))


_statistics = jax.jit(_statistics_of, static_argnames=("detector", "mean", "std", "mesh"))


def _entries(rows: inference.Rows, source: Source) -> list[dict[str, Any]]:
    """COCO's result entries of a batch; a record's place is its image_id, a label its category."""
    originals = [coco_source.objects_of(source, int(record)).size for record in rows["id"]]
    labels = range(1, len(source.class_names) + 1)
    found = unpack(rows)
    ids, has_masks = rows["id"].tolist(), found.masks.shape[-1] > 0
    return coco_metric.results(ids, originals, rows["size"], found, labels, masks=has_masks)


def drawn_entries(
    entries: Iterable[dict[str, Any]], names: dict[int, str], least: float = SHOWN_SCORE
) -> list[Drawn]:
    """COCO's result entries as objects to draw, those of at least the score `least`."""
    shown = []
    for entry in entries:
        if entry["score"] < least:
            continue
        left, top, width, height = entry["bbox"]
        code, category = entry.get("segmentation"), entry["category_id"]
        mask = masks.decode_mask(code["counts"].encode(), tuple(code["size"])) if code else None
        caption = f"{names[category]} {entry['score']:.0%}"
        box = np.array([left, top, left + width, top + height])
        shown.append(Drawn(box, caption, mask, int(category)))
    return shown
