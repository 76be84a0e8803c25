"""The way of a picture to the network's input as ONNX nodes: resize, crop, normalise.

The pixels are Pillow's, to the bit, which ONNX's own Resize does not promise: it computes in
floating point, while Pillow rounds twice. So the graph does what Pillow 13 does. From the size of
the picture it computes the weights of the filter in float64, rounds them to multiples of 2^-22, and
resizes along one side and then the other by a matrix product each. All numbers in them are integers
below 2^53, hence exact in float64, in whatever order a runtime adds them. After each, the result is
rounded to 8 bits. Which side comes first matters to the rounding: the width, unless the height
shrinks by more than twice as many pixels.
"""

from typing import Any, NamedTuple

import numpy as np

from cone_jax import spec_strings
from cone_jax.data import transforms
from cone_jax.data.transforms import geometry
from cone_jax.errors import UserError
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.interop.onnx_graph import Branch, Graph, Operand, Value, import_optional

PICTURE = "picture"  # the input: uint8 [height, width, 3]
# Pillow keeps 22 bits of a weight: 32, less 8 of the pixel and 2 to spare.
_UNIT = 2.0**22


class Filter(NamedTuple):
    """A resampling filter: how far it reaches, and its polynomials in |x|, from the centre out."""

    support: float
    pieces: tuple[tuple[float, ...], ...]  # coefficients by falling power, for |x| < 1, < 2 ...


FILTERS = {
    "bilinear": Filter(1.0, ((-1.0, 1.0),)),
    "bicubic": Filter(2.0, ((1.5, -2.5, 0.0, 1.0), (-0.5, 2.5, -4.0, 2.0))),
}


def emit_preparation(graph: Graph, data: ExportMetadata) -> None:
    """Adds the nodes from `PICTURE` to ``images`` [1, S, S, 3], the input of the network."""
    picture = Value(PICTURE, ("height", "width", 3))
    for resize, crop in _steps(data):
        picture = _resized_crop(graph, picture, resize, crop)
    scale = np.float32(1.0) / (np.float32(255.0) * np.asarray(data.std, np.float32))
    offset = np.asarray(data.mean, np.float32) / np.asarray(data.std, np.float32)
    size = data.image_size
    pixels = _emit(graph, "Cast", picture, to=_type("FLOAT"))
    pixels = _emit(graph, "Sub", _emit(graph, "Mul", pixels, scale), offset)
    graph.emit(
        "Reshape", [pixels, np.array([1, size, size, 3])], (1, size, size, 3), output="images"
    )


def _steps(data: ExportMetadata) -> list[tuple[geometry.Resize, geometry.CentreCrop]]:
    """The transforms as pairs of a resize and a crop, all that a graph can do."""
    if data.pixels == "fast":
        raise UserError(
            "--format (onnx_pixels) computes Pillow's exact pixels; the run has data.test_pixels "
            "('fast'), so take --format=onnx"
        )
    pipeline = transforms.parse(data.complete_transforms(), pixels=data.pixels)
    steps = []
    for transform in pipeline.transforms:
        if not isinstance(transform, geometry.ResizedCentreCrop) or _pads(transform):
            raise UserError(
                f"--format (onnx_pixels) can resize and crop; data.test_transforms "
                f"({', '.join(data.transforms)}) do something else, so take --format=onnx"
            )
        steps.append((transform.resize, transform.crop))
    return steps


def _pads(step: geometry.ResizedCentreCrop) -> bool:
    """Whether the crop may be larger than the resized picture, which puts black around it."""
    crop = spec_strings.height_and_width("size", step.crop.size)
    resized = spec_strings.height_and_width("size", step.resize.size)
    return any(inner > outer for inner, outer in zip(crop, resized, strict=True))


def _resized_crop(
    graph: Graph, picture: Value, resize: geometry.Resize, crop: geometry.CentreCrop
) -> Value:
    """uint8 [h, w, 3] -> float64 integers [crop height, crop width, 3]."""
    shape = _emit(graph, "Shape", picture)
    height, width = (_emit(graph, "Gather", shape, np.array(axis)) for axis in (0, 1))
    to_height, to_width = _output_size(graph, resize, height, width)
    crop_height, crop_width = spec_strings.height_and_width("size", crop.size)
    chosen = FILTERS[resize.interpolation]
    across = _weights(graph, chosen, width, to_width, crop_width)
    down = _weights(graph, chosen, height, to_height, crop_height)
    pixels = _emit(graph, "Cast", picture, to=_type("DOUBLE"))
    planes = _emit(graph, "Transpose", pixels, perm=[2, 0, 1])
    lost = [_emit(graph, "Sub", *sizes) for sizes in ((height, to_height), (width, to_width))]
    twice = _emit(graph, "Mul", lost[1], np.array(2))
    height_first = _emit(
        graph,
        "And",
        _emit(graph, "Greater", lost[0], np.array(0)),
        _emit(graph, "Greater", lost[0], twice),
    )
    # The height first is the width first of the picture turned over its diagonal.
    planes = _turned(graph, height_first, planes, (0, 2, 1))
    first, second = _swapped(graph, height_first, across, down)
    narrow = _rounded(graph, _emit(graph, "MatMul", planes, _transposed(graph, first)))
    small = _rounded(graph, _emit(graph, "MatMul", second, narrow))
    small = _turned(graph, height_first, small, (0, 2, 1))
    return _emit(graph, "Transpose", small, perm=[1, 2, 0])


