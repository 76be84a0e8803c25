"""The interface of training methods: what each needs, and its loss; and methods by name.

An objective is a section of the config (`cone_jax.settings.Section`): its fields are its
hyper-parameters, with their defaults, meanings and limits. Calling it gives the loss of one batch.
The trainer provides what `needs` asks for and nothing else.
"""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from cone_jax import losses
from cone_jax.console import Chart, Metric
from cone_jax.errors import UserError, closest
from cone_jax.memory_bank import MemoryBank
from cone_jax.models import EncoderOutput
from cone_jax.settings import Model, Section, Settings, field
from cone_jax.spec_strings import Registry

# What becomes of a sample's augmented views. "any": the query sees the first, the key the last,
# which may be the same one. "query_key": the same, and there must be two. "rows": there must be
# two, and both are rows of the batch, seen by query and key: row 2 i + v is view v of sample i.
Views = Literal["any", "query_key", "rows"]
# What is known of an image: its class, or the objects in it. Where it is objects, the network
# computes its losses by itself, and the objective takes the whole batch (`batch_gradients`).
LabelKind = Literal["class", "objects"]
# Where in the network an activation can be had.
Layer = Literal["images", "features"]


@dataclasses.dataclass(frozen=True)
class Needs:
    """What the trainer has to provide besides the query's outputs and the labels.

    >>> create("cone", {}).needs.bank, create("cross_entropy", {}).needs.bank
    (True, False)
    """

    labels: LabelKind = "class"  # "class", or "objects" for a detector
    views: Views = "any"  # how a sample's augmented views are used
    key: bool = False  # a momentum network, and its outputs for the batch
    # A memory bank, filled with the keys. Without a momentum network: with the query's own
    # embeddings, of the first views where views are rows.
    bank: bool = False
    bank_probs: bool = False  # the bank also holds the keys' class probabilities
    bank_first: bool = False  # the batch enters the bank before the loss sees it, not after
    embedding: bool = False  # embeddings are compared, so a projection head has a purpose
    predictor: bool = False  # a second head after the projection: `query.prediction`
    classifier: bool = True  # False: the loss trains no classifier, and a linear stage follows
    # The input of its classifier in recipes, `model.classifier_input`, unless they set another.
    classifier_sees: Literal["embedding", "features"] = "embedding"
    class_centres: bool = False  # the classifier's weights, and what they are applied to
    layers: tuple[Layer, ...] = ()  # activations, each with the rest of the network
    class_prior: bool = False  # the share of each class in the training set
    whole_batch: bool = False  # rows are compared with each other: a batch cannot be taken in parts
    mixed_labels: bool = False  # can learn from MixUp and CutMix; provided when those are on
    frozen: bool = False  # everything but the classifier stays as it is, BatchNorm included
    constants: bool = False  # some parameters are not trained: those of `is_constant`


class MixedLabels(NamedTuple):
    """The second label of each row, whose image is mixed from two.

    >>> mixed = MixedLabels(labels=jnp.array([2]), weight=jnp.array([0.75]))
    >>> losses.mixed_targets(jnp.array([0]), mixed.labels, mixed.weight, 3).tolist()
    [[0.75, 0.0, 0.25]]
    """

    labels: Int[Array, " B"]  # classes of the second images
    weight: Float[Array, " B"]  # the share of the *first* label, `StepInputs.labels`


class ClassCentres(NamedTuple):
    """A linear classifier without bias, taken apart: ``logits = inputs @ kernel``.

    >>> centres = ClassCentres(inputs=jnp.ones((1, 2)), kernel=jnp.eye(2))
    >>> (centres.inputs @ centres.kernel).tolist()
    [[1.0, 1.0]]
    """

    inputs: Float[Array, "B D"]  # the classifier's input
    kernel: Float[Array, "D C"]  # one centre per class


