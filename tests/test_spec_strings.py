"""Strings of a config are read as calls, and never evaluated."""

import pytest

from cone_jax import spec_strings


@pytest.mark.parametrize(
    "text",
    ["", "1", "knn(", "a.b()", "knn(k=open('x'))", "knn(k=1)(2)", "knn; x", "[knn]", "knn(**{})"],
)
def test_what_is_no_call_of_literals_is_refused(text):
    with pytest.raises(ValueError, match="is not a name with literals"):
        spec_strings.read(text)


@pytest.mark.parametrize("text", ["a)", "knn(k=1", "a] + [b", "a;b", "x=1"])
def test_what_is_no_list_is_refused(text):
    with pytest.raises(ValueError, match="joined by commas"):
        spec_strings.separate(text)


def test_a_list_falls_apart_at_its_own_commas_only():
    text = "classification, knn(k=20, name='a,b'),robustness(corruptions=('fog', 'snow'))"
    assert spec_strings.separate(text) == (
        "classification",
        "knn(k=20, name='a,b')",
        "robustness(corruptions=('fog', 'snow'))",
    )
    assert spec_strings.separate("  ") == ()
