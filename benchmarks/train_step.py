"""What CoNe costs: its step beside a cross-entropy step of the same network, in one process.

    python benchmarks/train_step.py [--model=resnet18] [--batch=256] [--bank=4096] [--classes=100]
        [--neighbours=32] [--size=32] [--stem=cifar] [--width=64] [--rounds=5]

Contenders, in turns, each with its own state: cross-entropy; cross-entropy with the momentum
network's forward pass and update, which is the floor for any method that has one; CoNe. Then
CoNe's bank on its own (look-ups, their gradient, enqueue), also with `jax.lax.top_k` instead of the
selection in two stages, with soft labels in blocks, and with predictions recomputed. Last, how long
it takes from nothing to a finished first step, with an empty compilation cache and a full one.
"""

import argparse
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cone_jax import runtime

runtime.keep_freed_memory()
runtime.use_fast_cpu_convolutions()

import interleaved
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import distributed, losses, memory_bank, training
from cone_jax.memory_bank import lookup
from cone_jax.objectives import Metrics, Needs, Objective, StepInputs
from cone_jax.training.train_state import TrainState


@dataclasses.dataclass(frozen=True)
class CrossEntropyWithKey(Objective):
    """The floor: a momentum network that nothing is done with."""

    @property
    def needs(self) -> Needs:
        return Needs(key=True, embedding=True)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        assert inputs.key is not None
        loss = jnp.mean(losses.cross_entropy(inputs.query.logits, inputs.labels))
        # Else the compiler would leave the key's forward pass out.
        return loss, {"key_norm": jnp.linalg.norm(inputs.key.logits)}


def make_config(arguments: argparse.Namespace) -> ConfigDict:
    config = config_lib.default()
    config.batch_size = arguments.batch
    config.data.image_size = arguments.size
    config.model.name = arguments.model
    config.model.stem = arguments.stem
    config.model.options.width = arguments.width
    config.bank.size = arguments.bank
    config.objective.cone.neighbours = arguments.neighbours
    config.objective.cone.start_epochs = 0
    config.objective.cone.wait_for_bank = False
    return config


def make_state(config: ConfigDict, classes: int) -> TrainState:
    return training.init_state(config, jax.random.key(0), num_classes=classes, steps_per_epoch=100)


def make_batch(config: ConfigDict, classes: int, state: TrainState) -> dict[str, jax.Array]:
    rng, batch, size = np.random.default_rng(0), config.batch_size, config.data.image_size
    return distributed.to_devices(
        state.learner.mesh,
        {
            "image": rng.integers(0, 256, (batch, size, size, 3), dtype=np.uint8),
            "label": rng.integers(0, classes, batch, dtype=np.int32),
            "id": np.arange(batch, dtype=np.int32),
        },
    )


def stepper(state: TrainState, batch: dict[str, jax.Array]) -> Callable[[], object]:
    """A program that takes the next step each time."""
    box = [state]

    def run() -> object:
        box[0], metrics = training.train_step(box[0], batch)
        return metrics

    return run


def steps(arguments: argparse.Namespace) -> dict[str, Callable[[], object]]:
    config = make_config(arguments)
    cone = make_state(config, arguments.classes)
    batch = make_batch(config, arguments.classes, cone)
    plain = make_config(arguments)
    plain.objective.cone.sup_weight = plain.objective.cone.dc_weight = 0.0
    keyed = make_state(config, arguments.classes).replace(bank=None)
    learner = dataclasses.replace(keyed.learner, objective=CrossEntropyWithKey())
    return {
        "cross-entropy": stepper(make_state(plain, arguments.classes), batch),
        "cross-entropy + key": stepper(keyed.replace(learner=learner), batch),
        "CoNe": stepper(cone, batch),
    }