class Activation(NamedTuple):
    """The output of a layer of the query network, and the rest of the network as a function.

    >>> Activation(jnp.ones((1, 2)), classify=lambda value: 3 * value).classify(jnp.ones(2))[0]
    Array(3., dtype=float32)
    """

    value: Float[Array, "B ..."]  # the layer's output
    classify: Callable[[jax.Array], jax.Array]  # from it to logits [B, C], in train mode


class StepInputs(NamedTuple):
    """One batch, after the forward passes. B rows over all devices.

    Fields are None unless the objective's `needs` ask for them.

    >>> out = EncoderOutput(jnp.ones((2, 4)), jnp.ones((2, 4)), jnp.zeros((2, 2)))
    >>> inputs = StepInputs(out, jnp.array([0, 1]), epoch=jnp.array(0), step=jnp.array(0))
    >>> loss, metrics = create("cross_entropy", {"label_smoothing": 0.0})(inputs)
    >>> round(float(loss), 4)
    0.6931
    """

    query: EncoderOutput  # outputs of the trained network; gradients flow through these alone
    labels: Int[Array, " B"]  # classes
    epoch: Int[Array, ""]  # full epochs before this step
    step: Int[Array, ""]  # steps before this one
    key: EncoderOutput | None = None  # outputs of the momentum network
    bank: MemoryBank | None = None  # as it was before this step, unless `needs.bank_first`
    # The key's current classifier: embeddings [K, D] to probabilities [K, C]. Comes with
    # `needs.bank_probs`, for banks that do not store them.
    classify_key: Callable[[jax.Array], jax.Array] | None = None
    exclude_ids: Int[Array, " B"] | None = None  # records whose bank rows a sample must not see
    mixed: MixedLabels | None = None  # second labels, where images are mixed
    class_centres: ClassCentres | None = None  # the classifier, taken apart
    layers: Mapping[Layer, Activation] | None = None  # the activations in `needs.layers`
    class_prior: Float[Array, " C"] | None = None  # share of each class in the training set


Metrics = dict[str, Float[Array, ""]]  # scalars by name


LOSS_CHART = Chart("loss", "Loss terms", "loss", "Before weighting.")
# What several objectives report, and all terms of a loss that are not declared.
SHARED_METRICS = (
    Metric("loss_ce", better="lower", chart=LOSS_CHART, label="cross-entropy"),
    Metric("loss_sup_out", better="lower", chart=LOSS_CHART, label="L_sup_out"),
    Metric("loss_*", better="lower", chart=LOSS_CHART),
    Metric(
        "positives",
        chart=Chart(
            "positives",
            "Positives among the neighbours",
            "positives per query",
            "Rows of the bank, which may hold a record several times.",
        ),
    ),
)


class Objective(Section, abc.ABC):
    """A training method. Derive a frozen dataclass from it, with its section's `path`.

    `metrics` declares what it reports besides the loss. What is not declared is a plain number with
    a chart of its own.

    docs/extending.md has an example, which is run by the tests.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()  # with unit, direction and chart
    # Whether it can take the place of another method in a recipe: same data, same network.
    exchangeable: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def needs(self) -> Needs:
        """What the trainer has to provide."""

    def network(self, model: Model, num_classes: int, platform: str) -> Any:
        """The network, if it is not the encoder that the section ``model`` describes."""
        return None

    def batch_gradients(
        self, network: Any, variables: Any, images: Any, batch: Mapping[str, Any], rng: Any
    ) -> tuple[Any, Metrics, Any]:
        """Gradients, metrics and BatchNorm's statistics, for methods that learn from objects."""
        raise NotImplementedError

    def is_constant(self, path: Sequence[str]) -> bool:
        """Whether the parameter at `path` stays as it is, where `needs.constants` says some do."""
        return False

    def missing_weights(self) -> str:
        """What is wrong with training from scratch, and the cure; "" if nothing is."""
        return ""

    def check_settings(self, settings: Settings) -> None:
        """Raises `UserError` where the rest of a config does not suit the method."""

    def check_data(self, source: Any) -> None:
        """Raises `UserError` where a source lacks what the method learns from, or is tested on."""

    def first_active_step(self, *, steps_per_epoch: int, steps_to_fill_bank: int) -> int:
        """The number of steps before all of its terms count."""
        return 0

    @abc.abstractmethod
    def __call__(self, inputs: StepInputs) -> tuple[Float[Array, ""], Metrics]:
        """The loss to minimise, and what to report besides it."""


