"""JAX operations as ONNX nodes: those the architectures here use in evaluation mode.

A translation takes the graph, the operands, the equation's parameters and the shapes of its
results, and returns the result, or a list where there are several.
"""

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cone_jax.interop.onnx_graph import Graph, Operand, Shape, Value

Params = Mapping[str, Any]
Translation = Callable[[Graph, list[Operand], Params, list[Shape]], Operand | list[Value]]


def _elementwise(operation: str) -> Translation:
    def translate(
        graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]
    ) -> Value:
        return graph.emit(operation, operands, _broadcast([tuple(o.shape) for o in operands]))

    return translate


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """What ONNX makes of these shapes together: in each place the size that is not 1."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(
        next((size for size in sizes if not isinstance(size, int) or size != 1), 1)
        for sizes in zip(*padded, strict=True)
    )


def _rsqrt(graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]) -> Value:
    root = graph.emit("Sqrt", operands, tuple(operands[0].shape))
    return graph.emit("Reciprocal", [root], root.shape)


def _square(graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]) -> Value:
    return graph.emit("Mul", [operands[0], operands[0]], tuple(operands[0].shape))


def _erfc(graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]) -> Value:
    erf = graph.emit("Erf", operands, tuple(operands[0].shape))
    return graph.emit("Sub", [np.array(1.0, np.float32), erf], erf.shape)


def _identity(
    graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]
) -> Operand:
    return operands[0]


def _broadcast_in_dim(
    graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]
) -> Operand:
    """Changes the rank only; `Graph.expand` does the rest where it is needed."""
    sizes: list[Any] = [1] * len(shapes[0])
    for axis, size in zip(params["broadcast_dimensions"], operands[0].shape, strict=True):
        sizes[axis] = size
    return graph.reshape(operands[0], tuple(sizes))


def _reshape(graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]) -> Operand:
    return graph.reshape(operands[0], shapes[0])


def _transpose(graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]) -> Value:
    return graph.emit("Transpose", operands, shapes[0], perm=list(params["permutation"]))


def _concatenate(
    graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]
) -> Value:
    return graph.emit("Concat", operands, shapes[0], axis=params["dimension"])


def _stack(graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]) -> Value:
    axis = params["axis"]
    parts = [
        graph.reshape(o, (*o.shape[:axis], 1, *o.shape[axis:]))  # one more axis to join along
        for o in operands
    ]
    return graph.emit("Concat", parts, shapes[0], axis=axis)


def _split(
    graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]
) -> list[Value]:
    sizes = np.array(params["sizes"], np.int64)
    return graph.emit_many("Split", [operands[0], sizes], shapes, axis=params["axis"])


def _slice(graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]) -> Value:
    """Only the axes that are cut; the symbolic one never is."""
    whole = operands[0].shape
    starts, limits = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * len(starts)
    cut = [
        axis
        for axis, size in enumerate(whole)
        if isinstance(size, int) and (starts[axis], limits[axis], strides[axis]) != (0, size, 1)
    ]
    bounds = [np.array([part[a] for a in cut], np.int64) for part in (starts, limits)]
    steps = np.array([strides[a] for a in cut], np.int64)
    inputs = [operands[0], *bounds, np.array(cut, np.int64), steps]
    return graph.emit("Slice", inputs, shapes[0])


def _reduce(operation: str) -> Translation:
    def translate(
        graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]
    ) -> Value:
        axes = np.array(params["axes"], np.int64)
        return graph.emit(operation, [operands[0], axes], shapes[0], keepdims=0)

    return translate


def _dot_general(
    graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]
) -> Value:
    left, right = operands
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    last = len(left.shape) - 1
    if (tuple(left_sum), tuple(right_sum)) == ((last,), (0,)) and len(right.shape) == 2:
        return graph.emit("MatMul", operands, shapes[0])
    letters = iter(string.ascii_lowercase)
    left_axes = [next(letters) for _ in left.shape]
    right_axes = [next(letters) for _ in right.shape]
    pairs = ((left_sum, right_sum), (left_batch, right_batch))
    for ours, theirs in pairs:
        for a, b in zip(ours, theirs, strict=True):
            right_axes[b] = left_axes[a]
    # JAX's order of results: shared axes, then what remains of the left, then of the right.
    shared = [left_axes[axis] for axis in left_batch]
    summed = {left_axes[axis] for axis in left_sum}
    rest = [x for x in (*left_axes, *right_axes) if x not in summed and x not in shared]
    equation = f"{''.join(left_axes)},{''.join(right_axes)}->{''.join(shared + rest)}"
    return graph.emit("Einsum", operands, shapes[0], equation=equation)


def _conv(graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]) -> Value:
    """ONNX has channels first; onnxruntime removes the transpositions between two of these."""
    images, kernel = operands
    assert isinstance(kernel, np.ndarray)
    assert params["lhs_dilation"] == params["rhs_dilation"] == (1, 1)
    assert params["dimension_numbers"].lhs_spec == (0, 3, 1, 2)  # NHWC
    assert params["dimension_numbers"].rhs_spec == (3, 2, 0, 1)  # HWIO
    batch, height, width, channels = shapes[0]
    result = graph.emit(
        "Conv",
        [_channels_first(graph, images), np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))],
        (batch, channels, height, width),
        strides=list(params["window_strides"]),
        pads=_pads(params["padding"]),
        group=params["feature_group_count"],
    )
    return graph.emit("Transpose", [result], shapes[0], perm=[0, 2, 3, 1])


def _max_pool(graph: Graph, operands: list[Operand], params: Params, shapes: list[Shape]) -> Value:
    batch, height, width, channels = shapes[0]
    result = graph.emit(
        "MaxPool",
        [_channels_first(graph, operands[0])],
        (batch, channels, height, width),
        kernel_shape=list(params["window_dimensions"][1:3]),
        strides=list(params["window_strides"][1:3]),
        pads=_pads(params["padding"][1:3]),
    )
    return graph.emit("Transpose", [result], shapes[0], perm=[0, 2, 3, 1])


def _channels_first(graph: Graph, images: Operand) -> Value:
    batch, height, width, channels = images.shape
    shape = (batch, channels, height, width)
    return graph.emit("Transpose", [images], shape, perm=[0, 3, 1, 2])


def _pads(padding: Sequence[tuple[int, int]]) -> list[int]:
    """ONNX lists what is added before every axis, then what is added after."""
    return [before for before, _ in padding] + [after for _, after in padding]


# Operations whose operands ONNX broadcasts, so that expansions can wait.
BROADCASTING: dict[str, Translation] = {
    "add": _elementwise("Add"),
    "sub": _elementwise("Sub"),
    "mul": _elementwise("Mul"),
    "div": _elementwise("Div"),
    "max": _elementwise("Max"),
    "min": _elementwise("Min"),
    "neg": _elementwise("Neg"),
    "exp": _elementwise("Exp"),
    "erfc": _erfc,
    "logistic": _elementwise("Sigmoid"),
    "rsqrt": _rsqrt,
    "square": _square,
    "copy": _identity,
    "stop_gradient": _identity,
    "broadcast_in_dim": _broadcast_in_dim,
}
OTHERS: dict[str, Translation] = {
    "reshape": _reshape,
    "squeeze": _reshape,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    "split": _split,
    "slice": _slice,
    "reduce_sum": _reduce("ReduceSum"),
    "reduce_max": _reduce("ReduceMax"),
    "dot_general": _dot_general,
    "conv_general_dilated": _conv,
    "reduce_window_max": _max_pool,
}
