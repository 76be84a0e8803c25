"""An ONNX graph that takes pictures of any size: Pillow's pixels, and what `predict` says."""

import functools

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cone_jax import interop, models
from cone_jax.errors import UserError
from cone_jax.interop import onnx_export, onnx_pixels
from cone_jax.interop.onnx_graph import Graph
from cone_jax.prediction import open_model
from examples import onnx_predict
from tests.models import random_variables

STEPS = {
    "as recipes do": ("resize(37)", "centre_crop(32)"),
    "bicubic": ("resize(36, interpolation='bicubic')", "centre_crop(31)"),
    "both sides": ("resize((40, 33))", "centre_crop((32, 32))"),
    "twice": ("resize(60)", "centre_crop(50)", "resize(36)", "centre_crop(32)"),
}


def described(**changed):
    fields = {"image_size": 32, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}
    fields |= {"class_names": ("ant", "bee", "cat"), "transforms": STEPS["as recipes do"]}
    return interop.ExportMetadata(**(fields | changed))


@functools.cache
def preparation(name):
    """The first part of the graph alone, without normalisation."""
    size = 31 if name == "bicubic" else 32
    graph = Graph(("batch", size, size, 3))
    data = described(image_size=size, mean=(0.0,) * 3, std=(1 / 255,) * 3, transforms=STEPS[name])
    onnx_pixels.emit_preparation(graph, data)
    kinds = {"picture": onnx.TensorProto.UINT8, "images": onnx.TensorProto.FLOAT}
    values = [onnx.helper.make_tensor_value_info(*each, None) for each in kinds.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "test", values[:1], values[1:], graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", onnx_export.OPSET)],
        ir_version=onnx_export.IR_VERSION,
    )
    return onnxruntime.InferenceSession(model.SerializeToString())


def by_pillow(name, pixels):
    """The steps as Pillow's own calls, written without the code that the graph is made from."""
    image = Image.fromarray(pixels)
    kind = Image.Resampling.BICUBIC if name == "bicubic" else Image.Resampling.BILINEAR
    plans = {"as recipes do": [(37, 32)], "bicubic": [(36, 31)], "both sides": [((33, 40), 32)]}
    for size, crop in plans.get(name, [(60, 50), (36, 32)]):
        width, height = image.size
        short = min(width, height)
        both = size if isinstance(size, tuple) else (size * width // short, size * height // short)
        image = image.resize(both, kind)
        left, top = (round((side - crop) / 2) for side in image.size)
        image = image.crop((left, top, left + crop, top + crop))
    return np.asarray(image)


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 150), width=st.integers(1, 150), seed=st.integers(0, 99))
def test_the_pixels_are_pillows(name, height, width, seed):
    rng = np.random.default_rng(seed)
    # Extremes, so that rounding and clipping matter.
    pixels = rng.choice(np.array([0, 1, 254, 255, 100], np.uint8), (height, width, 3))
    (found,) = preparation(name).run(None, {"picture": pixels})
    np.testing.assert_allclose(found[0], np.rint(found[0]), atol=1e-4)
    np.testing.assert_array_equal(np.rint(found[0]), by_pillow(name, pixels))


def test_a_tall_picture_is_resized_along_its_height_first():
    """Which Pillow does as well: the other order gives other pixels here."""
    pixels = np.random.default_rng(0).integers(0, 256, (323, 128, 3), np.uint8)
    (found,) = preparation("as recipes do").run(None, {"picture": pixels})
    np.testing.assert_array_equal(np.rint(found[0]), by_pillow("as recipes do", pixels))
    wide = Image.fromarray(pixels).resize((37, 323), Image.Resampling.BILINEAR)
    other = np.asarray(wide.resize((37, 93), Image.Resampling.BILINEAR))[30:62, 2:34]
    assert np.any(other != np.rint(found[0]))


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    encoder = models.create("resnet8", 3, stem="cifar", width=4)
    variables = random_variables.draw(encoder, 32)
    directory = tmp_path_factory.mktemp("exports")
    for format in ("onnx", "onnx_pixels"):
        interop.export(format, variables, encoder, described(), directory)
    return directory


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of several sizes, formats and modes, one of them to be turned."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(1)
    paths = []
    for number, shape in enumerate([(40, 50, 3), (300, 90, 3), (20, 25, 3), (64, 33)]):
        path = folder / f"{number}.{('jpg', 'png')[number % 2]}"
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 0 else 1
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path, exif=exif)
        paths.append(path)
    noise = rng.integers(0, 256, (40, 50, 4), np.uint8)
    for name, picture in {
        "transparent.png": Image.fromarray(noise),
        "transparent.webp": Image.fromarray(noise),
        "grey_alpha.png": Image.fromarray(noise[..., :2]),
        "palette.png": Image.fromarray(noise[..., :3]).quantize(16),
        "16_bits.png": Image.fromarray(noise[..., 0].astype(np.uint16) * 257),
        "ink.jpg": Image.fromarray(noise[..., :3]).convert("CMYK"),
    }.items():
        transparency = {"transparency": 3} if name == "palette.png" else {}
        picture.save(folder / name, **transparency)
        paths.append(folder / name)
    return paths


def test_the_example_says_what_predict_says(export, pictures):
    example = onnx_predict.predict(export / "onnx_pixels", pictures)
    predicted = open_model(export / "onnx_pixels")(pictures)
    assert example == [(each.classes[0], each.probabilities[0]) for each in predicted]


def test_pictures_in_the_graph_or_before_it_give_the_same_classes(export, pictures):
    inside, before = (open_model(export / name)(pictures) for name in ("onnx_pixels", "onnx"))
    for one, other in zip(inside, before, strict=True):
        assert one.classes == other.classes
        np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-5)


def test_pictures_of_a_run_that_resizes_nothing_are_brought_to_its_size():
    assert described(transforms=()).complete_transforms() == ("resize(32)", "centre_crop(32)")
    assert described().complete_transforms() == described().transforms


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"pixels": "fast"}, "test_pixels"),
        ({"transforms": ("resize(37)", "centre_crop(32)", "grey")}, "test_transforms"),
        ({"transforms": ("resize(20)", "centre_crop(32)")}, "test_transforms"),
    ],
)
def test_what_the_graph_cannot_do_is_refused(changed, named):
    graph = Graph(("batch", 32, 32, 3))
    with pytest.raises(UserError, match=rf"--format \(onnx_pixels\).*{named}"):
        onnx_pixels.emit_preparation(graph, described(**changed))
