"""Photographs a report for the README: ``python -m docs.images --run=runs/digits``.

A page with two frames is opened in a Chromium without a window. Each shows a copy of the report
of which some parts are left: its head with answers and results, and the nearest neighbours.
Beside it lies ``three.png``, a test digit, which the README's example classifies.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from cone_jax.data.sources.array import open_digits

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
WIDTH, HEIGHT = 1440, 740  # of the picture
GAP = 20
THREE = 5  # the record of a three among the test digits
SEEN = (620, 1000)  # the width in which each part is laid out, left and right
# What is left out: on the left also how long the run took, which depends on the machine.
HIDDEN = (
    "nav, section:not(#answers, #results), .tile:nth-child(n + 4)",
    "header, nav, section:not(#neighbours)",
)
PAGE = """<!doctype html>
<style>
  body {{ margin: 0; background: #cfd4de; overflow: hidden; }}
  iframe {{ position: absolute; top: 0; border: 0; background: #fff; transform-origin: 0 0; }}
</style>
{frames}
"""
FRAME = (
    '<iframe src="{source}" width="{seen}" height="{height:.0f}" '
    'style="left: {left}px; transform: scale({scale})"></iframe>'
)


def page(report: Path, folder: Path) -> str:
    """The two frames, side by side; what they show is written to the folder."""
    text = report.read_text(encoding="utf-8")
    width, frames = (WIDTH - GAP) // 2, []
    for position, (hidden, seen) in enumerate(zip(HIDDEN, SEEN, strict=True)):
        path = folder / f"{position}.html"
        style = f"<style>{hidden} {{ display: none }}</style></head>"
        path.write_text(text.replace("</head>", style, 1), encoding="utf-8")
        left, height = position * (width + GAP), HEIGHT * seen / width
        frames.append(
            FRAME.format(source=path.name, seen=seen, height=height, left=left, scale=width / seen)
        )
    return PAGE.format(frames="\n".join(frames))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--run", type=Path, default=Path("runs/digits"), help="a finished run")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "report.png")
    given = parser.parse_args()
    report = given.run / "report.html"
    if not report.is_file():
        parser.error(f"{report} is missing: make train")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        parser.error("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        frames = Path(folder) / "frames.html"
        frames.write_text(page(report, Path(folder)), encoding="utf-8")
        size, out = f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={given.out.absolute()}"
        command = (browser, *FLAGS, f"--user-data-dir={folder}/profile", size, out)
        subprocess.run((*command, frames.as_uri()), check=True, capture_output=True)
    picture = Image.fromarray(open_digits("test")[THREE].image)
    picture.save(given.out.with_name("three.png"))
    print(given.out)


if __name__ == "__main__":
    main()
