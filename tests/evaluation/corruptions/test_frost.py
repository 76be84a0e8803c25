"""Frost: the benchmark's photographs where there are any, or a texture of their strength."""

import numpy as np
import pytest
from PIL import Image

from cone_jax.errors import UserError
from cone_jax.evaluation.corruptions import SEVERITIES, corrupt, frost

# Mean change of pixels of 0.45, in 400 cuts of the photographs in imagecorruptions 1.1.2.
PUBLISHED = {
    "imagenet": (0.2513, 0.2864, 0.3044, 0.2830, 0.2926),
    "cifar": (0.1263, 0.1889, 0.2068, 0.1843, 0.1722),
}


def save(path, pixels):
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


def frosted(image, severity, table, folder, seed=0):
    rng = np.random.default_rng(seed)
    return corrupt(np.asarray(image, np.uint8), "frost", severity, rng, table, str(folder))


@pytest.mark.parametrize("table", PUBLISHED)
def test_the_texture_changes_pixels_as_much_as_the_photographs(table):
    grey = np.full((32, 32, 3), round(255 * 0.45))
    for severity, published in zip(SEVERITIES, PUBLISHED[table], strict=True):
        made = np.stack([frosted(grey, severity, table, "", seed) for seed in range(200)])
        assert np.mean(np.abs(made / 255 - 0.45)) == pytest.approx(published, rel=0.08)


def test_the_texture_has_the_contrast_of_the_photographs_in_every_octave():
    """Deviation of the brightness in 60 cuts of the photographs, as they are drawn."""
    published = (0.0399, 0.0306, 0.0334, 0.0366, 0.0390, 0.0425, 0.0366)
    rows, columns = np.fft.fftfreq(224)[:, None] * 224, np.fft.fftfreq(224) * 224
    cycles = np.sqrt(rows**2 + columns**2)
    power = np.zeros(len(published))
    for seed in range(60):
        ice = frost.frost(np.zeros((224, 224, 3)), (1, 1), np.random.default_rng(seed))
        spectrum = np.abs(np.fft.fft2(ice.mean(axis=-1)) / 224**2) ** 2
        for octave in range(len(published)):
            end = 2.0 ** (octave + 1) if octave < 6 else np.inf
            power[octave] += spectrum[(cycles >= 2**octave) & (cycles < end)].sum() / 60
    np.testing.assert_allclose(np.sqrt(power), published, rtol=0.15)


def test_a_photograph_is_cut_and_laid_over_the_picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3))
    save(tmp_path / "frost1.png", pixels)
    found = frosted(np.full((16, 16, 3), 100), 2, "imagenet", frost.find(str(tmp_path)))
    cuts = [
        np.clip(0.8 * 100 + 0.6 * pixels[top : top + 16, left : left + 16], 0, 255)
        for top in range(15)
        for left in range(25)
    ]
    assert sum(np.abs(found - cut).max() <= 0.5 + 1e-9 for cut in cuts) == 1


def test_small_pictures_see_each_fifth_pixel(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3))
    save(tmp_path / "frost1.png", pixels)
    found = frosted(np.zeros((4, 4, 3)), 3, "cifar", tmp_path)
    np.testing.assert_allclose(found, 0.4 * pixels[2::5, 2::5], atol=0.5 + 1e-9)


def test_a_photograph_is_enlarged_for_a_larger_picture(tmp_path):
    save(tmp_path / "a.jpg", np.full((10, 12, 3), 200))
    found = frosted(np.zeros((70, 65, 3)), 1, "imagenet", tmp_path)
    np.testing.assert_allclose(found, 80, atol=1)


def test_five_of_six_photographs_are_drawn(tmp_path):
    for number in range(6):
        save(tmp_path / f"frost{number}.png", np.full((8, 8, 3), 40 * number))
    found = frost.photographs(str(tmp_path), shrunk=False)
    black, rng = np.zeros((8, 8, 3)), np.random.default_rng(0)
    drawn = {round(frost.frost(black, (1, 255), rng, found).max()) for _ in range(60)}
    assert drawn == {0, 40, 80, 120, 160}


def test_a_folder_without_photographs_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no photographs .*or 'generated'"):
        frost.find(str(tmp_path))
    (tmp_path / "frost1.png").write_text("no picture")
    with pytest.raises(UserError, match=r"frost1.png\) is not a picture"):
        frost.photographs(frost.find(str(tmp_path)), shrunk=False)
    assert frost.find("generated") == ""


def test_an_installed_package_is_used_and_otherwise_a_texture(tmp_path, monkeypatch):
    monkeypatch.setattr(frost, "PACKAGE", "carries_photographs")
    assert frost.find("auto") == ""
    assert frost.describe("") == "a generated texture"
    folder = tmp_path / "carries_photographs" / "frost"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise AssertionError('imported')")
    save(folder / "frost1.png", np.zeros((4, 4, 3)))
    monkeypatch.syspath_prepend(tmp_path)
    assert frost.find("auto") == str(folder)
    assert frost.describe(str(folder)) == f"photographs of {folder}"
