"""onnxruntime's RoiAlign and NonMaxSuppression: a second, independent reference."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

OPSET = 16


def roi_align(features, boxes, *, spatial_scale, output_size, sampling_ratio, aligned):
    """features [H, W, C], boxes [N, 4] -> [N, output, output, C], with the compiled kernel."""
    node = helper.make_node(
        "RoiAlign",
        ["features", "boxes", "image"],
        ["pooled"],
        spatial_scale=spatial_scale,
        output_height=output_size,
        output_width=output_size,
        sampling_ratio=sampling_ratio,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )
    feeds = {
        "features": np.ascontiguousarray(features.transpose(2, 0, 1)[None], np.float32),
        "boxes": np.asarray(boxes, np.float32),
        "image": np.zeros(len(boxes), np.int64),
    }
    return _run(node, feeds, "pooled", TensorProto.FLOAT).transpose(0, 2, 3, 1)


def nms(boxes, scores, *, iou_threshold, max_outputs):
    """Indices of the boxes that stay, best first."""
    node = helper.make_node(
        "NonMaxSuppression", ["boxes", "scores", "most", "threshold"], ["selected"]
    )
    feeds = {
        "boxes": np.asarray(boxes, np.float32)[None, :, [1, 0, 3, 2]],
        "scores": np.asarray(scores, np.float32)[None, None],
        "most": np.array([max_outputs], np.int64),
        "threshold": np.array([iou_threshold], np.float32),
    }
    return _run(node, feeds, "selected", TensorProto.INT64)[:, 2]


def _run(node, feeds, output, kind):
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in feeds.items()
    ]
    result = helper.make_tensor_value_info(output, kind, None)
    graph = helper.make_graph([node], "one_operation", inputs, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 8
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run([output], feeds)[0]
