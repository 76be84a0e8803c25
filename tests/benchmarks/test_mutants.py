"""The list of mutants keeps up with the source."""

import pytest

from benchmarks.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.after}")
def test_the_line_is_there_once_and_so_are_its_tests(mutant):
    source = (ROOT / "cone_jax" / mutant.file).read_text()
    assert source.count(mutant.before) == 1
    assert mutant.before != mutant.after
    assert (ROOT / "tests" / mutant.tests).is_file()
