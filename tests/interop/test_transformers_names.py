"""Networks under the names of Hugging Face's transformers give the logits that they gave there.

The names are those that transformers 5.23 writes; the networks are timm's and torchvision's, whose
tensors are given those names here.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from cone_jax import models
from cone_jax.errors import UserError
from cone_jax.interop import importing, published, transformers_names
from cone_jax.models import deit
from tests.models import random_variables, timm_oracle, torch_reference
from tests.models.test_torch_parity import torch_logits

VIT = {
    r"cls_token": "embeddings.cls_token",
    r"dist_token": "embeddings.distillation_token",
    r"pos_embed": "embeddings.position_embeddings",
    r"patch_embed\.proj\.(\w+)": r"embeddings.patch_embeddings.projection.\1",
    r"blocks\.(\d+)\.norm1\.(\w+)": r"encoder.layer.\1.layernorm_before.\2",
    r"blocks\.(\d+)\.norm2\.(\w+)": r"encoder.layer.\1.layernorm_after.\2",
    r"blocks\.(\d+)\.attn\.proj\.(\w+)": r"encoder.layer.\1.attention.output.dense.\2",
    r"blocks\.(\d+)\.mlp\.fc1\.(\w+)": r"encoder.layer.\1.intermediate.dense.\2",
    r"blocks\.(\d+)\.mlp\.fc2\.(\w+)": r"encoder.layer.\1.output.dense.\2",
    r"norm\.(\w+)": r"layernorm.\1",
}
CONVNEXT = {
    r"stem\.0\.(\w+)": r"embeddings.patch_embeddings.\1",
    r"stem\.1\.(\w+)": r"embeddings.layernorm.\1",
    r"stages\.(\d)\.downsample\.(\d)\.(\w+)": r"encoder.stages.\1.downsampling_layer.\2.\3",
    r"stages\.(\d)\.blocks\.(\d)\.gamma": r"encoder.stages.\1.layers.\2.layer_scale_parameter",
    r"stages\.(\d)\.blocks\.(\d)\.conv_dw\.(\w+)": r"encoder.stages.\1.layers.\2.dwconv.\3",
    r"stages\.(\d)\.blocks\.(\d)\.norm\.(\w+)": r"encoder.stages.\1.layers.\2.layernorm.\3",
    r"stages\.(\d)\.blocks\.(\d)\.mlp\.fc(\d)\.(\w+)": r"encoder.stages.\1.layers.\2.pwconv\3.\4",
    r"head\.norm\.(\w+)": r"layernorm.\1",
}
KINDS = {"conv": "convolution", "bn": "normalization", "0": "convolution", "1": "normalization"}


def renamed(reference, rules, prefix, classifiers):
    """A state dict in transformers' names."""
    tensors = {}
    for name, value in reference.state_dict().items():
        layer, _, leaf = name.rpartition(".")
        found = re.fullmatch(r"blocks\.(\d+)\.attn\.qkv", layer)
        if layer in classifiers:
            tensors[f"{classifiers[layer]}.{leaf}"] = value.numpy()
        elif found:
            place = f"{prefix}encoder.layer.{found[1]}.attention.attention."
            for part, third in zip(("query", "key", "value"), value.chunk(3), strict=True):
                tensors[f"{place}{part}.{leaf}"] = third.numpy()
        else:
            (new,) = [
                match.expand(text) if isinstance(text, str) else text(match)
                for pattern, text in rules.items()
                if (match := re.fullmatch(pattern, name))
            ]
            tensors[prefix + new] = value.numpy()
    return tensors


def check(tensors, reference, name, **options):
    """Recognised, every name accounted for, and the logits are the reference's."""
    spec = importing.recognise(tensors)
    assert (spec.name, spec.num_classes, dict(spec.options)) == (name, 7, options)
    encoder = models.build(spec)
    shapes = models.abstract_variables(encoder, 64)
    variables, report = importing.from_tensors(tensors, encoder, shapes, source="theirs")
    assert report.layout == "transformers"
    images = random_variables.images(64)
    ours, theirs = (
        random_variables.logits(encoder, variables, images),
        torch_logits(reference, images),
    )
    assert np.std(ours[0] - ours[1]) > 1e-3
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture
def shallow(monkeypatch):
    for name, variant in deit.VARIANTS.items():
        monkeypatch.setitem(deit.VARIANTS, name, dataclasses.replace(variant, depth=2))


@pytest.mark.parametrize("prefix", ["vit.", "deit.", "model.vit."])
def test_a_vision_transformer(prefix, shallow):
    reference = timm_oracle.from_timm("deit_tiny", img_size=64, depth=2)
    tensors = renamed(reference, VIT, prefix, {"head": "classifier"})
    assert f"{prefix}encoder.layer.1.attention.attention.key.bias" in tensors
    check(tensors, reference, "deit_tiny", image_size=64)


def test_a_distilled_one_with_both_classifiers_or_the_first_alone(shallow):
    reference = timm_oracle.from_timm("deit_tiny", distilled=True, img_size=64, depth=2)
    classifiers = {"head": "cls_classifier", "head_dist": "distillation_classifier"}
    tensors = renamed(reference, VIT, "deit.", classifiers)
    check(tensors, reference, "deit_tiny", distilled=True, image_size=64)
    alone = {k: v for k, v in tensors.items() if not k.startswith("distillation_classifier")}
    for leaf in ("weight", "bias"):
        alone[f"classifier.{leaf}"] = alone.pop(f"cls_classifier.{leaf}")
        reference.head_dist.get_parameter(leaf).data.copy_(reference.head.get_parameter(leaf))
    # Of the tokens the first alone is classified: the second one's classifier sees it, too.
    reference.head_dist.register_forward_hook(lambda *_: first[-1])
    first = []
    reference.head.register_forward_hook(lambda _, __, output: first.append(output))
    check(alone, reference, "deit_tiny", distilled=True, image_size=64)


