"""The bank over time: a real one of 24 rows that gets four keys per step."""

import jax
import jax.numpy as jnp
import numpy as np

from cone_jax import losses, memory_bank
from docs.figures.drawing import Drawing

ROWS, BATCH, CLASSES = 24, 4, 3
STEPS = (0, 2, 6, 7, 11)
COLOURS = ("blue", "green", "orange")
SAYS = {
    0: "empty: no row is valid, both terms are 0",
    2: "filling: a third of the rows are valid, and the terms still wait",
    6: "full: from here on L_in and L_dc count",
    7: "the oldest four rows have been overwritten",
    11: "no row is older than six steps: K / B",
}


def states() -> dict[int, tuple[np.ndarray, np.ndarray, int]]:
    """After each step: the label of each row, its age in steps, and the row written next."""
    bank = memory_bank.init(ROWS, dim=2, num_classes=CLASSES)
    rng = np.random.default_rng(1)
    found = {}
    for step in range(max(STEPS) + 1):
        age = step - np.asarray(bank.ids)
        found[step] = (np.asarray(bank.labels), age, int(bank.cursor))
        labels = jnp.asarray(rng.integers(0, CLASSES, BATCH))
        keys = losses.normalise(jax.random.normal(jax.random.key(step), (BATCH, 2)))
        probs = jax.nn.one_hot(labels, CLASSES)
        # A record's id says here when it was written.
        bank = memory_bank.enqueue(bank, keys, labels, probs, jnp.full(BATCH, step, jnp.int32))
    return {step: found[step] for step in STEPS}


def draw() -> str:
    drawing = Drawing("bank", 820, 338)
    for index, (step, (labels, age, cursor)) in enumerate(states().items()):
        y = 30 + 62 * index
        drawing.text(16, y, f"step {step}", bold=True, size=13.5)
        drawing.text(84, y, SAYS[step], "muted", 12.5)
        for row in range(ROWS):
            x = 16 + 32.5 * row
            if labels[row] < 0:
                outline = {"stroke": "var(--f-line)", "stroke_dasharray": "3 3"}
                drawing.box(x, y + 9, 27, 24, "none", **outline)
            else:
                opacity = 1.0 - 0.75 * (float(age[row]) - 1) / (ROWS / BATCH - 1)
                drawing.box(x, y + 9, 27, 24, COLOURS[labels[row]], fill_opacity=float(opacity))
        x = 16 + 32.5 * cursor + 13.5
        drawing.path([(x, y + 46), (x, y + 36)], "ink", 1.6, arrow=True)
    drawing.text(16, 332, "Colour: class. Faded: old. Arrow: where the next keys go.", "muted", 12)
    return drawing.file()
