"""The loss functions of CoNe and of what it is compared with, as pure functions on arrays.

They know no model, no bank and no config, so they drop into any training loop, under `jit`,
`vmap` or `shard_map`. Shapes: B rows of a batch, A anchors, K bank rows, D embedding, C classes.
Every loss returns one value per row, ``[B]``, without reduction. All are computed in float32 and
in log space. A row without a positive, or with nothing valid, gives exactly 0 and a zero
gradient, never NaN.

Reference: Zheng et al., "CoNe: Contrast Your Neighbours for Supervised Image Classification",
arXiv 2308.10761.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

SmoothingForm = Literal["official", "uniform"]  # how `cross_entropy` smooths labels

Rows = Float[Array, " B"]  # a loss: one value per row of a batch
Similarity = Float[Array, "B A"]  # cosines between B queries and A anchors
Mask = Bool[Array, "B A"]  # marks some of the anchors of each query


def normalise(embedding: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    r"""The rows scaled to unit length, in float32; the gradient is finite at zero.

    $$\hat x = x / \max(\lVert x \rVert, 10^{-12})$$

    Args:
        embedding: rows of any length; leading axes are kept.

    >>> print(normalise(jnp.array([[3.0, 4.0], [0.0, 0.0]])))
    [[0.6 0.8]
     [0.  0. ]]
    """
    x = embedding.astype(jnp.float32)
    # The floor is applied to the square, so that neither branch has an infinite derivative.
    square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def cosines(queries: Float[Array, "B D"], anchors: Float[Array, "A D"]) -> Similarity:
    r"""Inner products of unit-norm rows, $u_{ia} = q_i \cdot b_a$.

    In float32, whatever the network computes in.

    Args:
        queries: B rows of unit length.
        anchors: A rows of unit length.

    Returns:
        Float32, B by A.

    >>> print(cosines(jnp.eye(2), jnp.array([[0.6, 0.8]])))
    [[0.6]
     [0.8]]
    """
    left, right = queries.astype(jnp.float32), anchors.astype(jnp.float32)
    return jnp.matmul(left, right.T, precision=jax.lax.Precision.HIGHEST)


def cross_entropy(
    logits: Float[Array, "B C"],
    labels: Int[Array, " B"] | Float[Array, "B C"],
    *,
    smoothing: float = 0.0,
    form: SmoothingForm = "official",
) -> Rows:
    r"""Softmax cross-entropy against class indices or class probabilities.

    $$l_i = -\sum_c t_{ic} \log \operatorname{softmax}(f_i)_c$$

    Args:
        logits: $f$.
        labels: class indices, or the targets $t$ themselves.
        smoothing: the share of the target that leaves the true class.
        form: ``official`` (the released CoNe code) leaves ``1 - smoothing`` on the true class and
            ``smoothing / (C - 1)`` on each other one; ``uniform`` (Szegedy et al., torch, Keras)
            mixes in ``smoothing / C`` on every class.

    >>> logits = jnp.array([[2.0, 0.0, 0.0]])
    >>> round(float(cross_entropy(logits, jnp.array([0]))[0]), 4)
    0.2395
    >>> round(float(cross_entropy(logits, jnp.array([0]), smoothing=0.3, form="uniform")[0]), 4)
    0.6395
    """
    logits = logits.astype(jnp.float32)
    if labels.ndim == 1 and smoothing == 0.0:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    num_classes = logits.shape[-1]
    targets = jax.nn.one_hot(labels, num_classes) if labels.ndim == 1 else labels
    if smoothing > 0.0 and num_classes > 1:
        uniform_share = smoothing
        if form == "official":
            uniform_share = smoothing * num_classes / (num_classes - 1)
        targets = optax.smooth_labels(targets.astype(jnp.float32), uniform_share)
    return optax.softmax_cross_entropy(logits, targets)


def mixed_targets(
    first: Int[Array, " B"], second: Int[Array, " B"], weight: Rows, num_classes: int
) -> Float[Array, "B C"]:
    """The class probabilities of images mixed from two, as by MixUp and CutMix.

    Args:
        first: labels of the first images.
        second: labels of the second images.
        weight: the share of the first; the rest is the second's.
        num_classes: C.

    >>> mixed_targets(jnp.array([0]), jnp.array([2]), jnp.array([0.75]), 3).tolist()
    [[0.75, 0.0, 0.25]]
    """
    share = weight[:, None]
    one_hot_first = jax.nn.one_hot(first, num_classes)
    return share * one_hot_first + (1.0 - share) * jax.nn.one_hot(second, num_classes)


def binary_cross_entropy(
    logits: Float[Array, "B C"],
    labels: Int[Array, " B"] | Float[Array, "B C"],
    *,
    smoothing: float = 0.0,
    threshold: float | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> Rows:
    r"""One yes-or-no question per class: sigmoid cross-entropy.

    $$l_i = -\frac{1}{C} \sum_c
    \bigl(t_{ic} \log \sigma(f_{ic}) + (1 - t_{ic}) \log \sigma(-f_{ic})\bigr)$$

    Reference: Wightman et al., "ResNet strikes back", arXiv 2110.00476.

    Args:
        logits: $f$.
        labels: class indices, or the targets $t$ themselves.
        smoothing: mixes in ``smoothing / C`` on every class.
        threshold: makes the targets 0 or 1 after that: those above it are 1.
        reduction: over classes.

    >>> round(float(binary_cross_entropy(jnp.array([[2.0, -2.0]]), jnp.array([0]))[0]), 4)
    0.1269
    """
    logits = logits.astype(jnp.float32)
    targets = jax.nn.one_hot(labels, logits.shape[-1]) if labels.ndim == 1 else labels
    targets = optax.smooth_labels(targets.astype(jnp.float32), smoothing)
    if threshold is not None:
        targets = (targets > threshold).astype(jnp.float32)
    per_class = optax.sigmoid_binary_cross_entropy(logits, targets)
    return jnp.mean(per_class, axis=-1) if reduction == "mean" else jnp.sum(per_class, axis=-1)


def sup_in(
    similarity: Similarity, positive: Mask, *, temperature: float, where: Mask | None = None
) -> Rows:
    r"""Supervised contrastive loss with the sum over positives *inside* the logarithm.

    $$l_i = \log \sum_{a \in A(i)} e^{u_{ia} / \tau} - \log \sum_{p \in P(i)} e^{u_{ip} / \tau}$$

    Reference: equation 2 of CoNe. SupCon's L_in differs by the constant ``log |P|``.

    Args:
        similarity: the cosines $u$ between B queries and A anchors.
        positive: marks the anchors of the query's class, $P(i)$.
        temperature: $\tau$.
        where: marks the anchors that exist at all, $A(i)$; None: all of them.

    Returns:
        One value per row; 0 for a row without positives.

    >>> u = jnp.array([[0.9, 0.1, 0.1]])
    >>> round(float(sup_in(u, jnp.array([[True, False, False]]), temperature=0.1)[0]), 6)
    0.00067
    """
    logits, positive, where, has_positive = _prepare(similarity, positive, temperature, where)
    every = _logsumexp(logits, where)
    positives = _logsumexp(logits, positive)
    return jnp.where(has_positive, every - positives, 0.0)


def sup_out(
    similarity: Similarity, positive: Mask, *, temperature: float, where: Mask | None = None
) -> Rows:
    r"""Supervised contrastive loss with the mean over positives *outside* the logarithm.

    $$l_i = \log \sum_{a \in A(i)} e^{u_{ia} / \tau}
    - \frac{1}{|P(i)|} \sum_{p \in P(i)} u_{ip} / \tau$$

    The arguments are those of `sup_in`. Reference: L_out of Khosla et al., arXiv 2004.11362.

    >>> u = jnp.array([[0.9, 0.5, 0.1]])
    >>> round(float(sup_out(u, jnp.array([[True, True, False]]), temperature=0.1)[0]), 6)
    2.018479
    """
    logits, positive, where, has_positive = _prepare(similarity, positive, temperature, where)
    every = _logsumexp(logits, where)
    mean_positive = jnp.mean(logits, axis=-1, where=positive)
    return jnp.where(has_positive, every - mean_positive, 0.0)


def parametric_contrast(
    class_logits: Float[Array, "B C"],
    labels: Int[Array, " B"],
    similarity: Similarity,
    positive: Mask,
    *,
    temperature: float,
    alpha: float,
    beta: float = 1.0,
    gamma: float = 1.0,
    where: Mask | None = None,
) -> Rows:
    r"""PaCo: class centres and anchors compete in one softmax, weighted differently.

    $$l_i = \log D_i
    - \frac{\beta f_{iy} + \alpha \sum_{p \in P(i)} u_{ip} / \tau}{\beta + \alpha |P(i)|}, \qquad
    D_i = \sum_c e^{f_{ic}} + \gamma \sum_{a \in A(i)} e^{u_{ia} / \tau}$$

    Reference: Cui et al., "Parametric Contrastive Learning", arXiv 2107.12028.

    Args:
        class_logits: $f$ of the classifier.
        labels: $y$, class indices.
        similarity: as for `sup_in`, and so are `positive`, `temperature` and `where`.
        alpha: the weight of each positive.
        beta: the weight of the class centre.
        gamma: the weight of anchors among the competitors.

    Returns:
        One value per row; 0 for a row whose weights are all 0.

    >>> f, u = jnp.array([[1.0, 0.0]]), jnp.array([[0.5]])
    >>> positive = jnp.array([[True]])
    >>> loss = parametric_contrast(f, jnp.array([0]), u, positive, temperature=0.5, alpha=1.0)
    >>> round(float(loss[0]), 4)  # log(2 e + 1) - 1
    0.862
    """
    class_logits = class_logits.astype(jnp.float32)
    where = jnp.ones_like(positive) if where is None else where
    positive = positive & where
    logits = jnp.where(where, similarity.astype(jnp.float32), 0.0) / temperature
    # log 0 is -inf, which is what gamma = 0 means: anchors do not compete.
    competing = jnp.where(where, logits + jnp.log(gamma), -jnp.inf)
    every = jax.nn.logsumexp(jnp.concatenate([class_logits, competing], axis=-1), axis=-1)
    own = jnp.take_along_axis(class_logits, labels[:, None], axis=-1)[:, 0]
    pulled = beta * own + alpha * jnp.sum(logits, axis=-1, where=positive)
    weight = beta + alpha * jnp.sum(positive, axis=-1)
    has_weight = weight > 0
    return jnp.where(has_weight, every - pulled / jnp.where(has_weight, weight, 1.0), 0.0)


def mean_shift(similarity: Similarity, *, where: Mask | None = None) -> Rows:
    r"""Mean squared distance between a unit-norm query and its anchors.

    $$l_i = \frac{1}{|A(i)|} \sum_{a \in A(i)} (2 - 2 u_{ia})$$

    Rows without an anchor are 0. Reference: Koohpayegani et al., "Mean Shift for Self-Supervised
    Learning", arXiv 2105.07269; CMSF takes anchors of the query's class.

    Args:
        similarity: the cosines $u$.
        where: marks the anchors; None: all of them.

    >>> mean_shift(jnp.array([[1.0, 0.5]])).tolist()
    [0.5]
    """
    where = jnp.ones(similarity.shape, bool) if where is None else where
    distance = jnp.where(where, 2.0 - 2.0 * similarity.astype(jnp.float32), 0.0)
    return jnp.sum(distance, axis=-1) / jnp.maximum(jnp.sum(where, axis=-1), 1)


def log_sum_exp_gap(similarity: Similarity, *, temperature: float, where: Mask) -> Rows:
    r"""By how much log-sum-exp exceeds the largest value; 0 for an empty row.

    $$m_i = \log \sum_a e^{u_{ia} / \tau} - \max_a u_{ia} / \tau$$

    Its exponential counts the anchors that matter: 1 when one dominates, n for n equal ones.
    It is the error made in reading `sup_in` as a margin between nearest positive and negative.

    Args:
        similarity: the cosines $u$.
        temperature: $\tau$.
        where: marks the anchors.

    >>> both = jnp.array([[True, True]])
    >>> round(float(log_sum_exp_gap(jnp.array([[0.5, 0.5]]), temperature=0.1, where=both)[0]), 4)
    0.6931
    """
    usable = jnp.any(where, axis=-1, keepdims=True)
    logits = similarity.astype(jnp.float32) / temperature
    largest = jnp.max(jnp.where(where, logits, -jnp.inf), axis=-1)
    gap = _logsumexp(logits, where | ~usable) - largest
    return jnp.where(usable[:, 0], gap, 0.0)


def soft_labels(
    similarity: Float[Array, "B K"],
    probs: Float[Array, "K C"],
    *,
    temperature: float,
    where: Bool[Array, "B K"] | None = None,
) -> Float[Array, "B C"]:
    r"""Class probabilities averaged over anchors, the similar ones most.

    $$\tilde p_i = \sum_j \operatorname{softmax}_j(v_{ij} / \tau)\, p_j$$

    Reference: equations 5 to 7 of CoNe, the target of `distributional_consistency`.

    Args:
        similarity: the cosines $v$ between B keys and K anchors.
        probs: $p$, what each anchor predicts.
        temperature: $\tau$.
        where: marks the anchors that exist; None: all of them.

    Returns:
        Rows that sum to 1 when those of `probs` do. Without a valid anchor: the mean of `probs`.

    >>> u = jnp.array([[1.0, 0.0]])
    >>> [f"{p:.3f}" for p in soft_labels(u, jnp.eye(2), temperature=0.5)[0]]
    ['0.881', '0.119']
    """
    logits = similarity.astype(jnp.float32) / temperature
    if where is not None:
        usable = jnp.any(where, axis=-1, keepdims=True)
        logits = jnp.where(where & usable, logits, jnp.where(usable, -jnp.inf, 0.0))
    weights = jax.nn.softmax(logits, axis=-1)
    return jnp.matmul(weights, probs.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def distributional_consistency(
    target_probs: Float[Array, "B C"], logits: Float[Array, "B C"]
) -> Rows:
    r"""How far a prediction is from its target.

    $$l_i = \mathrm{KL}\bigl(\tilde p_i \,\|\, \operatorname{softmax}(f_i)\bigr)$$

    The gradient reaches the logits only; ``0 log 0 = 0``. Reference: equation 4 of CoNe.

    Args:
        target_probs: $\tilde p$, a constant.
        logits: $f$.

    >>> distributional_consistency(jnp.array([[0.5, 0.5]]), jnp.array([[1.0, 1.0]])).tolist()
    [0.0]
    """
    target = jax.lax.stop_gradient(target_probs.astype(jnp.float32))
    return optax.kl_divergence(jax.nn.log_softmax(logits.astype(jnp.float32)), target)


def positive_gradient_coefficients(
    similarity: Similarity, positive: Mask, *, temperature: float, where: Mask | None = None
) -> Float[Array, "B A"]:
    r"""How strongly `sup_in` pulls the query towards each positive: alpha in [0, 1].

    With $s = e^{u / \tau}$, and $S_p$ and $S_n$ its sums over positives and negatives,

    $$\alpha_p = \frac{s_p}{S_p} - \frac{s_p}{S_p + S_n}, \qquad
    -\frac{\partial l}{\partial z} = \frac{1}{\tau}
    \Bigl(\sum_p \alpha_p z_p - \sum_n \frac{s_n}{S_p + S_n} z_n\Bigr)$$

    The arguments are those of `sup_in`.

    Returns:
        One value per query and anchor; 0 for anchors that are not positive.

    >>> u = jnp.array([[0.8, 0.2, 0.5]])
    >>> is_positive = jnp.array([[True, True, False]])
    >>> print(positive_gradient_coefficients(u, is_positive, temperature=0.5).round(4))
    [[0.228  0.0687 0.    ]]
    """
    logits, positive, where, has_positive = _prepare(similarity, positive, temperature, where)
    among_positives = jnp.exp(logits - _logsumexp(logits, positive)[:, None])
    among_all = jnp.exp(logits - _logsumexp(logits, where)[:, None])
    alpha = among_positives - among_all
    counts = positive & has_positive[:, None]
    return jnp.where(counts, jnp.maximum(alpha, 0.0), 0.0)


def _prepare(
    similarity: Similarity, positive: Mask, temperature: float, where: Mask | None
) -> tuple[Similarity, Mask, Mask, Bool[Array, " B"]]:
    """Logits and masks in which every row has something to reduce over.

    A reduction over an empty mask has NaN gradients even where its result is discarded, so
    empty rows get a full mask here and the caller zeroes their result.
    """
    where = jnp.ones_like(positive) if where is None else where
    positive = positive & where
    has_positive = jnp.any(positive, axis=-1)
    logits = jnp.where(where, similarity.astype(jnp.float32), 0.0) / temperature
    empty = ~has_positive[:, None]
    return logits, positive | empty, where | empty, has_positive


def _logsumexp(logits: Similarity, where: Mask) -> Rows:
    return jax.nn.logsumexp(logits, axis=-1, where=where)
