"""Mask R-CNN beside torchvision's, in turns, on the same cores.

    python benchmarks/detector_against_torchvision.py [--size=256] [--batch=2] [--rounds=5]

Both sides have the same `maskrcnn_resnet50_fpn` with the same random weights, the same pictures and
torchvision's settings: up to 2,000 proposals per picture in training and 1,000 in inference, 512
and 100 regions, stem and first stage not trained, SGD with momentum. Random weights find nothing or
everything, and mask heads work on what is found: the bias of the background is set such that there
are about `--found` objects per picture. Masks are not pasted. Everything is float32.

`--processor_time` measures that instead of the clock, for machines with other work; the sides are
then compared on one core (`taskset -c 0`).

torchvision's compiled operations do not load beside every PyTorch: here its `roi_align` is its own
Python one, and `nms` that of tests/detection/torchvision_oracle.py. The line "RoIAlign and NMS"
says how much of torchvision's time these take, so that the reader can leave them out.
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
    if arguments.only != "training":
        compare("inference", inference(sides), arguments)
    if arguments.only != "inference":
        compare("training", training(sides), arguments)


def compare(
    name: str, programs: dict[str, Callable[[], object]], arguments: argparse.Namespace
) -> None:
    with TimedOperations() as operations:
        seconds = interleaved.fastest(programs, arguments.rounds, wall=not arguments.processor_time)
    for side, taken in seconds.items():
        print(f"{name}, {side:12} {taken:8.3f} s {arguments.batch / taken:8.2f} pictures/s")
    calls = arguments.rounds + 1
    print(f"of torchvision's, RoIAlign and NMS {operations.seconds / calls:.3f} s on average")
    ratio = seconds["torchvision"] / seconds["cone_jax"]
    print(f"{name}: cone_jax at {ratio:.2f} x the speed of torchvision", flush=True)


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


class TimedOperations:
    """Adds up the time inside of torchvision's two operations that are Python here."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.places = (
            (torchvision_oracle.torchvision.ops.poolers, "roi_align"),
            (torchvision_oracle.torchvision.ops.boxes, "nms"),
        )
        self.originals = [getattr(*place) for place in self.places]

    def __enter__(self) -> "TimedOperations":
        for (module, name), original in zip(self.places, self.originals, strict=True):
            setattr(module, name, self._timed(original))
        return self

    def __exit__(self, *_: object) -> None:
        for (module, name), original in zip(self.places, self.originals, strict=True):
            setattr(module, name, original)

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = original(*given, **named)
            self.seconds += time.perf_counter() - began
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