def _transposed(graph: Graph, matrix: Value) -> Value:
    return _emit(graph, "Transpose", matrix, perm=[1, 0])


def _turned(graph: Graph, condition: Value, tensor: Value, order: tuple[int, ...]) -> Value:
    """`tensor` with its axes in another order where the condition holds."""
    then: Branch = [("Transpose", tensor.name, {"perm": list(order)})]
    (result,) = graph.emit_if(condition, then, [_same(tensor)])
    return result


def _swapped(graph: Graph, condition: Value, left: Value, right: Value) -> list[Value]:
    """The two, exchanged where the condition holds."""
    orders = ((right, left), (left, right))
    then, otherwise = ([_same(each) for each in order] for order in orders)
    return graph.emit_if(condition, then, otherwise)


def _same(tensor: Value) -> tuple[str, str, dict[str, Any]]:
    return "Identity", tensor.name, {}


def _output_size(
    graph: Graph, resize: geometry.Resize, height: Value, width: Value
) -> tuple[Operand, Operand]:
    """As `Resize.output_size`: the short side becomes the size, the long side is rounded down."""
    if isinstance(resize.size, tuple):
        return np.array(resize.size[0]), np.array(resize.size[1])
    short = _emit(graph, "Min", height, width)

    def scaled(side: Value) -> Value:
        return _emit(graph, "Div", _emit(graph, "Mul", side, np.array(resize.size)), short)

    return scaled(height), scaled(width)


def _weights(graph: Graph, filter: Filter, size: Value, resized: Operand, kept: int) -> Value:
    """[kept, size]: Pillow's weights of all pixels of a line for the central `kept` results.

    Multiples of 2^-22, as integers in float64. The order of operations is that of Pillow's
    `precompute_coeffs`, so that float64 rounds alike.
    """

    def emit(operation: str, *operands: Operand, **attributes: Any) -> Value:
        return _emit(graph, operation, *operands, **attributes)

    def number(value: float) -> np.ndarray:
        return np.array(value, np.float64)

    ends = emit("Cast", size, to=_type("DOUBLE"))
    scale = emit("Div", ends, emit("Cast", resized, to=_type("DOUBLE")))
    widened = emit("Max", scale, number(1.0))  # a filter that is never narrower than a pixel
    support = emit("Mul", widened, number(filter.support))
    spare = emit("Cast", emit("Sub", resized, np.array(kept)), to=_type("DOUBLE"))
    margin = emit("Round", emit("Div", spare, number(2.0)))  # halves to even, as Python's round
    place = emit("Add", margin, np.arange(kept) + 0.5)
    centre = emit("Unsqueeze", emit("Mul", place, scale), np.array([1]))
    first = emit("Floor", emit("Add", emit("Sub", centre, support), number(0.5)))
    first = emit("Max", first, number(0.0))
    last = emit("Floor", emit("Add", emit("Add", centre, support), number(0.5)))
    last = emit("Min", last, ends)
    pixel = emit("Cast", emit("Range", np.array(0), size, np.array(1)), to=_type("DOUBLE"))
    distance = emit("Add", emit("Sub", pixel, centre), number(0.5))
    distance = emit("Abs", emit("Mul", distance, emit("Reciprocal", widened)))
    inside = emit("And", emit("GreaterOrEqual", pixel, first), emit("Less", pixel, last))
    weight = emit("Where", inside, _filtered(graph, filter, distance), number(0.0))
    # From the first to the last, as Pillow adds them; ReduceSum may take another order.
    sums = emit("CumSum", weight, np.array(1))
    total = emit("Gather", sums, np.array([-1]), axis=1)
    fixed = emit("Mul", emit("Div", weight, total), number(_UNIT))
    # Halves away from zero, as a cast to int of the value plus or minus a half.
    rounded = emit("Floor", emit("Add", emit("Abs", fixed), number(0.5)))
    return emit("Mul", emit("Sign", fixed), rounded)


def _filtered(graph: Graph, filter: Filter, distance: Value) -> Operand:
    """The filter at a distance of at least 0, by Horner's rule."""
    result: Operand = np.array(0.0, np.float64)
    for piece in range(len(filter.pieces) - 1, -1, -1):
        value: Operand = np.array(filter.pieces[piece][0], np.float64)
        for coefficient in filter.pieces[piece][1:]:
            value = _emit(graph, "Mul", value, distance)
            value = _emit(graph, "Add", value, np.array(coefficient, np.float64))
        near = _emit(graph, "Less", distance, np.array(piece + 1.0, np.float64))
        result = _emit(graph, "Where", near, value, result)
    return result


def _rounded(graph: Graph, sums: Value) -> Value:
    """Sums of pixels times weights as 8 bits: half up, and clipped."""
    shifted = _emit(graph, "Add", sums, np.array(_UNIT / 2, np.float64))
    whole = _emit(graph, "Floor", _emit(graph, "Div", shifted, np.array(_UNIT, np.float64)))
    return _emit(graph, "Clip", whole, np.array(0.0, np.float64), np.array(255.0, np.float64))


def _emit(graph: Graph, operation: str, *operands: Operand, **attributes: Any) -> Value:
    """Adds one node; shapes before the network are not needed."""
    return graph.emit(operation, operands, (), **attributes)


def _type(name: str) -> int:
    return int(getattr(import_optional("onnx").TensorProto, name))
