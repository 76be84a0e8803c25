"""How strongly two contrastive losses pull a query to each of its neighbours.

The lengths are derivatives of `losses.sup_in` and `losses.sup_out` with respect to the cosines.
"""

import jax
import jax.numpy as jnp
import numpy as np

from cone_jax import losses
from docs.figures.drawing import Drawing

# Cosines with six images of the query's class and five of others, nearest first.
POSITIVES = (0.75, 0.65, 0.55, 0.45, 0.30, 0.10)
NEGATIVES = (0.72, 0.60, 0.45, 0.30, 0.15)
TEMPERATURES = (0.05, 0.1, 0.3)
FORMS = (("L_in, the sum inside the logarithm", losses.sup_in),
         ("L_out, the mean outside", losses.sup_out))  # fmt: skip


def pulls(loss, temperature: float) -> np.ndarray:
    """The pull to each anchor: positive attracts, negative repels. One over tau is left out."""
    cosines = jnp.array([POSITIVES + NEGATIVES])
    positive = jnp.arange(cosines.shape[1])[None] < len(POSITIVES)

    def value(cosines: jax.Array) -> jax.Array:
        return loss(cosines, positive, temperature=temperature)[0]

    return -temperature * np.asarray(jax.grad(value)(cosines)[0])


def draw() -> str:
    drawing = Drawing("gradient", 820, 500)
    for row, (title, loss) in enumerate(FORMS):
        top = 20 + 246 * row
        drawing.text(16, top + 4, title, bold=True, size=15)
        for column, temperature in enumerate(TEMPERATURES):
            _panel(drawing, 16 + 268 * column, top + 16, pulls(loss, temperature), temperature)
    return drawing.file()


def _panel(drawing: Drawing, x: float, y: float, values: np.ndarray, temperature: float) -> None:
    drawing.box(x, y, 252, 206, "panel")
    drawing.text(x + 240, y + 20, f"τ = {temperature}", "muted", 12.5, anchor="end")
    zero, one = y + 92, 150.0
    drawing.path([(x + 10, zero), (x + 242, zero)], "line", 1)
    for index, (cosine, value) in enumerate(zip(POSITIVES + NEGATIVES, values, strict=True)):
        left = x + 14 + 20 * index + (10 if index >= len(POSITIVES) else 0)
        colour = "green" if index < len(POSITIVES) else "orange"
        height = one * abs(float(value))
        upper = zero - height if value > 0 else zero
        drawing.box(left, upper, 14, max(height, 0.8), colour, rx=1.5)
        drawing.text(left + 7, y + 192, f"{cosine:.2f}"[1:], "muted", 10, anchor="middle")
    drawing.text(x + 14, y + 176, "same class", "green", 11.5)
    drawing.text(x + 144, y + 176, "other classes", "orange", 11.5)
