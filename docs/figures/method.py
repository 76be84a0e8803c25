"""CoNe in one figure: an image between its class centre, its neighbours and what those predict.

Embeddings are points of the unit sphere, seen from above. Every arrow, line and bar is computed by
`cone_jax.losses`: the arrows are the negative gradients of the three terms along the sphere, with
their weights in the method, all drawn to one scale.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from cone_jax import losses
from docs.figures.drawing import Drawing

TAU_S, TAU_D, LAMBDA_S, LAMBDA_D = 0.1, 0.07, 0.7, 0.4
CLASSES = ("owl", "hawk", "cat")
COLOUR = {0: "green", 1: "orange", 2: "muted"}
# Seen from above: sitting owls on the left, flying owls on the right, hawks that fly like these.
QUERY = (0.24, 0.08)
CENTRES = ((-0.04, -0.44), (0.40, 0.42), (-0.62, 0.55))
SCALE = 6.0  # how sure the classifier is: logits are this times a cosine
# x, y, class, what the momentum network said when it saw the image
BANK = (
    (0.43, 0.02, 0, (0.84, 0.15, 0.01)),
    (0.59, -0.14, 0, (0.76, 0.23, 0.01)),
    (0.36, -0.35, 0, (0.91, 0.08, 0.01)),
    (0.64, -0.33, 0, (0.85, 0.14, 0.01)),
    (-0.50, -0.26, 0, (0.93, 0.02, 0.05)),
    (-0.62, -0.12, 0, (0.90, 0.02, 0.08)),
    (-0.45, -0.12, 0, (0.91, 0.02, 0.07)),
    (-0.66, -0.30, 0, (0.95, 0.01, 0.04)),
    (0.50, 0.22, 1, (0.35, 0.64, 0.01)),
    (0.68, 0.36, 1, (0.17, 0.82, 0.01)),
    (0.20, 0.57, 1, (0.14, 0.84, 0.02)),
    (-0.50, 0.45, 2, (0.06, 0.04, 0.90)),
    (-0.36, 0.60, 2, (0.04, 0.05, 0.91)),
)
NEAREST = 8  # neighbours that the contrast sees


def lifted(points: tuple[tuple[float, float], ...]) -> jax.Array:
    """Points of the drawing as points of the sphere."""
    flat = jnp.asarray(points)
    height = jnp.sqrt(1 - jnp.sum(flat**2, axis=-1, keepdims=True))
    return jnp.concatenate([flat, height], axis=-1)


def terms() -> dict:
    """What the losses say of the scene."""
    query, centres = lifted((QUERY,)), lifted(CENTRES)
    bank = lifted(tuple((x, y) for x, y, *_ in BANK))
    labels = jnp.array([label for _, _, label, _ in BANK])
    probs = jnp.array([said for *_, said in BANK])
    cosines = losses.cosines(query, bank)
    near = jnp.argsort(-cosines[0])[:NEAREST]
    positive = (labels == 0)[None]
    chosen = functools.partial(jnp.take, indices=near, axis=-1)
    target = losses.soft_labels(cosines, probs, temperature=TAU_D)

    def logits(z: jax.Array) -> jax.Array:
        return SCALE * losses.cosines(losses.normalise(z), centres)

    def contrast(z: jax.Array) -> jax.Array:
        u = losses.cosines(losses.normalise(z), bank)
        return losses.sup_in(chosen(u), chosen(positive), temperature=TAU_S)[0]

    def agreement(z: jax.Array) -> jax.Array:
        return losses.distributional_consistency(target, logits(z))[0]

    def entropy(z: jax.Array) -> jax.Array:
        return losses.cross_entropy(logits(z), jnp.array([0]))[0]

    pulls = {
        "centre": -jax.grad(entropy)(query)[0],
        "neighbours": -LAMBDA_S * jax.grad(contrast)(query)[0],
        "agreement": -LAMBDA_D * jax.grad(agreement)(query)[0],
    }
    alpha = losses.positive_gradient_coefficients(
        chosen(cosines), chosen(positive), temperature=TAU_S
    )
    return {
        "near": np.asarray(near),
        "alpha": np.asarray(alpha[0]),
        "weights": np.asarray(jax.nn.softmax(cosines[0] / TAU_D)),
        "pulls": {name: np.asarray(pull) for name, pull in pulls.items()},
        "target": np.asarray(target[0]),
        "prediction": np.asarray(jax.nn.softmax(logits(query)[0])),
    }


def draw() -> str:
    found = terms()
    drawing = Drawing("method", 860, 470)
    _space(drawing, found)
    _soft_labels(drawing, found)
    return drawing.file()


def _place(point: tuple[float, float]) -> tuple[float, float]:
    return 250 + 232 * point[0], 246 + 232 * point[1]


def _space(drawing: Drawing, found: dict) -> None:
    drawing.text(20, 24, "What pulls an image, and where", bold=True, size=15)
    drawing.circle(250, 246, 206, "panel")
    x, y = _place(QUERY)
    for rank, row in enumerate(found["near"]):
        if BANK[row][2] == 0:
            width = 0.8 + 40 * float(found["alpha"][rank])
            drawing.path([(x, y), _place(BANK[row][:2])], "green", width, opacity=0.55)
        else:
            drawing.path([(x, y), _place(BANK[row][:2])], "orange", 1, stroke_dasharray="3 4")
    for index, (bx, by, label, _) in enumerate(BANK):
        ring = "var(--f-ink)" if index in found["near"] else None
        drawing.circle(*_place((bx, by)), 6.5, COLOUR[label], stroke=ring, stroke_width=1.2)
    for label, centre in enumerate(CENTRES):
        cx, cy = _place(centre)
        corners = f"M{cx - 9:.1f} {cy:.1f}L{cx:.1f} {cy - 9:.1f}L{cx + 9:.1f} {cy:.1f}"
        drawing.path(
            f"{corners}L{cx:.1f} {cy + 9:.1f}Z",
            "ink", 1, fill=f"var(--f-{COLOUR[label]})", stroke_linejoin="round",
        )  # fmt: skip
    # The agreement points nearly where cross-entropy does, so its arrow stands beside that one.
    for name, colour, aside in (
        ("centre", "pink", 0),
        ("neighbours", "blue", 0),
        ("agreement", "yellow", 9),
    ):
        dx, dy = 38 * found["pulls"][name][:2]
        ahead = np.array((dx, dy)) / np.hypot(dx, dy)
        start = (x + aside * ahead[1], y - aside * ahead[0])
        drawing.path([start, (start[0] + dx, start[1] + dy)], colour, 3, arrow=True)
    drawing.circle(x, y, 9, "blue", stroke="var(--f-paper)", stroke_width=2.0)
    drawing.text(*_shifted(CENTRES[0], -14, -6), "class centre “owl”", size=12.5, anchor="end")
    drawing.text(*_shifted(CENTRES[1], 14, 5), "“hawk”", size=12.5)
    drawing.text(*_shifted(CENTRES[2], 14, 4), "“cat”", size=12.5)
    drawing.text(*_shifted((-0.74, 0.0), 0, 6), "owls, sitting", "green", 12.5)
    drawing.text(*_shifted((0.44, -0.44), 0, 0), "owls, flying", "green", 12.5)
    drawing.text(*_shifted((0.62, 0.50), -30, 24), "hawks, flying", "orange", 12.5)
    drawing.text(x - 14, y + 20, "this image", "blue", 12.5, anchor="end", bold=True)


def _shifted(point: tuple[float, float], dx: float, dy: float) -> tuple[float, float]:
    x, y = _place(point)
    return x + dx, y + dy


def _soft_labels(drawing: Drawing, found: dict) -> None:
    legend = (
        ("pink", "cross-entropy", "to the class centre, the same for all owls"),
        ("blue", "L_in, contrast", "to the nearest owls most of all, away from hawks"),
        ("yellow", "L_dc, agreement", "to a prediction like that of its neighbours"),
    )
    for index, (colour, name, text) in enumerate(legend):
        y = 42 + 40 * index
        drawing.path([(508, y - 4), (542, y - 4)], colour, 3, arrow=True)
        drawing.text(554, y, name, bold=True, size=13)
        drawing.text(554, y + 16, text, "muted", 12)
    drawing.text(508, 188, "Soft labels: what the neighbours predict", bold=True, size=15)
    order = np.argsort(-found["weights"])[:3]
    for index, row in enumerate(order):
        y = 216 + 30 * index
        share = f"{found['weights'][row]:.0%}".replace("%", " %")
        drawing.circle(516, y - 4, 6.5, COLOUR[BANK[row][2]], stroke="var(--f-ink)")
        drawing.text(530, y, f"weighs {share}", "muted", 12)
        _bar(drawing, 616, y - 13, BANK[row][3])
    drawing.text(530, 306, "and the others", "muted", 12)
    drawing.path([(724, 300), (724, 322)], "yellow", 2, arrow=True)
    for y, name, shares in (
        (346, "average", found["target"]),
        (390, "this image", found["prediction"]),
    ):
        drawing.text(530, y, name, size=12.5, bold=True)
        _bar(drawing, 616, y - 13, shares)
    drawing.path([(724, 354), (724, 372)], "yellow", 2, arrow=True)
    drawing.text(736, 368, "L_dc", "yellow", 12, bold=True)
    for index, name in enumerate(CLASSES):
        drawing.box(616 + 72 * index, 412, 11, 11, COLOUR[index], rx=2.0)
        drawing.text(632 + 72 * index, 422, name, "muted", 12)
    drawing.text(508, 452, "Ringed points are the neighbours that L_in sees.", "muted", 12)


def _bar(drawing: Drawing, x: float, y: float, shares: tuple[float, ...]) -> None:
    """Probabilities of the classes, side by side."""
    for label, share in enumerate(shares):
        width = 220 * float(share)
        drawing.box(x, y, max(width - 1, 0.5), 18, COLOUR[label], rx=2.0)
        if width > 34:
            drawing.text(x + width / 2, y + 13.5, f"{share:.0%}".replace("%", " %"), "paper", 11.5,
                         anchor="middle")  # fmt: skip
        x += width
