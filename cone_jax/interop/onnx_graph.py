"""An ONNX graph under construction: nodes, constants, and the shapes of what flows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cone_jax.errors import UserError

Dimension = Any  # an int, or the symbolic number of images
Shape = tuple[Dimension, ...]


class Value(NamedTuple):
    """A tensor of the graph.

    Its shape may have 1 where the computation's has more: an expansion that has not been
    necessary so far, because ONNX broadcasts the operands of elementwise operations.
    """

    name: str
    shape: Shape


# What is known already is a NumPy array; what depends on the input is a Value.
Operand = Value | np.ndarray
# Of a conditional: operations on one float64 tensor each, with their attributes.
Branch = Sequence[tuple[str, str, dict[str, Any]]]


class Graph:
    """Collects nodes and constants; `images` is the only input."""

    def __init__(self, images_shape: Shape) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.images = Value("images", images_shape)
        self._onnx = import_optional("onnx")

    def emit(
        self,
        operation: str,
        inputs: Sequence[Operand],
        shape: Shape,
        *,
        output: str | None = None,
        **attributes: Any,
    ) -> Value:
        """Adds one node with one output."""
        (value,) = self.emit_many(operation, inputs, [shape], outputs=output, **attributes)
        return value

    def emit_many(
        self,
        operation: str,
        inputs: Sequence[Operand],
        shapes: Sequence[Shape],
        *,
        outputs: str | None = None,
        **attributes: Any,
    ) -> list[Value]:
        """Adds one node with as many outputs as there are shapes."""
        stem = outputs or f"v{len(self.nodes)}"
        names = [stem if len(shapes) == 1 else f"{stem}_{i}" for i in range(len(shapes))]
        operands = [self._name(operand) for operand in inputs]
        self.nodes.append(self._onnx.helper.make_node(operation, operands, names, **attributes))
        return [Value(name, shape) for name, shape in zip(names, shapes, strict=True)]

    def emit_if(self, condition: Value, then: Branch, otherwise: Branch) -> list[Value]:
        """Adds one node with as many outputs as each branch has operations, of unknown shape."""
        helper, stem = self._onnx.helper, f"v{len(self.nodes)}"

        def branch(name: str, operations: Branch) -> Any:
            names = [f"{stem}_{name}_{i}" for i in range(len(operations))]
            nodes = [
                helper.make_node(operation, [operand], [output], **attributes)
                for (operation, operand, attributes), output in zip(operations, names, strict=True)
            ]
            double = self._onnx.TensorProto.DOUBLE
            outputs = [helper.make_tensor_value_info(each, double, None) for each in names]
            return helper.make_graph(nodes, f"{stem}_{name}", [], outputs)

        return self.emit_many(
            "If",
            [condition],
            [()] * len(then),
            then_branch=branch("then", then),
            else_branch=branch("else", otherwise),
        )

    def reshape(self, operand: Operand, shape: Shape) -> Operand:
        """The same values in another shape, of which one size may be symbolic."""
        if _equal(operand.shape, shape):
            return operand
        if isinstance(operand, np.ndarray):
            return operand.reshape(shape)
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        return self.emit("Reshape", [operand, np.array(sizes, np.int64)], shape)

    def expand(self, operand: Operand, shape: Shape) -> Operand:
        """`operand` expanded to `shape` where it has 1."""
        if _equal(operand.shape, shape):
            return operand
        if all(isinstance(size, int) for size in shape):
            return self.emit("Expand", [operand, np.array(shape, np.int64)], shape)
        rows = self.emit("Shape", [self.images], (1,), start=0, end=1)
        sizes = [np.array([size], np.int64) if isinstance(size, int) else rows for size in shape]
        return self.emit(
            "Expand", [operand, self.emit("Concat", sizes, (len(shape),), axis=0)], shape
        )

    def _name(self, operand: Operand) -> str:
        if isinstance(operand, Value):
            return operand.name
        name = f"c{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(operand), name))
        return name


def import_optional(name: str) -> Any:
    """A package that only this format needs."""
    try:
        return __import__(name)
    except ImportError:
        raise UserError(
            f"--format (onnx) needs the package {name}: pip install onnx onnxruntime"
        ) from None


def _equal(left: Shape, right: Shape) -> bool:
    return len(left) == len(right) and all(
        type(a) is type(b) and a == b for a, b in zip(left, right, strict=True)
    )
