"""Mask R-CNN beside torchvision's, in turns, on the same cores.

    python benchmarks/detector_against_torchvision.py [--size=256] [--batch=2] [--rounds=5]

Both sides have the same `maskrcnn_resnet50_fpn` with the same random weights, the same pictures and
torchvision's settings: up to 2,000 proposals per picture in training and 1,000 in inference, 512
and 100 regions, stem and first stage not trained, SGD with momentum. Random weights find nothing or
everything, and mask heads work on what is found: the bias of the background is set such that there
are about `--found` objects per picture. Masks are not pasted. Everything is float32.

`--processor_time` measures that instead of the clock, for machines with other work; the sides are
then compared on one core (`taskset -c 0`).

torchvision's compiled operations do not load beside every PyTorch. Its own Python `roi_align` takes
most of the time, and in training more memory than there is. So it gets one made of PyTorch's
compiled `grid_sample` (`roi_align` below), and the `nms` of tests/detection/torchvision_oracle.py.
"Without" is the ratio when these two cost torchvision nothing, their gradients aside, and cone_jax
what they cost: the compiled ones are somewhere between.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cone_jax import runtime

runtime.set_up()

import interleaved
import jax
import numpy as np
import optax
import torch

from cone_jax import detection
from cone_jax.interop import torchvision_detector
from tests.detection import random_weights, torchvision_oracle

CPU_THREADS = len(os.sched_getaffinity(0))
OBJECTS = 8
CLASSES = 91  # torchvision's, with the background


class Sides(NamedTuple):
    """Both networks, with the same weights, and the pictures that they see."""

    network: torch.nn.Module
    detector: detection.Detector
    variables: dict[str, Any]
    scenes: list[Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--found", type=int, default=20, help="objects per picture")
    parser.add_argument("--processor_time", action="store_true")
    parser.add_argument("--only", choices=("training", "inference"), default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(CPU_THREADS)
    scenes = [
        random_weights.scene(arguments.size, arguments.size, seed, OBJECTS)
        for seed in range(arguments.batch)
    ]
    network = random_weights.maskrcnn_resnet50(
        num_classes=CLASSES, min_size=arguments.size, max_size=arguments.size
    )
    network.transform.postprocess = lambda result, *_: result  # masks are not pasted
    settings = detection.Settings.torchvision(num_classes=CLASSES - 1, platform="cpu")
    variables = torchvision_detector.from_torchvision(random_weights.arrays(network), settings)
    detector = detection.Detector(settings)
    sides = Sides(network, detector, variables, scenes)
    set_background(sides, arguments.found)
    print(
        f"ResNet-50-FPN, {arguments.batch} pictures of {arguments.size} x {arguments.size}, "
        f"{CPU_THREADS} threads, torch {torch.__version__}, jax {jax.__version__}"
    )
    with Operations(time.process_time if arguments.processor_time else time.perf_counter) as own:
        if arguments.only != "training":
            compare("inference", inference(sides), own, arguments)
        if arguments.only != "inference":
            compare("training", training(sides), own, arguments)


def compare(
    name: str,
    programs: dict[str, Callable[[], object]],
    operations: "Operations",
    arguments: argparse.Namespace,
) -> None:
    operations.seconds = 0.0
    seconds = interleaved.fastest(programs, arguments.rounds, wall=not arguments.processor_time)
    for side, taken in seconds.items():
        print(f"{name}, {side:12} {taken:8.3f} s {arguments.batch / taken:8.2f} pictures/s")
    theirs, ours = seconds["torchvision"], seconds["cone_jax"]
    within = operations.seconds / (arguments.rounds + 1)
    print(f"of torchvision's, RoIAlign and NMS {within:.3f} s on average")
    print(
        f"{name}: cone_jax at {theirs / ours:.2f} x the speed of torchvision, "
        f"without {(theirs - within) / ours:.2f} x",
        flush=True,
    )


def set_background(sides: Sides, wanted: int) -> None:
    """Halves an interval for the bias, in both networks, until `wanted` objects are found."""
    network, detector, variables, scenes = sides
    forward = jax.jit(detector.apply)
    batch = random_weights.padded([scene[0] for scene in scenes], scenes[0][0].shape[1:])
    bias = variables["params"]["box_predictor"]["logits"]["bias"]
    start, low, high = bias[0].copy(), 0.0, 16.0
    for _ in range(7):
        middle = (low + high) / 2
        bias[0] = start + middle
        found = float(np.asarray(forward(variables, *batch).valid).sum(axis=1).mean())
        low, high = (middle, high) if found > wanted else (low, middle)
    with torch.no_grad():
        network.roi_heads.box_predictor.cls_score.bias[0] = float(bias[0])


def roi_align(
    features: torch.Tensor,
    boxes: torch.Tensor,
    output_size: tuple[int, int] | int,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> torch.Tensor:
    """torchvision's `roi_align` of boxes [K, 5] in the map, by PyTorch's compiled `grid_sample`."""
    bins = output_size if isinstance(output_size, int) else output_size[0]
    scaled = boxes[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    start, length = scaled[:, :2], scaled[:, 2:] - scaled[:, :2]
    if not aligned:
        length = length.clamp(min=1.0)
    pooled = features.new_zeros((len(boxes), features.shape[1], bins, bins))
    if sampling_ratio > 0:
        for image in range(len(features)):
            of_image = torch.where(boxes[:, 0] == image)[0]
            place = start[of_image], length[of_image]
            number = (sampling_ratio, sampling_ratio)
            pooled[of_image] = _bins(features[image], *place, bins, number)
        return pooled
    numbers = torch.ceil(length / bins).int().tolist()
    for index, (image, (across, down)) in enumerate(zip(boxes[:, 0].int(), numbers, strict=True)):
        place = start[index : index + 1], length[index : index + 1]
        pooled[index] = _bins(features[image], *place, bins, (across, down))[0]
    return pooled


def _bins(
    features: torch.Tensor,
    start: torch.Tensor,
    length: torch.Tensor,
    bins: int,
    number: tuple[int, int],
) -> torch.Tensor:
    """Means [K, C, bins, bins] of `number` samples (along x, along y) per bin."""
    positions = []
    for axis, (samples, cells) in enumerate(zip(number, features.shape[:0:-1], strict=True)):
        share = (torch.arange(bins * samples) + 0.5) / (bins * samples)
        cell = start[:, axis, None] + share * length[:, axis, None]
        positions.append(2 * cell / (cells - 1) - 1)
    (across, down), (x, y) = number, positions
    grid = torch.stack(
        [x[:, None].expand(-1, y.shape[1], -1), y[:, :, None].expand(-1, -1, x.shape[1])], dim=-1
    )
    grid = grid.reshape(1, -1, x.shape[1], 2)
    sampled = torch.nn.functional.grid_sample(
        features[None], grid, padding_mode="border", align_corners=True
    )
    parts = sampled.reshape(features.shape[0], len(start), bins, down, bins, across)
    return parts.mean(dim=(3, 5)).transpose(0, 1)


class Operations:
    """Puts RoIAlign and NMS in torchvision's places for them, and adds up the time in them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds, self.clock = 0.0, clock
        vision = torchvision_oracle.torchvision
        self.places = (
            (vision.ops.poolers, "roi_align", roi_align),
            (vision.models.detection.roi_heads, "roi_align", roi_align),
            (vision.ops.boxes, "nms", vision.ops.boxes.nms),
        )
        self.originals = [getattr(*place[:2]) for place in self.places]

    def __enter__(self) -> "Operations":
        for module, name, used in self.places:
            setattr(module, name, self._timed(used))
        return self

    def __exit__(self, *_: object) -> None:
        for (module, name, _used), original in zip(self.places, self.originals, strict=True):
            setattr(module, name, original)

    def _timed(self, used: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = self.clock()
            result = used(*given, **named)
            self.seconds += self.clock() - began
            return result

        return timed


def inference(sides: Sides) -> dict[str, Callable[[], object]]:
    network, detector, variables, scenes = sides
    images = [torch.from_numpy(scene[0]) for scene in scenes]
    batch = jax.device_put(
        random_weights.padded([scene[0] for scene in scenes], scenes[0][0].shape[1:])
    )
    on_device = jax.device_put(variables)
    forward = jax.jit(detector.apply)

    def theirs() -> Any:
        with torch.no_grad():
            return network(images)

    network.eval()
    found = np.asarray(forward(on_device, *batch).valid).sum(axis=1).tolist()
    print(f"found by cone_jax {found}, by torchvision {[len(each['scores']) for each in theirs()]}")
    return {"torchvision": theirs, "cone_jax": lambda: forward(on_device, *batch)}


def training(sides: Sides) -> dict[str, Callable[[], object]]:
    network, detector, variables, scenes = sides
    images = [torch.from_numpy(scene[0]) for scene in scenes]
    targets = [
        {
            "boxes": torch.from_numpy(boxes),
            "labels": torch.from_numpy(labels),
            "masks": torch.from_numpy(masks.astype(np.uint8)),
        }
        for _, boxes, labels, masks in scenes
    ]
    network.train()
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(
            not name.startswith(("backbone.body.conv1", "backbone.body.layer1"))
        )
    trained = [each for each in network.parameters() if each.requires_grad]
    # So small that weights, hence the work of a step, stay what they are.
    rate = 1e-9
    optimizer = torch.optim.SGD(trained, lr=rate, momentum=0.9)

    def theirs() -> float:
        loss = sum(network(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return {"torchvision": theirs, "cone_jax": our_step(detector, variables, scenes, rate)}


def our_step(
    detector: detection.Detector, variables: dict[str, Any], scenes: list[Any], rate: float
) -> Callable[[], object]:
    shape = scenes[0][0].shape[1:]
    images, sizes = jax.device_put(random_weights.padded([scene[0] for scene in scenes], shape))
    truth = jax.device_put(random_weights.ground_truth(scenes, shape, places=OBJECTS))
    transform = optax.sgd(rate, momentum=0.9)
    statistics = variables["batch_stats"]

    def loss_function(params: Any, key: jax.Array) -> jax.Array:
        terms = detector.apply(
            {"params": params, "batch_stats": statistics},
            images,
            sizes,
            truth,
            key,
            method="losses",
        )
        return sum(terms.values())

    @jax.jit
    def step(params: Any, state: Any, key: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_function)(params, key)
        updates, state = transform.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    held = {"params": jax.device_put(variables["params"])}
    held["state"] = transform.init(held["params"])

    def ours() -> object:
        held["params"], held["state"], loss = step(held["params"], held["state"], jax.random.key(0))
        return loss, held["params"]

    return ours


if __name__ == "__main__":
    main()
