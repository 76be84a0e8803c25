"""Draws all figures, or those that are named: ``python -m docs.figures method``."""

import argparse
import importlib

from docs.figures.drawing import FOLDER

NAMES = ("method", "gradient", "bank", "device", "batch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    chosen = parser.parse_args().names or NAMES
    if not set(chosen) <= set(NAMES):
        parser.error(f"the figures are {', '.join(NAMES)}")
    for name in chosen:
        text = importlib.import_module(f"docs.figures.{name}").draw()
        (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")
        print(f"docs/figures/{name}.svg")


if __name__ == "__main__":
    main()
