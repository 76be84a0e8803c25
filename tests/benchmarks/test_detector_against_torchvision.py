"""The RoIAlign that torchvision is timed with computes what its own does."""

import numpy as np
import pytest
import torch

from cone_jax import runtime
from tests.conftest import ROOT
from tests.detection import torchvision_oracle

with pytest.MonkeyPatch.context() as patch:
    # The environment of a program is not that of the tests.
    patch.setattr(runtime, "set_up", lambda: None)
    patch.syspath_prepend(str(ROOT / "benchmarks"))
    import detector_against_torchvision as benchmark


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling_ratio", [2, -1])
def test_values_and_gradients_are_torchvisions(sampling_ratio, aligned):
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 30, size=(20, 2))
    boxes = np.concatenate(
        [rng.integers(0, 2, (20, 1)), low, low + rng.uniform(2, 20, size=(20, 2))], axis=1
    )
    maps, weights = rng.normal(size=(2, 3, 26, 30)), rng.normal(size=(20, 3, 4, 4))
    found = []
    for function in (benchmark.roi_align, torchvision_oracle.torchvision.ops.roi_align):
        features = torch.from_numpy(maps).float().requires_grad_()
        pooled = function(
            features,
            torch.from_numpy(boxes).float(),
            (4, 4),
            spatial_scale=0.5,
            sampling_ratio=sampling_ratio,
            aligned=aligned,
        )
        (pooled * torch.from_numpy(weights).float()).sum().backward()
        found.append((pooled.detach(), features.grad))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