@dataclasses.dataclass(frozen=True)
class TwoViewContrast(Objective):
    """Methods that contrast the 2 n rows of a batch of two views; a linear stage follows."""

    temperature: float = field(0.1, "temperature of the similarities", above=0)
    base_temperature: float = field(
        0.07,
        "the loss is multiplied by temperature / base_temperature: 0.07 as in SupContrast's "
        "PyTorch code, 1 as in SupCon's TensorFlow code, the temperature itself for a plain loss",
        above=0,
    )

    @property
    def needs(self) -> Needs:
        return Needs(views="rows", whole_batch=True, embedding=True, classifier=False)


@dataclasses.dataclass(frozen=True)
class BalancedCrossEntropy(Objective):
    """Methods with a cross-entropy term that can make up for classes of different frequency."""

    class_weights: Literal["none", "balanced", "sqrt"] = field(
        "none",
        "weight of a sample in L_ce: 1, one over its class's share of the training set, or the "
        "square root of that; the mean weight is 1",
    )
    logit_adjustment: float = field(
        0.0,
        "this many times the logarithm of each class's share of the training set is added to the "
        "logits in L_ce (Menon et al., 2021, use 1); 0: nothing",
        low=0.0,
    )

    @property
    def needs_prior(self) -> bool:
        return self.class_weights != "none" or self.logit_adjustment > 0

    def cross_entropy(
        self, inputs: StepInputs, smoothing: float, form: losses.SmoothingForm
    ) -> Float[Array, " B"]:
        """L_ce of each row."""
        logits, targets = inputs.query.logits, class_targets(inputs)
        if not self.needs_prior:
            return losses.cross_entropy(logits, targets, smoothing=smoothing, form=form)
        assert inputs.class_prior is not None
        # A class without records has no row to learn from; its logit stays finite all the same.
        prior = jnp.maximum(inputs.class_prior, 1e-9)
        adjusted = logits + self.logit_adjustment * jnp.log(prior)
        per_row = losses.cross_entropy(adjusted, targets, smoothing=smoothing, form=form)
        if self.class_weights == "none":
            return per_row
        weights = 1.0 / (prior if self.class_weights == "balanced" else jnp.sqrt(prior))
        weights = weights / jnp.sum(inputs.class_prior * weights)
        # Of a mixed picture both labels count.
        return per_row * (weights[targets] if targets.ndim == 1 else targets @ weights)


def other_view(rows: jax.Array) -> jax.Array:
    """For each row the other view of the same sample, where views are rows.

    >>> other_view(jnp.arange(4)).tolist()
    [1, 0, 3, 2]
    """
    return rows.reshape(-1, 2, *rows.shape[1:])[:, ::-1].reshape(rows.shape)


def class_targets(inputs: StepInputs) -> Int[Array, " B"] | Float[Array, "B C"]:
    """The targets of a classifier: labels, or class probabilities where images are mixed."""
    if inputs.mixed is None:
        return inputs.labels
    num_classes = inputs.query.logits.shape[-1]
    second, weight = inputs.mixed
    return losses.mixed_targets(inputs.labels, second, weight, num_classes)


def with_cross_entropy(
    loss: Float[Array, ""], metrics: Metrics, inputs: StepInputs, weight: float
) -> tuple[Float[Array, ""], Metrics]:
    """Adds ``weight * L_ce`` to a loss and reports it; nothing is computed for weight 0."""
    if weight == 0:
        return loss, metrics
    loss_ce = jnp.mean(losses.cross_entropy(inputs.query.logits, inputs.labels))
    return loss + weight * loss_ce, {**metrics, "loss_ce": loss_ce}


