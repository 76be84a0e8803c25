import numpy as np
import pytest
from sklearn.datasets import load_digits

from cone_jax.data import sources
from cone_jax.errors import UserError


def test_digits_are_scikit_learns_split_in_two():
    train, test = (sources.create("digits", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (1437, 360)
    reference = load_digits()
    grey = np.rint(reference.images * 255 / 16).astype(np.uint8)
    expected = sorted(
        (image.tobytes(), int(label)) for image, label in zip(grey, reference.target, strict=True)
    )
    found = [
        (source[i].image.tobytes(), source[i].label)
        for source in (train, test)
        for i in range(len(source))
    ]
    assert sorted(found) == expected


def test_kinds_are_named():
    kinds = {"array", "digits", "fgvc_aircraft", "image_folder", "packed", "tfds"}
    kinds |= {"coco", "hf_datasets", "table", "webdataset"}
    assert set(sources.names()) == kinds
    with pytest.raises(UserError, match="did you mean 'image_folder'"):
        sources.create("image_foldr", "train")
    with pytest.raises(UserError, match="'tset'"):
        sources.create("digits", "tset")


@pytest.mark.parametrize("kind", ["array", "fgvc_aircraft", "image_folder", "packed"])
def test_a_source_without_a_path_says_so(kind):
    with pytest.raises(UserError, match=r"data.path is empty"):
        sources.create(kind, "train")


def test_options_reach_the_source(make_folder):
    root = make_folder([f"{name}/{i}.jpg" for name in "ab" for i in range(10)])
    kept = {
        (fraction, seed): sources.create(
            "image_folder", "test", path=str(root), holdout=fraction, holdout_seed=seed
        )
        for fraction in (0.2, 0.5)
        for seed in (0, 1)
    }
    assert [len(source) for source in kept.values()] == [4, 4, 10, 10]
    assert kept[0.5, 0].describe(0) != kept[0.5, 1].describe(0) or (
        kept[0.5, 0].describe(1) != kept[0.5, 1].describe(1)
    )
    with pytest.raises(TypeError):
        sources.create("image_folder", "train", pth=str(root))