def test_a_backbone_that_was_saved_alone_is_for_training(shallow):
    reference = timm_oracle.from_timm("deit_tiny", img_size=64, depth=2)
    tensors = renamed(reference, VIT, "", {"head": "pooler.dense"})
    encoder = models.create("deit_tiny", 7, projection=None, image_size=64)
    variables = random_variables.draw(encoder, 64)
    with pytest.raises(importing.IncompleteImport, match="set init_strict to False"):
        importing.from_tensors(tensors, encoder, variables, source="theirs")
    loaded, report = importing.from_tensors(
        tensors, encoder, variables, source="theirs", strict=False
    )
    assert report.unexpected == ("pooler.dense.bias", "pooler.dense.weight")
    norm = reference.state_dict()["norm.weight"].numpy()
    np.testing.assert_array_equal(loaded["params"]["backbone"]["norm"]["scale"], norm)


def test_convnext():
    reference = timm_oracle.from_timm("convnext_tiny")
    tensors = renamed(reference, CONVNEXT, "convnext.", {"head.fc": "classifier"})
    assert tensors["convnext.encoder.stages.3.downsampling_layer.1.weight"].shape[0] == 768
    check(tensors, reference, "convnext_tiny")


def test_regnet():
    def of_block(match):
        stage, block, part, kind, leaf = match.groups()
        place = "shortcut" if part == "downsample" else f"layer.{int(part[-1]) - 1}"
        return (
            f"encoder.stages.{int(stage) - 1}.layers.{int(block) - 1}.{place}.{KINDS[kind]}.{leaf}"
        )

    rules = {
        r"stem\.(conv|bn)\.(\w+)": lambda m: f"embedder.embedder.{KINDS[m[1]]}.{m[2]}",
        r"s(\d)\.b(\d+)\.(downsample|conv\d)\.(conv|bn)\.(\w+)": of_block,
    }
    reference = timm_oracle.timm.create_model("regnetx_004", num_classes=7).eval()
    torch_reference.randomise(reference)
    tensors = renamed(reference, rules, "regnet.", {"head.fc": "classifier.1"})
    assert "regnet.encoder.stages.3.layers.11.layer.2.normalization.running_var" in tensors
    check(tensors, reference, "regnetx_400mf", last_width=384)


def test_resnet():
    def of_block(match):
        stage, block, part, leaf = match.groups()
        kind, number = re.fullmatch(r"(conv|bn|downsample\.)(\d)", part).groups()
        place = "shortcut" if kind == "downsample." else f"layer.{int(number) - 1}"
        kind = KINDS[number if kind == "downsample." else kind]
        return f"encoder.stages.{int(stage) - 1}.layers.{block}.{place}.{kind}.{leaf}"

    rules = {
        r"(conv|bn)1\.(\w+)": lambda m: f"embedder.embedder.{KINDS[m[1]]}.{m[2]}",
        r"layer(\d)\.(\d+)\.(conv\d|bn\d|downsample\.\d)\.(\w+)": of_block,
    }
    reference = timm_oracle.from_timm("resnet26")
    tensors = renamed(reference, rules, "resnet.", {"fc": "classifier.1"})
    assert "resnet.encoder.stages.0.layers.0.shortcut.convolution.weight" in tensors
    check(tensors, reference, "resnet26")


def test_another_networks_attention_is_not_taken_for_a_vision_transformer():
    """BEiT has the same names, no bias of keys, and layers that scale."""
    place = "beit.encoder.layer.0.attention.attention."
    tensors = {f"{place}{part}.weight": np.zeros((192, 192)) for part in ("query", "key", "value")}
    tensors |= {f"{place}query.bias": np.zeros(192), f"{place}value.bias": np.zeros(192)}
    tensors["beit.embeddings.patch_embeddings.projection.weight"] = np.zeros((192, 3, 16, 16))
    tensors["beit.encoder.layer.0.lambda_1"] = np.zeros(192)
    assert importing.recognise(tensors) is None
    translated = transformers_names.translate(tensors)
    assert f"{place}query.bias" in translated
    assert "blocks.0.attn.qkv.weight" in translated


def test_what_tensors_do_not_tell_is_read_from_the_config():
    usual = {"model_type": "vit", "hidden_size": 384, "num_attention_heads": 6}
    transformers_names.check(usual, "hf://me/vit")
    for change, message in (
        ({"num_attention_heads": 12}, "has 12 heads of attention, .* of width 384 has 6"),
        ({"hidden_act": "quick_gelu"}, "has hidden_act 'quick_gelu', the network here 'gelu'"),
    ):
        with pytest.raises(UserError, match=message):
            transformers_names.check({**usual, **change}, "hf://me/vit")


def test_imagenets_classes_are_known_by_what_others_call_them():
    """WordNet's synonyms, as transformers has them, in timm's copy."""
    folder = Path(timm_oracle.timm.__file__).parent / "data" / "_info"
    path = folder / "imagenet_synset_to_lemma.txt"
    lemmas = dict(line.split("\t") for line in path.read_text().splitlines())
    names = [lemmas[number] for number in published.wordnet_ids()]
    assert names[0] == "tench, Tinca tinca"
    labels = {"id2label": {str(index): name for index, name in enumerate(names)}}
    preprocessor = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 224, "crop_pct": 0.9}
    found = transformers_names.describe("hf://me/resnet", labels, preprocessor)
    assert found.class_names == published.class_names()
    other = {"id2label": {str(index): name for index, name in enumerate(names[::-1])}}
    found = transformers_names.describe("hf://me/resnet", other, preprocessor)
    assert found.class_names == tuple(names[::-1])