_OWN = {
    "cone": "cone_jax.objectives.cone:Cone",
    "cross_entropy": "cone_jax.objectives.cross_entropy:CrossEntropy",
    "binary_cross_entropy": "cone_jax.objectives.binary_cross_entropy:BinaryCrossEntropy",
    "l_softmax": "cone_jax.objectives.l_softmax:LSoftmax",
    "large_margin": "cone_jax.objectives.large_margin:LargeMargin",
    "simclr": "cone_jax.objectives.simclr:SimClr",
    "supcon": "cone_jax.objectives.supcon:SupCon",
    "supcon_bank": "cone_jax.objectives.supcon_bank:SupConBank",
    "joint_supcon": "cone_jax.objectives.joint_supcon:JointSupCon",
    "paco": "cone_jax.objectives.paco:PaCo",
    "cmsf": "cone_jax.objectives.cmsf:Cmsf",
    "nnclr": "cone_jax.objectives.nnclr:Nnclr",
    "linear": "cone_jax.objectives.linear:Linear",
    "detection": "cone_jax.objectives.detection:Detection",
}
OBJECTIVES: Registry[type[Objective]] = Registry(
    "objective",
    "cone_jax.objectives",
    _OWN,
    form="a subclass of cone_jax.objectives.Objective",
    accepts=lambda thing: isinstance(thing, type) and issubclass(thing, Objective),
)


def names() -> tuple[str, ...]:
    """All objectives that `create` knows.

    Returns:
        Names in the order of the list of methods.

    >>> "cone" in names()
    True
    """
    return tuple(OBJECTIVES)


def exchangeable() -> tuple[str, ...]:
    """The objectives that can replace one another in a recipe; the others have their own.

    Returns:
        A subset of `names`.

    >>> "detection" in exchangeable()
    False
    """
    return tuple(name for name in OBJECTIVES if OBJECTIVES[name].exchangeable)


def default_settings(name: str) -> ConfigDict:
    """The hyper-parameters of an objective, as a config section holds them.

    Args:
        name: one of `names`.

    Returns:
        A section to be put below ``config.objective``.

    >>> default_settings("cone").sup_temperature
    0.1
    """
    return OBJECTIVES[name]().to_config()


def declared_metrics() -> tuple[Metric, ...]:
    """The metrics that objectives report during training, by their own names.

    Returns:
        Declarations, those that several methods share first.

    >>> "loss_ce" in [metric.name for metric in declared_metrics()]
    True
    """
    own = (getattr(OBJECTIVES[name], "metrics", ()) for name in names())
    return (*SHARED_METRICS, *itertools.chain.from_iterable(own))


def create(name: str, settings: Mapping[str, Any]) -> Objective:
    """The objective `name` with the given hyper-parameters; those left out have defaults.

    Args:
        name: one of `names`.
        settings: hyper-parameters by name; an unknown one is a `UserError` with the nearest known.

    Returns:
        A function of `StepInputs` that returns the loss and the metrics to report.

    >>> create("cone", {"neighbours": 32}).sup_weight
    0.7
    """
    if name not in OBJECTIVES:
        raise UserError(f"objective.name ({name!r}) is unknown; {closest(name, OBJECTIVES)}")
    known = OBJECTIVES[name].field_names()
    for given in settings:
        if given not in known:
            raise UserError(f"objective.{name}.{given} is not a field; {closest(given, known)}")
    return OBJECTIVES[name].read(settings)


def chosen(section: Mapping[str, Any]) -> Objective:
    """The objective that a config's section ``objective`` chooses, with its hyper-parameters.

    Args:
        section: ``name``, and a section of each objective's settings.

    Returns:
        A function of `StepInputs`, as `create` gives it.

    >>> chosen({"name": "cone", "cone": {"neighbours": 32}}).neighbours
    32
    """
    name = section["name"]
    return create(name, section.get(name, {}))
