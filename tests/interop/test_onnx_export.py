"""Each translated operation, and a whole transformer, in onnxruntime against JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from jax import lax

from cone_jax import models
from cone_jax.errors import Failure
from cone_jax.interop import onnx_export, stablehlo
from cone_jax.interop.onnx_graph import Graph
from tests.models import random_variables

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(3, 3, 2, 8)).astype(np.float32)
WEIGHT = RNG.normal(size=(4, 5)).astype(np.float32)
ROW = RNG.normal(size=(1, 1, 1, 4)).astype(np.float32)

# Functions of images [batch, 6, 6, 4].
OPERATIONS = {
    "arithmetic": lambda x: -(x * 2 - ROW) / (jnp.square(x) + 1) + jnp.exp(x),
    "clipping": lambda x: jnp.minimum(jnp.maximum(x, 0), 0.5),
    "rsqrt": lambda x: lax.rsqrt(jnp.square(x) + 0.1),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "sums": lambda x: x.sum((1, 2)) + x.max((1, 3)).mean(1, keepdims=True),
    "matrix product": lambda x: x @ WEIGHT,
    "products of activations": lambda x: jnp.einsum("bhic,bjhc->bhji", x, x),
    "convolution": lambda x: lax.conv_general_dilated(
        x, KERNEL, (2, 1), ((1, 0), (2, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=2,
    ),
    "pooling": lambda x: lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    ),
    "slices": lambda x: lax.slice(x, (0, 1, 0, 2), (x.shape[0], 6, 5, 4), (1, 2, 3, 1)),
    "split and stack": lambda x: jnp.stack(jnp.split(x, 2, axis=-1), axis=-1),
    "shuffle": lambda x: x.transpose(0, 3, 1, 2).reshape(x.shape[0], 24, 6),
    "broadcast": lambda x: jnp.concatenate(
        (x, jnp.broadcast_to(ROW, (x.shape[0], 6, 1, 4))), axis=2
    ),
    "constant folding": lambda x: x + jnp.sqrt(jnp.exp(ROW)),
}  # fmt: skip


def in_onnxruntime(function, images):
    """`function`, translated for any number of images."""
    (batch,) = jax.export.symbolic_shape("batch")
    shape = (batch, *images.shape[1:])
    jaxpr, out = jax.make_jaxpr(function, return_shape=True)(
        jax.ShapeDtypeStruct(shape, jnp.float32)
    )
    graph = Graph(shape)
    (result,) = onnx_export.translate(graph, jaxpr, [graph.images])
    graph.emit("Identity", [graph.expand(result, out.shape)], out.shape, output="out")
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in ("images", "out")
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, "test", values[:1], values[1:], graph.constants),
        opset_imports=[onnx.helper.make_opsetid("", onnx_export.OPSET)],
        ir_version=onnx_export.IR_VERSION,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(["out"], {"images": images})[0], graph


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("count", [1, 3])
def test_every_operation(name, count):
    images = RNG.normal(size=(count, 6, 6, 4)).astype(np.float32)
    out, _ = in_onnxruntime(OPERATIONS[name], images)
    np.testing.assert_allclose(out, OPERATIONS[name](images), rtol=1e-5, atol=1e-5)


def test_what_depends_on_no_input_is_not_in_the_graph():
    _, graph = in_onnxruntime(OPERATIONS["constant folding"], np.zeros((1, 6, 6, 4), np.float32))
    assert [node.op_type for node in graph.nodes] == ["Add", "Identity"]


def test_an_operation_without_translation_is_named():
    with pytest.raises(Failure, match="'sort'"):
        in_onnxruntime(lambda x: jnp.sort(x), np.zeros((1, 6, 6, 4), np.float32))


def test_a_transformer(tmp_path):
    cosine = models.Classifier(kind="cosine")
    spec = models.ModelSpec("deit_tiny", 5, "cifar", None, cosine, options=(("image_size", 16),))
    encoder = models.build(spec, platform=models.ANY_PLATFORM)
    variables = random_variables.draw(encoder, 24)
    onnx_export.write(tmp_path / "model.onnx", encoder, variables, 24, {})
    images = random_variables.images(24)
    (logits,) = onnx_export.open_outputs(tmp_path / "model.onnx")
    ours = logits(images)
    expected = random_variables.logits(encoder, variables, images)
    np.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [("efficientnet_b0", ()), ("shufflenet_v2", (("channel_order", "authors"),))],
)
def test_other_networks(name, options, tmp_path):
    spec = models.ModelSpec(name, 5, "cifar", None, options=options)
    encoder = models.build(spec, platform=models.ANY_PLATFORM)
    variables = random_variables.draw(encoder, 16, gain=1.3)
    onnx_export.write(tmp_path / "model.onnx", encoder, variables, 16, {})
    images = random_variables.images(16)
    expected = random_variables.logits(encoder, variables, images)
    (logits,) = onnx_export.open_outputs(tmp_path / "model.onnx")
    ours = logits(images)
    assert 0.1 < np.abs(expected).max() < 1000
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def test_graphs_take_the_arrangement_of_this_project():
    assert str(stablehlo.batch_of_any_size(8).shape) == "(batch, 8, 8, 3)"
