"""timm's and torchvision's own networks as references, drawn at random, in evaluation mode."""

from torch import nn

from tests.detection import torchvision_oracle  # before timm, which imports torchvision
from tests.models import torch_reference

torchvision = torchvision_oracle.torchvision

import timm  # noqa: E402

# Ours: timm's.
TIMM = {
    "deit_tiny": "deit_tiny_patch16_224",
    "deit_small": "deit_small_patch16_224",
    "deit_base": "deit_base_patch16_224",
    "vit_b_16": "vit_base_patch16_224",
    "vit_b_32": "vit_base_patch32_224",
    "convnext_tiny": "convnext_tiny",
    "convnext_small": "convnext_small",
    "efficientnet_b0": "efficientnet_b0",
    "resnet26": "resnet26",
}
# Where the classifier is, by layout and the beginning of our name.
CLASSIFIERS = {
    "timm": {
        "deit": "head",
        "vit": "head",
        "convnext": "head.fc",
        "efficientnet": "classifier",
        "resnet26": "fc",
    },
    "torchvision": {
        "vit": "heads.head",
        "convnext": "classifier.2",
        "efficientnet": "classifier.1",
    },
}


def from_timm(name, *, distilled=False, head=None, classes=7, **options):
    """Our network `name` as timm has it; `head` takes the place of the classifier."""
    theirs = TIMM[name].replace("_patch", "_distilled_patch") if distilled else TIMM[name]
    model = timm.create_model(theirs, num_classes=classes, **options)
    return _prepared(model, head, CLASSIFIERS["timm"][name.partition("_")[0]])


def from_torchvision(name, *, head=None, classes=7, **options):
    """Our network `name` as torchvision has it; `head` takes the place of the classifier."""
    if name.startswith("vit"):
        model = torchvision.models.VisionTransformer(
            num_heads=12, hidden_dim=768, mlp_dim=3072, num_classes=classes, **options
        )
    else:
        model = torchvision.models.get_model(name, num_classes=classes, **options)
    return _prepared(model, head, CLASSIFIERS["torchvision"][name.partition("_")[0]])


def _prepared(model: nn.Module, head: nn.Module | None, classifier: str) -> nn.Module:
    if head is not None:
        model.set_submodule(classifier, head)
    # Gates and SiLU halve a signal again and again.
    torch_reference.randomise(model, 2.5 if "EfficientNet" in type(model).__name__ else 1.0)
    return model.eval()
