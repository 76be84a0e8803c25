"""Draws all figures: ``python -m docs.figures``."""

import importlib

from docs.figures.drawing import FOLDER

NAMES = ("method", "gradient", "bank", "device", "batch")


def main() -> None:
    for name in NAMES:
        text = importlib.import_module(f"docs.figures.{name}").draw()
        (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")
        print(f"docs/figures/{name}.svg")


if __name__ == "__main__":
    main()
