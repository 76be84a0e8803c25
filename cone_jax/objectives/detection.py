"""Mask R-CNN: the five losses of a detector, added up.

The network is another one (`cone_jax.detection.Detector`), and so is a batch: pictures padded to
one of two shapes, and the objects on them. Everything else about training is as for every method.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax

from cone_jax.console import Metric
from cone_jax.errors import UserError
from cone_jax.objectives.objective import LOSS_CHART, Metrics, Needs, Objective
from cone_jax.settings import Detector, Model, Settings


@dataclasses.dataclass(frozen=True)
class Detection(Detector, Objective, path="objective.detection"):
    """``L = L_objectness + L_rpn_box + L_class + L_box + L_mask``."""

    exchangeable: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss_rpn_objectness", better="lower", chart=LOSS_CHART, label="proposals' scores"),
        Metric("loss_rpn_box", better="lower", chart=LOSS_CHART, label="proposals' boxes"),
        Metric("loss_classification", better="lower", chart=LOSS_CHART, label="classes"),
        Metric("loss_box", better="lower", chart=LOSS_CHART, label="boxes"),
        Metric("loss_mask", better="lower", chart=LOSS_CHART, label="masks"),
    )

    @property
    def needs(self) -> Needs:
        return Needs(labels="objects", constants=True)

    def network(self, model: Model, num_classes: int, platform: str) -> Any:
        from cone_jax import detection

        return detection.Detector(detection.Settings.of_config(self, model, num_classes, platform))

    def is_constant(self, path: Sequence[str]) -> bool:
        from cone_jax.detection import is_frozen

        return is_frozen(self, path)

    def missing_weights(self) -> str:
        if self.backbone_norm == "batch" and self.freeze_at == 0:
            return ""
        return (
            f"objective.detection.backbone_norm ({self.backbone_norm!r}) and freeze_at "
            f"({self.freeze_at}) keep random layers as they are: give weights, or set them to "
            "'batch' and 0"
        )

    def check_settings(self, settings: Settings) -> None:
        self.network(settings.model, 1, "cpu")
        if settings.model.stem != "imagenet":
            raise UserError(
                f"model.stem ({settings.model.stem!r}) must be 'imagenet' for a detector"
            )
        settings.data.check_of_objects()
        if settings.data.views != 1:
            raise UserError(f"data.views ({settings.data.views}) must be 1 for a detector")

    def check_data(self, source: Any) -> None:
        for index in range(len(source)) if self.masks else ():
            record = source.objects(index)
            if any(code is None for code in record.segmentations):
                raise UserError(
                    f"objective.detection.masks (True) needs the mask of every object, but "
                    f"{source.describe(index)} has one without a segmentation; add it, or set "
                    "objective.detection.masks to False"
                )

    def batch_gradients(
        self, network: Any, variables: Any, images: Any, batch: Mapping[str, Any], rng: Any
    ) -> tuple[Any, Metrics, Any]:
        """Normalised images and their objects to gradients; `rng` draws anchors and proposals."""

        def loss_function(params: Any) -> tuple[jax.Array, tuple[Metrics, Any]]:
            terms, updated = network.apply(
                {**variables, "params": params},
                images,
                batch,
                rng,
                method="batch_losses",
                mutable=["batch_stats"],
            )
            loss, metrics = self(terms)
            return loss, ({"loss": loss, **metrics}, updated.get("batch_stats", {}))

        compute = jax.grad(loss_function, has_aux=True)
        gradients, (metrics, batch_stats) = compute(variables["params"])
        return gradients, metrics, batch_stats

    def __call__(self, inputs: Any) -> tuple[jax.Array, Metrics]:
        """`inputs` are the losses of the network by name."""
        return sum(inputs.values()), {f"loss_{name}": term for name, term in inputs.items()}
