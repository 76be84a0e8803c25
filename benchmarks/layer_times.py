"""Where a training step's time goes, layer by layer, beside PyTorch.

    python benchmarks/layer_times.py [--model=resnet18] [--batch=128] [--size=32] [--rounds=5]
    taskset -c 0 python benchmarks/layer_times.py --processor-time      # one core, busy machine

Every distinct convolution of the network, every distinct BatchNorm with what follows it (ReLU, or
the shortcut and ReLU), and the max-pool of an ImageNet stem is measured alone, cone_jax and
PyTorch (`channels_last`, oneDNN) in turns: forward, gradient of the input, gradient of the
kernel. Times are multiplied by how often the layer occurs. Then the whole cross-entropy step of
both. What the sum of the layers leaves of it is the projection head, the classifier, the
optimiser, and what it costs or saves that the parts run in one program.
"""

import argparse
import collections
import dataclasses
from collections.abc import Callable

import against_pytorch
import interleaved
import jax
import jax.numpy as jnp
import numpy as np
import torch
import train_step
from torch import nn

from cone_jax.models.layers import Layers

Programs = dict[str, Callable[[], object]]

PARTS = ("forward", "input", "kernel")


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution of B images of `size` pixels a side."""

    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    from_images: bool  # then nobody asks for the gradient of its input

    def __str__(self) -> str:
        window = f"{self.kernel}x{self.kernel}/{self.stride}"
        return f"{window} {self.inputs}-{self.outputs} at {self.size}"

    @property
    def kind(self) -> str:
        return f"{self.kernel}x{self.kernel} convolutions"

    @property
    def parts(self) -> tuple[str, ...]:
        return ("forward", "kernel") if self.from_images else PARTS

    def ours(self, batch: int) -> Programs:
        layer = Layers().conv(self.outputs, self.kernel, stride=self.stride)
        x = random(batch, self.size, self.size, self.inputs)
        kernel = random(self.kernel, self.kernel, self.inputs, self.outputs) * 0.1

        def apply(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return layer.apply({"params": {"kernel": kernel}}, x)

        def input_gradient(x: jax.Array, kernel: jax.Array, dy: jax.Array) -> jax.Array:
            return jax.vjp(lambda x: apply(x, kernel), x)[1](dy)[0]

        def kernel_gradient(x: jax.Array, kernel: jax.Array, dy: jax.Array) -> jax.Array:
            return jax.vjp(lambda kernel: apply(x, kernel), kernel)[1](dy)[0]

        side = -(-self.size // self.stride)
        dy = random(batch, side, side, self.outputs)
        return {
            "forward": compiled(apply, x, kernel),
            "input": compiled(input_gradient, x, kernel, dy),
            "kernel": compiled(kernel_gradient, x, kernel, dy),
        }

    def torchs(self, batch: int) -> Programs:
        pad = self.kernel // 2
        x = channels_last(batch, self.inputs, self.size)
        kernel = torch.randn(self.outputs, self.inputs, self.kernel, self.kernel) * 0.1
        kernel = kernel.to(memory_format=torch.channels_last)
        side = -(-self.size // self.stride)
        dy = channels_last(batch, self.outputs, side)

        def gradient(*mask: bool) -> Callable[[], object]:
            return lambda: torch.ops.aten.convolution_backward(
                dy, x, kernel, None, [self.stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask
            )

        return {
            "forward": lambda: torch.conv2d(x, kernel, None, self.stride, pad),
            "input": gradient(True, False, False),
            "kernel": gradient(False, True, False),
        }


@dataclasses.dataclass(frozen=True)
class Normalisation:
    """BatchNorm of B images of `size` pixels a side, and what the network does next."""

    size: int
    channels: int
    then: str

    def __str__(self) -> str:
        return f"BatchNorm{self.then} {self.channels} at {self.size}"

    kind = "BatchNorm"
    parts = ("forward", "input")

    def ours(self, batch: int) -> Programs:
        layer = Layers(train=True).batch_norm()
        x, shortcut, dy = (random(batch, self.size, self.size, self.channels) for _ in range(3))
        variables = jax.jit(layer.init)(jax.random.key(0), x)

        def apply(params: dict, x: jax.Array, shortcut: jax.Array) -> tuple:
            y, updated = layer.apply({**variables, "params": params}, x, mutable=["batch_stats"])
            y = y + shortcut if "add" in self.then else y
            return jax.nn.relu(y) if "ReLU" in self.then else y, updated

        def forward(*inputs: object) -> tuple:
            return jax.vjp(apply, *inputs, has_aux=True)

        inputs = (variables["params"], x, shortcut)
        pull = jax.jit(forward)(*inputs)[1]
        return {
            "forward": compiled(forward, *inputs),
            "input": compiled(lambda pull, dy: pull(dy), pull, dy),
        }

    def torchs(self, batch: int) -> Programs:
        layer = nn.BatchNorm2d(self.channels)
        x, shortcut, dy = (channels_last(batch, self.channels, self.size) for _ in range(3))
        inputs = [x.requires_grad_(), *layer.parameters()]
        if "add" in self.then:
            inputs.append(shortcut.requires_grad_())

        def forward() -> torch.Tensor:
            y = layer(x)
            y = y + shortcut if "add" in self.then else y
            return y.relu() if "ReLU" in self.then else y

        y = forward()
        return {
            "forward": forward,
            "input": lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True),
        }


@dataclasses.dataclass(frozen=True)
class Pooling:
    """The max-pool of B images of `size` pixels a side."""

    size: int
    channels: int

    def __str__(self) -> str:
        return f"max-pool 3x3/2 {self.channels} at {self.size}"

    kind = "max-pool"
    parts = ("forward", "input")

    def ours(self, batch: int) -> Programs:
        x = random(batch, self.size, self.size, self.channels)
        side = -(-self.size // 2)
        dy = random(batch, side, side, self.channels)
        pool = Layers(train=True).max_pool
        pull = jax.jit(lambda x: jax.vjp(pool, x))(x)[1]
        return {
            "forward": compiled(pool, x),
            "input": compiled(lambda pull, dy: pull(dy), pull, dy),
        }

    def torchs(self, batch: int) -> Programs:
        x = channels_last(batch, self.channels, self.size).requires_grad_()
        y = nn.functional.max_pool2d(x, 3, 2, 1)
        dy = channels_last(batch, self.channels, y.shape[-1])
        return {
            "forward": lambda: nn.functional.max_pool2d(x, 3, 2, 1),
            "input": lambda: torch.autograd.grad(y, x, dy, retain_graph=True),
        }


Layer = Convolution | Normalisation | Pooling


def random(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def channels_last(batch: int, channels: int, size: int) -> torch.Tensor:
    return torch.randn(batch, channels, size, size).to(memory_format=torch.channels_last)


def compiled(function: Callable[..., object], *inputs: object) -> Callable[[], object]:
    program = jax.jit(function).lower(*inputs).compile()
    return lambda: program(*inputs)


def count_layers(arguments: argparse.Namespace) -> collections.Counter[Layer]:
    """Every distinct layer of the backbone, and how often it occurs."""
    counts: collections.Counter[Layer] = collections.Counter()
    encoder = against_pytorch.TorchEncoder(
        arguments.model, arguments.width, arguments.stem, arguments.classes
    )
    last = "bn3" if against_pytorch.DEPTHS[arguments.model][1] else "bn2"

    def watch(name: str, module: nn.Module) -> None:
        def record(_: nn.Module, inputs: tuple[torch.Tensor, ...], __: object) -> None:
            channels, size = inputs[0].shape[1:3]
            if isinstance(module, nn.MaxPool2d):
                layer: Layer = Pooling(size, channels)
            elif isinstance(module, nn.Conv2d):
                (kernel, _), (stride, _) = module.kernel_size, module.stride
                outputs = module.out_channels
                layer = Convolution(size, channels, outputs, kernel, stride, name == "conv1")
            elif "downsample" in name:
                layer = Normalisation(size, channels, "")
            else:
                then = " + add + ReLU" if name.endswith(last) else " + ReLU"
                layer = Normalisation(size, channels, then)
            counts[layer] += 1

        if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.MaxPool2d):
            module.register_forward_hook(record)

    for name, module in encoder.backbone.named_modules():
        watch(name, module)
    with torch.no_grad():
        encoder.backbone(torch.zeros(1, 3, arguments.size, arguments.size))
    return counts


def measure_layers(arguments: argparse.Namespace, wall: bool) -> dict[str, np.ndarray]:
    """Prints a row a layer; returns milliseconds (PyTorch, cone_jax) by kind of layer and part."""
    print(f"{'':32} times " + "".join(f"{part:>20}" for part in PARTS))
    totals: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(2))
    for layer, count in count_layers(arguments).items():
        ours, torchs = layer.ours(arguments.batch), layer.torchs(arguments.batch)
        row = f"{layer!s:32} {count:5} "
        for part in PARTS:
            if part not in layer.parts:
                row += " " * 20
                continue
            contenders = {"torch": torchs[part], "ours": ours[part]}
            seconds = interleaved.fastest(contenders, arguments.rounds, wall=wall)
            pair = 1e3 * count * np.array([seconds["torch"], seconds["ours"]])
            totals[f"{layer.kind}, {part}"] += pair
            row += f"{pair[0]:9.1f} /{pair[1]:9.1f}"
        print(row, flush=True)
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    train_step.add_arguments(parser, batch=128)
    parser.add_argument("--processor-time", action="store_true", help="instead of the clock's")
    arguments = parser.parse_args()
    torch.set_num_threads(against_pytorch.CPU_THREADS)  # the reference models ask for one
    wall = not arguments.processor_time
    print(
        f"{arguments.model} ({arguments.stem} stem, width {arguments.width}), batch "
        f"{arguments.batch}, {arguments.size} px, {against_pytorch.CPU_THREADS} threads; "
        "milliseconds, PyTorch / cone_jax"
    )
    totals = measure_layers(arguments, wall)
    layers = sum(totals.values())
    contenders = {
        "torch": against_pytorch.TorchCrossEntropy(arguments),
        "ours": train_step.steps(arguments)["cross-entropy"],
    }
    seconds = interleaved.fastest(contenders, arguments.rounds, wall=wall)
    step = 1e3 * np.array([seconds["torch"], seconds["ours"]])
    totals |= {"all layers": layers, "whole step": step, "not in the layers": step - layers}
    for name, (torch_time, our_time) in totals.items():
        difference = our_time - torch_time
        print(f"{name:38} {torch_time:9.1f} /{our_time:9.1f} {difference:+9.1f}")


if __name__ == "__main__":
    main()