class BankWork:
    """What CoNe does with its bank in a step, without a network."""

    def __init__(self, arguments: argparse.Namespace, dim: int = 256) -> None:
        rng = np.random.default_rng(0)
        batch, classes = arguments.batch, arguments.classes
        self.rows, self.neighbours, self.classes = arguments.bank, arguments.neighbours, classes
        self.z = losses.normalise(jnp.asarray(rng.normal(size=(batch, dim)), jnp.float32))
        self.labels = jnp.asarray(rng.integers(0, classes, batch), jnp.int32)
        self.logits = jnp.asarray(rng.normal(size=(batch, classes)), jnp.float32)
        self.kernel = jnp.asarray(rng.normal(size=(dim, classes)), jnp.float32) * 0.1

    def full_bank(self, **options: object) -> memory_bank.MemoryBank:
        bank = memory_bank.init(self.rows, self.z.shape[1], **options)  # type: ignore[arg-type]
        noise = jax.random.normal(jax.random.key(0), bank.features.shape)
        return bank.replace(
            features=losses.normalise(noise),
            labels=jnp.arange(self.rows) % self.classes,
            filled=jnp.asarray(self.rows),
        )

    def loss(self, bank: memory_bank.MemoryBank, z: jax.Array, logits: jax.Array) -> jax.Array:
        near = memory_bank.neighbours(bank, z, self.neighbours)
        positive = near.labels == self.labels[:, None]
        contrast = losses.sup_in(near.similarity, positive, temperature=0.1)
        target = memory_bank.soft_labels(
            bank,
            jax.lax.stop_gradient(z),
            temperature=0.07,
            classify=lambda embedding: jax.nn.softmax(embedding @ self.kernel),
        )
        return jnp.mean(contrast + losses.distributional_consistency(target, logits))

    def __call__(self, bank: memory_bank.MemoryBank, z: jax.Array, logits: jax.Array) -> tuple:
        """Looks up, differentiates, enqueues."""
        value, gradient = jax.value_and_grad(self.loss, argnums=(1, 2))(bank, z, logits)
        finite = jnp.isfinite(value) & jnp.isfinite(jnp.sum(gradient[0]))
        probs = None if bank.probs is None else jax.nn.softmax(logits)
        norms = None if bank.norms is None else jnp.ones(len(z))
        return memory_bank.enqueue(bank, z, self.labels, probs, norms=norms, when=finite), gradient

    def program(self, bank: memory_bank.MemoryBank, *patches: mock._patch) -> Callable[[], object]:
        """Compiled with the patches in force."""
        for patch in patches:
            patch.start()
        # A function of its own: JAX would not trace the same one again for a patch.
        fresh = jax.jit(lambda *inputs: self(*inputs), donate_argnums=0)
        compiled = fresh.lower(bank, self.z, self.logits).compile()
        for patch in patches:
            patch.stop()
        box = [bank]

        def run() -> object:
            box[0], gradient = compiled(box[0], self.z, self.logits)
            return gradient

        return run


def bank_programs(arguments: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """CoNe's bank in several forms."""
    work = BankWork(arguments)
    whole, blocks = {"num_classes": work.classes}, 4096 * arguments.batch
    return {
        "bank": work.program(work.full_bank(**whole)),
        "bank, lax.top_k": work.program(
            work.full_bank(**whole), mock.patch.object(lookup, "WIDE", 2**31)
        ),
        "bank, blocks of 4,096 rows": work.program(
            work.full_bank(**whole), mock.patch.object(lookup, "MOST_WEIGHTS", blocks)
        ),
        "bank, recomputed": work.program(work.full_bank(num_classes=0, keep_norms=True)),
    }


START = """
import sys
sys.path.insert(0, sys.argv[1])
from cone_jax import runtime
runtime.set_up()
from cone_jax import training
from cone_jax.modes import command_line
config = command_line.load_recipe("configs/digits.py")
config.steps = 1
training.train(config, sys.argv[2])
"""


def first_step(cache: Path) -> float:
    """Seconds from the start of a process to the end of a run of one step on digits."""
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as workdir:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", START, str(root), workdir],
            env={"PATH": "", "XDG_CACHE_HOME": str(cache)},
            cwd=root,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - began


def add_arguments(parser: argparse.ArgumentParser, batch: int) -> None:
    """The network, the batch and the bank to measure."""
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--stem", default="cifar", choices=("cifar", "imagenet"))
    for name, default in (
        ("batch", batch),
        ("bank", 4096),
        ("classes", 100),
        ("neighbours", 32),
        ("size", 32),
        ("width", 64),
        ("rounds", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser, batch=256)
    parser.add_argument("--no-steps", action="store_true", help="measure the bank alone")
    parser.add_argument("--no-start", action="store_true", help="leave out the start-up times")
    arguments = parser.parse_args()
    print(
        f"{arguments.model} ({arguments.stem} stem, width {arguments.width}), batch "
        f"{arguments.batch}, bank {arguments.bank}, {arguments.neighbours} neighbours, "
        f"{arguments.classes} classes, {arguments.size} px, {jax.default_backend()}"
    )
    seconds = {} if arguments.no_steps else interleaved.fastest(steps(arguments), arguments.rounds)
    # Among themselves: after a whole step the first would find the memory allocator cold.
    seconds |= interleaved.fastest(bank_programs(arguments), 4 * arguments.rounds)
    for name, time_of_it in seconds.items():
        base = "bank" if arguments.no_steps else "cross-entropy"
        print(f"{name:26} {time_of_it:8.3f} s {time_of_it / seconds[base]:7.3f} x {base}")
    if not arguments.no_start:
        with tempfile.TemporaryDirectory() as cache:
            for label in ("cold", "warm"):
                print(f"first step of digits, {label} cache: {first_step(Path(cache)):.1f} s")


if __name__ == "__main__":
    main()
