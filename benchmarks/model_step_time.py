"""Time of a training step of every architecture, as a multiple of ResNet-18's.

    python benchmarks/model_step_time.py --models=resnet50,mobilenet_v2

A step is forward, backward and an SGD update of the plain 1000-class classifier in float32 with
cross-entropy, on random images. ResNet-18 is measured in every launch, turn by turn with the
others, and the fastest of the rounds counts, since what else the machine does can only add to a
time. On a CPU it is processor time, all cores together, which other programs disturb less than
they do the clock on the wall. Compare ratios, not seconds.
`--plain` adds, for each, the same step with XLA's own convolutions throughout, which is what the
forms for CPUs in cone_jax/models/cpu/layers.py replace.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cone_jax import runtime

runtime.use_fast_cpu_convolutions()

import interleaved
import jax
import jax.numpy as jnp
import optax

from cone_jax import models

REFERENCE = "resnet18"


def compile_step(encoder: models.Encoder, batch: int, size: int) -> Callable[[], object]:
    """One training step, compiled."""
    images = jax.random.normal(jax.random.key(0), (batch, size, size, 3))
    labels = jnp.arange(batch) % 1000
    shapes = models.abstract_variables(encoder, size)
    variables = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01), shapes)
    optimizer = optax.sgd(0.1, momentum=0.9)

    def loss(params, statistics):
        out, updated = encoder.apply(
            {"params": params, **statistics},
            images,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.key(1)},
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(out.logits, labels)
        return losses.mean(), updated

    @jax.jit
    def step(params, statistics, trace):
        (value, updated), gradient = jax.value_and_grad(loss, has_aux=True)(params, statistics)
        change, trace = optimizer.update(gradient, trace)
        return value, optax.apply_updates(params, change), updated, trace

    params = variables.pop("params")
    trace = optimizer.init(params)
    compiled = step.lower(params, variables, trace).compile()
    return lambda: compiled(params, variables, trace)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(models.names()))
    parser.add_argument("--size", type=int, default=128, help="pixels a side")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--plain", action="store_true", help="also with XLA's own convolutions")
    arguments = parser.parse_args()
    steps = {}
    for name in dict.fromkeys((REFERENCE, *arguments.models.split(","))):
        spec = models.ModelSpec(name, 1000, projection=None)
        steps[name] = compile_step(models.build(spec), arguments.batch, arguments.size)
        if arguments.plain:
            plain = models.build(spec, platform=models.ANY_PLATFORM)
            steps[f"{name} plain"] = compile_step(plain, arguments.batch, arguments.size)
    seconds = interleaved.fastest(steps, arguments.rounds, wall=False)
    print(f"{arguments.batch} images of {arguments.size} px, {jax.default_backend()}")
    for name, time_of_step in seconds.items():
        ratio = time_of_step / seconds[REFERENCE]
        print(f"{name:22} {time_of_step:8.3f} s {ratio:7.2f} x {REFERENCE}")


if __name__ == "__main__":
    main()
