"""Training steps with a bank of a million rows, split over devices: what they take.

    python benchmarks/large_bank.py [--rows=1048576] [--classes=1000] [--devices=8]
        [--probs=stored] [--steps=3]

A tiny network with embeddings of 256 takes CoNe steps on virtual CPU devices, with
`bank.sharding=sharded` and all rows written. `--probs=recomputed` stores no probabilities. Printed:
seconds a step, the memory of one device by part, and the highest memory of the whole process, all
devices together.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp

from cone_jax import losses
from cone_jax.memory_bank import MemoryBank


def filled(bank: MemoryBank, rows: int, classes: int) -> MemoryBank:
    """The bank with something in every row, made where the rows are."""

    def fill(bank: MemoryBank) -> MemoryBank:
        noise = jax.random.normal(jax.random.key(0), bank.features.shape)
        return bank.replace(
            features=losses.normalise(noise),
            labels=jnp.arange(len(bank.labels)) % classes,
            probs=None if bank.probs is None else jnp.full_like(bank.probs, 1 / classes),
            norms=None if bank.norms is None else jnp.ones_like(bank.norms),
            filled=jnp.full_like(bank.filled, rows),
        )

    where = jax.tree.map(lambda leaf: leaf.sharding, bank)
    return jax.jit(fill, donate_argnums=0, out_shardings=where)(bank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("rows", 2**20),
        ("classes", 1000),
        ("devices", 8),
        ("batch", 64),
        ("steps", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--probs", default="stored", choices=("stored", "recomputed"))
    parser.add_argument("--probs-dtype", default="float32", choices=("float32", "bfloat16"))
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    run(arguments)


def run(arguments: argparse.Namespace) -> None:
    import train_step  # starts JAX

    from cone_jax import console
    from cone_jax.training import train_log

    settings = argparse.Namespace(
        batch=arguments.batch,
        size=32,
        model="resnet8",
        stem="cifar",
        width=8,
        bank=arguments.rows,
        neighbours=512,
    )
    config = train_step.make_config(settings)
    config.model.head_hidden = 64
    config.bank.sharding = "sharded"
    config.bank.probs = arguments.probs
    config.bank.probs_dtype = arguments.probs_dtype
    state = train_step.make_state(config, arguments.classes)
    state = state.replace(bank=filled(state.bank, arguments.rows, arguments.classes))
    batch = train_step.make_batch(config, arguments.classes, state)
    print(
        f"{arguments.rows} rows x 256, {arguments.classes} classes, {arguments.probs} "
        f"probabilities, {len(jax.devices())} devices, batch {arguments.batch}"
    )
    print(train_log.overview(state, batch)[0], flush=True)
    step = train_step.stepper(state, batch)
    del state
    seconds = []
    for _ in range(1 + arguments.steps):
        began = time.perf_counter()
        metrics = jax.block_until_ready(step())
        seconds.append(time.perf_counter() - began)
    peak = console.peak_memory()
    print(
        f"seconds a step: {min(seconds[1:]):.2f}, loss {float(metrics['loss']):.3f}, "
        f"peak memory of the process {console.readable(peak)}"
    )


if __name__ == "__main__":
    main()
