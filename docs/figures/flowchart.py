"""Mermaid's flowcharts as drawings, where they are trees read from left to right.

The pages have diagrams as text, which GitHub draws. The site draws them with this, so that it needs
no program from elsewhere.
"""

import re

from docs.figures.drawing import Drawing

ROW, LETTER, GAP = 26, 7.1, 34


def parse(text: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The labels of the nodes, and what each points to."""
    labels: dict[str, str] = {}
    children: dict[str, list[str]] = {}
    has_parent: set[str] = set()
    first, *lines = [line.strip() for line in text.strip().splitlines()]
    if first != "flowchart LR":
        raise ValueError(f"{first!r}: only flowchart LR is drawn")
    for line in filter(None, lines):
        if node := re.fullmatch(r'(\w+)\["([^"]+)"\]', line):
            labels[node[1]] = node[2]
            children[node[1]] = []
        elif edge := re.fullmatch(r"(\w+) --> (\w+)", line):
            if edge[2] in has_parent:
                raise ValueError(f"{labels[edge[2]]}: two arrows lead there; this is not a tree")
            has_parent.add(edge[2])
            children[edge[1]].append(edge[2])
        else:
            raise ValueError(f"{line!r} is neither a node nor an arrow")
    return labels, children


def draw(text: str) -> str:
    """SVG of a tree: a column per depth, parents beside their first child."""
    labels, children = parse(text)
    depth: dict[str, int] = {}
    row: dict[str, int] = {}
    rows = 0

    def place(node: str, level: int) -> None:
        nonlocal rows
        depth[node], row[node] = level, rows
        for index, child in enumerate(children[node]):
            rows += index > 0
            place(child, level + 1)

    for root in (node for node in labels if not any(node in some for some in children.values())):
        place(root, 0)
        rows += 1
    widths = [
        max(len(labels[node]) for node in labels if depth[node] == level) * LETTER + 18
        for level in range(max(depth.values()) + 1)
    ]
    left = [sum(widths[:level]) + GAP * level + 2 for level in range(len(widths))]
    drawing = Drawing("flow", left[-1] + widths[-1] + 2, rows * ROW + 4)
    for node, below in children.items():
        for child in below:
            x0 = left[depth[node]] + len(labels[node]) * LETTER + 18
            x1, y0, y1 = left[depth[child]] - 2, row[node] * ROW + 14, row[child] * ROW + 14
            bend = left[depth[child]] - GAP / 2
            drawing.path([(x0, y0), (bend, y0), (bend, y1), (x1, y1)], "line", 1.4, arrow=True)
    for node, label in labels.items():
        x, y = left[depth[node]], row[node] * ROW + 3
        drawing.box(x, y, len(label) * LETTER + 18, 22, "panel", stroke="var(--f-line)")
        drawing.text(x + 9, y + 15, label, size=12.5)
    return drawing.svg()
