"""The way of a batch: what happens on the host, what on the devices, and in which order."""

from docs.figures.drawing import Drawing

HOST = (
    ("source", "a record by index"),
    ("order", "which record when,", "from (seed, position)"),
    ("pipeline", "decode, crop, flip,", "from (seed, epoch, record)"),
    ("metrics", "read one step late"),
)
STEP = (
    ("green", "1  average", "the momentum network", "moves towards the query"),
    ("green", "2  key", "momentum network:", "embedding, prediction"),
    ("blue", "3  query", "trained network:", "embedding, logits"),
    ("orange", "4  loss", "L_ce + 0.7 L_in", "+ 0.4 L_dc"),
    ("blue", "5  update", "gradient, optimiser", "of the query only"),
)


def draw() -> str:
    drawing = Drawing("batch", 860, 424)
    _frame(drawing, 10, 10, 214, 404, "host")
    _frame(drawing, 244, 10, 606, 404, "every device: one jit, the state donated")
    for index, (name, *lines) in enumerate(HOST):
        y = 46 + 88 * index if index < 3 else 344
        _box(drawing, 28, y, 178, 62 if len(lines) > 1 else 52, "muted", name, lines)
    for top, bottom in ((98, 132), (196, 220)):
        drawing.path([(117, top), (117, bottom)], "muted", 1.8, arrow=True)
    for index, (colour, name, *lines) in enumerate(STEP):
        x, y = 262 + 196 * (index % 3), 46 + 122 * (index // 3)
        _box(drawing, x, y, 172, 74, colour, name, lines)
    way = [(206, 252), (236, 252), (236, 140), (500, 140), (500, 122)]
    drawing.path(way, "muted", 1.8, arrow=True)
    drawing.path([(500, 140), (740, 140), (740, 122)], "muted", 1.8, arrow=True)
    drawing.text(300, 135, "uint8, normalised here", "muted", 12)
    drawing.path([(434, 83), (456, 83)], "green", 1.8, arrow=True)
    drawing.path([(434, 205), (456, 205)], "orange", 1.8, arrow=True)
    drawing.path([(800, 120), (800, 154), (348, 154), (348, 166)], "blue", 1.8, arrow=True)
    drawing.path([(544, 120), (544, 148), (390, 148), (390, 166)], "green", 1.8, arrow=True)
    _bank(drawing)
    drawing.path([(262, 222), (250, 222), (250, 386), (208, 386)], "muted", 1.8, arrow=True)
    return drawing.file()


def _bank(drawing: Drawing) -> None:
    drawing.box(262, 306, 564, 92, "panel", stroke="var(--f-yellow)", stroke_width=1.6)
    drawing.text(278, 328, "memory bank", bold=True, size=13.5)
    drawing.text(278, 346, "embeddings, labels and predictions of the last K keys", "muted", 12)
    for row in range(20):
        drawing.box(278 + 26 * row, 358, 21, 26, "yellow", rx=2.0, fill_opacity=0.25 + 0.035 * row)
    drawing.path([(320, 306), (320, 244)], "yellow", 2, arrow=True)
    drawing.text(330, 280, "nearest rows, soft labels", "muted", 12)
    drawing.path([(630, 96), (642, 96), (642, 340), (782, 340), (782, 352)], "green", arrow=True)
    drawing.text(654, 240, "6  enqueue", bold=True, size=13.5)
    drawing.text(654, 258, "keys over the oldest rows,", "muted", 12)
    drawing.text(654, 274, "once the gradient is known", "muted", 12)


def _frame(drawing: Drawing, x: float, y: float, width: float, height: float, name: str) -> None:
    drawing.box(x, y, width, height, "none", stroke="var(--f-line)", stroke_dasharray="5 4", rx=8.0)
    drawing.text(x + 14, y + 22, name, "muted", 12.5, italic=True)


def _box(
    drawing: Drawing, x: float, y: float, width: float, height: float, colour: str, name: str,
    lines: list[str],
) -> None:  # fmt: skip
    drawing.box(x, y, width, height, "panel", stroke=f"var(--f-{colour})", stroke_width=1.6)
    drawing.text(x + 14, y + 21, name, bold=True, size=13.5)
    for index, line in enumerate(lines):
        drawing.text(x + 14, y + 39 + 16 * index, line, "muted", 12)
