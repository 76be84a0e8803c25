"""The benchmark's numbers are data: any change of one is noticed."""

import hashlib
import json

from cone_jax.evaluation.corruptions import CORRUPTIONS, parameters
from cone_jax.evaluation.corruptions.parameters import PARAMETERS

# Of the two tables as canonical JSON, compared by hand with the published definitions.
CHECKSUM = "da568bfe64a5c8463b43d01d7eb091e19f47814381a6b406d18fa534b893382f"


def test_no_number_has_changed():
    text = json.dumps(PARAMETERS, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == CHECKSUM


def test_every_corruption_has_five_severities_in_both_tables():
    for table in PARAMETERS.values():
        assert table.keys() == CORRUPTIONS.keys()
        assert {len(strengths) for strengths in table.values()} == {5}


def test_elastic_lengths_are_the_published_pixels():
    height, sigma, jitter = (part * 224 for part in PARAMETERS["imagenet"]["elastic_transform"][1])
    assert (round(height, 6), round(sigma, 6), round(jitter, 6)) == (488.0, 19.52, 48.8)


def test_small_pictures_have_numbers_of_their_own():
    assert [parameters.table_for(side, side) for side in (8, 32, 64, 65, 224)] == [
        *["cifar"] * 3,
        *["imagenet"] * 2,
    ]
    assert parameters.table_for(32, 100) == "imagenet"
