"""The Detectron2 export: names, arrays, and configs that fit the weights."""

import io
import pickle
import pickletools

import numpy as np
import pytest
import yaml

from cone_jax import interop, models
from cone_jax.errors import UserError
from cone_jax.interop import detectron2, state_dict
from tests.models import random_variables

METADATA = interop.ExportMetadata(tuple("abcde"), 32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    head = models.Projection(hidden=12, dim=6)
    encoder = models.create("resnet50", 5, projection=head)
    variables = random_variables.draw(encoder, 32)
    directory = tmp_path_factory.mktemp("exports")
    path = interop.export("detectron2", variables, encoder, METADATA, directory)
    return path, encoder, variables


def test_pickle_holds_53_convolutions_and_53_norms_and_nothing_of_the_head(exported):
    path, _, variables = exported
    content = (path / "model.pkl").read_bytes()
    strings = [arg for op, arg, _ in pickletools.genops(content) if "UNICODE" in op.name]
    assert {"numpy", "ndarray", "builtins", "bytearray"} <= set(strings)
    assert not any("_core" in text or "multiarray" in text for text in strings)
    loaded = Restricted(io.BytesIO(content), encoding="latin1").load()
    assert loaded.keys() == {"model", "__author__", "matching_heuristics"}
    assert loaded["matching_heuristics"] is True
    arrays = loaded["model"]
    kernels = {name.removesuffix(".weight") for name, array in arrays.items() if array.ndim == 4}
    assert len(kernels) == 53
    parts = ("weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")
    assert arrays.keys() == {f"{kernel}.{part}" for kernel in kernels for part in parts}
    source = variables["params"]["backbone"]
    np.testing.assert_array_equal(
        arrays["res3.0.conv2.weight"], source["layer2_0"]["conv2"]["kernel"].transpose(3, 2, 0, 1)
    )
    np.testing.assert_array_equal(
        arrays["res2.0.shortcut.norm.running_mean"],
        variables["batch_stats"]["backbone"]["layer1_0"]["downsample_bn"]["mean"],
    )
    np.testing.assert_array_equal(arrays["stem.conv1.norm.bias"], source["bn1"]["bias"])
    assert all(array.dtype == np.float32 and array.flags.writeable for array in arrays.values())


class Restricted(pickle.Unpickler):
    """Knows the two names the file may contain."""

    def find_class(self, module, name):
        return {("numpy", "ndarray"): np.ndarray, ("builtins", "bytearray"): bytearray}[
            module, name
        ]


def test_names_go_there_and_back(exported):
    _, encoder, variables = exported
    for name in state_dict.to_state_dict(encoder, variables):
        if not name.startswith("fc"):
            assert detectron2.from_detectron2(detectron2.to_detectron2(name)) == name


def test_configs_say_what_these_weights_need(exported):
    path, *_ = exported
    for file, roi_heads in (
        ("mask_rcnn_C4_1x.yaml", "Res5ROIHeadsExtraNorm"),
        ("mask_rcnn_FPN_1x.yaml", "StandardROIHeads"),
    ):
        config = yaml.safe_load((path / file).read_text())
        model = config["MODEL"]
        assert model["WEIGHTS"] == "model.pkl"
        assert model["PIXEL_MEAN"] == [123.675, 116.28, 103.53]
        assert model["PIXEL_STD"] == [58.395, 57.12, 57.375]
        assert model["RESNETS"]["STRIDE_IN_1X1"] is False
        assert model["RESNETS"]["NORM"] == "SyncBN"
        assert model["BACKBONE"]["FREEZE_AT"] == 0
        assert model["ROI_HEADS"]["NAME"] == roi_heads
        assert config["INPUT"]["FORMAT"] == "RGB"
        assert config["SOLVER"]["MAX_ITER"] == 90_000
        assert config["TEST"]["PRECISE_BN"]["ENABLED"] is True


@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet18", {}), ("resnet50", {"stem": "cifar"}), ("resnet50", {"width": 32})],
)
def test_networks_detectron2_does_not_have_are_refused(name, options, tmp_path):
    encoder = models.create(name, 5, projection=None, **options)
    with pytest.raises(UserError, match=r"--format \(detectron2\) takes resnet50"):
        detectron2.backbone(encoder, {})


def test_a_backbone_alone_cannot_classify(exported):
    with pytest.raises(UserError, match="cannot classify"):
        interop.open_export(exported[0])
