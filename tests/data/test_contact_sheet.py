"""Sheets of pictures: every pixel where it belongs, and captions that keep to their place."""

import numpy as np
import pytest
from PIL import Image

from cone_jax.data import contact_sheet

COLOURS = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200], [200, 200, 0], [0, 200, 200]], np.uint8)


def solid(count: int, side: int) -> np.ndarray:
    return np.broadcast_to(COLOURS[:count, None, None], (count, side, side, 3))


def area(sheet: Image.Image, colour: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the pixels of one colour, which must fill that box."""
    rows, columns = np.nonzero((np.asarray(sheet) == colour).all(-1))
    box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    assert len(rows) == (box[2] - box[0]) * (box[3] - box[1])
    return box


def test_every_sample_is_drawn_whole_row_by_row():
    sheet = contact_sheet.draw(solid(5, 100), ["name"] * 5, columns=3)
    boxes = [area(sheet, colour) for colour in COLOURS]
    assert all((right - left, bottom - top) == (100, 100) for left, top, right, bottom in boxes)
    lefts, tops = [box[0] for box in boxes], [box[1] for box in boxes]
    assert lefts[0] < lefts[1] < lefts[2]
    assert (lefts[3], lefts[4]) == (lefts[0], lefts[1])
    assert tops[0] == tops[1] == tops[2] < tops[3] == tops[4]


def test_small_pictures_are_enlarged_pixel_by_pixel():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 200, (1, 8, 8, 3), np.uint8)
    sheet = np.asarray(contact_sheet.draw(images, [""]))
    rows, columns = np.nonzero((sheet != 255).all(-1))
    drawn = sheet[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert drawn.shape == (96, 96, 3)
    np.testing.assert_array_equal(drawn, images[0].repeat(12, 0).repeat(12, 1))


def test_two_views_stand_side_by_side():
    views = np.stack([solid(2, 100), solid(5, 100)[3:]], axis=1)
    sheet = contact_sheet.draw(views, ["a", "b"])
    first, second = area(sheet, COLOURS[0]), area(sheet, COLOURS[3])
    assert second == (first[0] + 100, first[1], first[2] + 100, first[3])


def test_captions_stand_below_their_picture_and_inside_its_width():
    plain = np.asarray(contact_sheet.draw(solid(2, 100), ["", "\n" * 5], columns=2), np.int64)
    named = contact_sheet.draw(solid(2, 100), ["owl", "a very long name " * 20], columns=2)
    ink = np.abs(np.asarray(named, np.int64) - plain).any(-1)
    for index, width in ((0, 40), (1, 100)):
        left, _, right, bottom = area(named, COLOURS[index])
        rows, columns = np.nonzero(ink[:, left : right + 10])
        assert bottom <= rows.min()
        assert rows.max() < bottom + (24 if index == 0 else 6 * 20 + 4)
        assert width * 0.5 < columns.max() - columns.min() <= width


@pytest.mark.parametrize(
    ("images", "captions"),
    [(solid(2, 8), ["a"]), (solid(2, 8)[0], ["a"] * 8), (solid(1, 8) / 255, ["a"])],
)
def test_wrong_arguments_are_refused(images, captions):
    with pytest.raises(ValueError, match="must be uint8"):
        contact_sheet.draw(images, captions)


def test_names_that_begin_alike_are_told_apart_by_the_whole_of_them():
    font = contact_sheet._font("a")[0]
    names = ["is West_Highland_white_terrier", "is West_Highland_grey_terrier"]
    lines = [contact_sheet._lines(name, font, 96) for name in names]
    assert ["".join(each).replace(" ", "") for each in lines] == [n.replace(" ", "") for n in names]
    assert all(font.getlength(line) <= 96 for each in lines for line in each)
    assert contact_sheet._lines("one\ntwo", font, 96) == ["one", "two"]


@pytest.mark.parametrize("text", ["Rotkehlchen für Anfänger", "снегирь", "κουκουβάγια", "Łoś"])
def test_accents_greek_and_cyrillic_are_letters_not_boxes(text):
    """Two letters of a script give different pictures; boxes would be the same."""
    assert contact_sheet.missing_characters([text]) == ""
    font = contact_sheet._font(text)[0]
    drawn = {bytes(font.getmask(letter)) for letter in text if not letter.isascii()}
    assert len(drawn) == len({letter for letter in text if not letter.isascii()})


def test_each_caption_has_the_font_of_its_script(monkeypatch):
    """One font for all of them would show the names of one script as boxes."""
    known = {"latin": "owl", "cjk": "猫"}
    monkeypatch.setattr(contact_sheet, "_fonts", lambda: iter(known))
    monkeypatch.setattr(
        contact_sheet, "_known_to", lambda path: frozenset(map(ord, known[path] + "é"))
    )
    default, asked = contact_sheet._font("a")[0], []
    monkeypatch.setattr(
        contact_sheet.ImageFont, "truetype", lambda path, size: asked.append(path) or default
    )
    contact_sheet.draw(solid(2, 8), ["olé", "猫"])
    assert asked == ["latin", "cjk"]
    assert contact_sheet.missing_characters(["olé", "猫", "é猫犬"]) == "犬"


def test_characters_without_a_font_are_named(monkeypatch):
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    assert contact_sheet.missing_characters(["owl 猫"]) == "猫"


def test_of_an_endless_name_both_ends_are_shown():
    font = contact_sheet._font("a")[0]
    name = "_".join(["endless"] * 12)
    first, second = f"99% {name}_male,", f"is {name}_female"
    lines = contact_sheet._lines(f"{first}\n{second}", font, 96)
    assert len(lines) == 12
    assert all(font.getlength(line) <= 96 for line in lines)
    for half, whole in ((lines[:6], first), (lines[6:], second)):
        begin, _, end = "".join(half).partition("…")
        assert whole.startswith(begin)
        assert whole.endswith(end)
        assert end.endswith(whole[-6:])


def test_a_caption_with_a_name_read_from_the_right_begins_at_the_left():
    """The picture of "99% כלב" begins with the figure."""

    def ink(caption):
        sheet = np.asarray(contact_sheet.draw(solid(1, 96), [caption]).convert("L"))
        return sheet[96 + contact_sheet._GAP :] < 128

    whole, figure = ink("99% כלב"), ink("99% é")
    columns = figure.any(axis=0).nonzero()[0]
    width = columns[0] + 18  # two digits
    assert (whole[:, :width] == figure[: len(whole), :width]).all()


def test_texts_name_the_fonts_that_they_need(monkeypatch):
    known = {"DejaVu": "é", "cjk": "猫犬", "other": "猫"}
    monkeypatch.setattr(contact_sheet, "_fonts", lambda: iter(known))
    monkeypatch.setattr(contact_sheet, "_known_to", lambda path: frozenset(map(ord, known[path])))
    assert contact_sheet.font_files(["owl", "é", "猫", "犬"]) == ["cjk"]
