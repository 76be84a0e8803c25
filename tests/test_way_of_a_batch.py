"""Following a batch takes few files, and docs/design.md shows them as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "scripts/way_of_a_batch.py"


@pytest.fixture(scope="module")
def picture() -> str:
    command = [sys.executable, str(PROGRAM), "--mermaid"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_way_is_short_and_goes_from_the_entry_point_to_the_checkpoint(picture):
    files = re.findall(r'\["(.+)"\]', picture)
    assert files[0] == "main.py"
    assert {"training/loop", "training/train_step", "losses", "workdir/checkpoints"} <= set(files)
    assert len(files) <= 45


def test_the_design_shows_the_way_as_it_is(picture):
    """The same files; threads read ahead, so their order is not compared."""
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    shown = re.findall(r'\["(.+)"\]', text)
    listed = text.partition("These are the files it finds:")[2].partition("<details>")[0]
    expected = sorted(re.findall(r'\["(.+)"\]', picture))
    assert sorted(shown) == expected, f"put the output of {PROGRAM.name} --mermaid into the page"
    assert sorted(re.findall(r"`(.+?)`", listed)) == expected
