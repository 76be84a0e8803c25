"""The network as an ONNX graph: a translation of its jaxpr, operation by operation.

It covers what the architectures here are made of in evaluation mode and needs only the package
`onnx`. (jax2onnx covers far more, but its release 0.17.1 asks for an older Orbax than the one
checkpoints are written with.) The graph keeps this project's arrangement: ``images`` float32
[batch, H, W, 3] in, ``logits`` and ``embedding`` out. What depends on no input is computed
here, so that BatchNorm is left with a difference, a product and a sum.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core

from cone_jax import storage
from cone_jax.errors import Failure
from cone_jax.interop import onnx_pixels, stablehlo
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.interop.onnx_graph import Graph, Operand, Shape, Value, import_optional
from cone_jax.interop.onnx_operations import BROADCASTING, OTHERS
from cone_jax.models import Encoder

# The oldest file version that has this operator set, for the sake of older runtimes.
OPSET, IR_VERSION = 18, 8


def write(
    path: Path,
    encoder: Encoder,
    variables: Mapping[str, Any],
    image_size: int,
    metadata: Mapping[str, str],
    pixels: ExportMetadata | None = None,
) -> None:
    """Traces the network in evaluation mode and writes the graph.

    With `pixels`, what it says about pictures is in the graph, too: it begins with one picture of
    any size and goes on to ``probabilities``.
    """
    images = stablehlo.batch_of_any_size(image_size)
    graph = Graph(images.shape)
    inputs = [_signature("images", images.shape)]
    if pixels is not None:
        onnx_pixels.emit_preparation(graph, pixels)
        inputs = [_signature(onnx_pixels.PICTURE, ("height", "width", 3), "UINT8")]
    outputs = _add_network(graph, encoder, variables, images)
    if pixels is not None:
        shape = (1, encoder.spec.num_classes)
        graph.emit("Softmax", [Value("logits", shape)], shape, output="probabilities", axis=1)
        outputs.insert(0, _signature("probabilities", shape))
    _save(path, graph, encoder.spec.name, inputs, outputs, metadata)


def _add_network(
    graph: Graph, encoder: Encoder, variables: Mapping[str, Any], images: jax.ShapeDtypeStruct
) -> list[Any]:
    """Adds the nodes from ``images`` to logits and embedding; returns their signatures."""
    infer = stablehlo.inference(encoder, variables)
    jaxpr, outputs = jax.make_jaxpr(infer, return_shape=True)(images)
    results = translate(graph, jaxpr, [graph.images])
    # A dict is flattened in the order of its sorted keys.
    for name, result in zip(sorted(outputs), results, strict=True):
        graph.emit("Identity", [result], outputs[name].shape, output=name)
    return [_signature(name, outputs[name].shape) for name in ("logits", "embedding")]


def _signature(name: str, shape: Shape, kind: str = "FLOAT") -> Any:
    onnx = import_optional("onnx")
    sizes = [size if isinstance(size, int | str) else "batch" for size in shape]
    return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), sizes)


def _save(
    path: Path,
    graph: Graph,
    name: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    metadata: Mapping[str, str],
) -> None:
    onnx = import_optional("onnx")
    model = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, name, inputs, outputs, graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="cone_jax",
    )
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def open_outputs(
    path: Path, names: Sequence[str] = ("logits",)
) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Each output as a function of the graph's input, run by onnxruntime."""
    runtime = import_optional("onnxruntime")
    with storage.local(path) as file:
        session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    kind = np.uint8 if given.name == onnx_pixels.PICTURE else np.float32

    def function(name: str) -> Callable[[np.ndarray], np.ndarray]:
        return lambda array: session.run([name], {given.name: np.asarray(array, kind)})[0]

    return [function(name) for name in names]


def translate(graph: Graph, jaxpr: core.ClosedJaxpr, arguments: Sequence[Operand]) -> list[Operand]:
    """Adds every equation of `jaxpr` to `graph`; returns the results."""
    known: dict[Any, Operand] = dict(zip(jaxpr.jaxpr.invars, arguments, strict=True))
    known |= {v: np.asarray(c) for v, c in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)}

    def read(atom: Any) -> Operand:
        return np.asarray(atom.val) if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.jaxpr.eqns:
        results = _equation(graph, equation, [read(atom) for atom in equation.invars])
        known |= dict(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.jaxpr.outvars]


def _equation(graph: Graph, equation: core.JaxprEqn, operands: list[Operand]) -> Sequence[Operand]:
    name = equation.primitive.name
    inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
    if inner is not None:
        return translate(graph, inner, operands)
    shapes = [_shape(variable) for variable in equation.outvars]
    is_static = all(isinstance(size, int) for shape in shapes for size in shape)
    if is_static and all(isinstance(operand, np.ndarray) for operand in operands):
        results = equation.primitive.bind(*operands, **equation.params)
        several = results if equation.primitive.multiple_results else [results]
        return [np.asarray(one) for one in several]
    if name in BROADCASTING:
        result = BROADCASTING[name](graph, operands, equation.params, shapes)
    elif name in OTHERS:
        full = [
            graph.expand(operand, _shape(variable))
            for operand, variable in zip(operands, equation.invars, strict=True)
        ]
        result = OTHERS[name](graph, full, equation.params, shapes)
    else:
        raise Failure(f"no ONNX translation of the operation {name!r}")
    return result if isinstance(result, list) else [result]


def _shape(variable: Any) -> Shape:
    return tuple(variable.aval.shape)
