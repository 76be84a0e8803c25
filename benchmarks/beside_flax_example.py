"""Our cross-entropy step beside that of a plain Flax ResNet, by the TPU compiler's estimate.

    python benchmarks/beside_flax_example.py [--topology=v5e:1x1] [--network=resnet50]
        [--images=128] [--contender=plain|ours] [--again]

The plain one is what Flax's ImageNet example describes, written anew: `nn.Conv` and `nn.BatchNorm`
in bfloat16, bottlenecks with the stride in the 3x3, a float32 classifier, SGD with momentum, the
state donated. Both are compiled for the same chips by the same compiler, each in a process of its
own; nothing is run, and the times are estimates (docs/compile.md says what is not in them).
ResNet-50 takes five to ten minutes of a core each, `--network=resnet26` half of that. Each answer
is a line in docs/results/beside_flax.jsonl as soon as it is known and is not asked for again, so
the program may be stopped between them; `--again` asks anew, and the last line counts.
"""

import argparse
import datetime
import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from cone_jax import distributed, load_recipe
from cone_jax.compilation import environment, programs, worker
from cone_jax.compilation.accelerators import Topology, parse_topology
from cone_jax.compilation.programs import Traced
from cone_jax.models import resnet

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "beside_flax.jsonl"
CLASSES, TRAIN_IMAGES = 1000, 1_281_167

# What was asked, and what the compiler said.
Answer = dict[str, Any]


class PlainBottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1 to four times as many channels, and a shortcut."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = functools.partial(nn.Conv, use_bias=False, dtype=jnp.bfloat16)
        norm = functools.partial(
            nn.BatchNorm, use_running_average=False, momentum=0.9, dtype=jnp.bfloat16
        )
        strides = (self.stride, self.stride)
        y = nn.relu(norm()(conv(self.width, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.width, (3, 3), strides)(y)))
        y = norm(scale_init=nn.initializers.zeros)(conv(4 * self.width, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(4 * self.width, (1, 1), strides)(x))
        return nn.relu(x + y)


class PlainResNet(nn.Module):
    """Images [B, H, W, 3] -> class scores [B, 1000], float32."""

    depths: Sequence[int]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(64, (7, 7), (2, 2), padding=3, use_bias=False, dtype=jnp.bfloat16)(x)
        x = nn.relu(nn.BatchNorm(False, momentum=0.9, dtype=jnp.bfloat16)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, depth in enumerate(self.depths):
            for index in range(depth):
                x = PlainBottleneck(64 * 2**stage, 2 if stage and index == 0 else 1)(x)
        return nn.Dense(CLASSES)(jnp.mean(x, (1, 2)).astype(jnp.float32))


def trace_plain(network: str, mesh: Mesh, images: int, size: int) -> Traced:
    """The step of the plain network."""
    model = PlainResNet(resnet.VARIANTS[network].depths)
    optimizer = optax.chain(
        optax.add_decayed_weights(1e-4, lambda params: jax.tree.map(lambda p: p.ndim > 1, params)),
        optax.sgd(0.1, momentum=0.9, nesterov=True),
    )
    everywhere, rows = distributed.replicated(mesh), distributed.split(mesh)

    def create() -> dict[str, Any]:
        variables = model.init(jax.random.key(0), jnp.zeros((1, size, size, 3), jnp.bfloat16))
        return {**variables, "trace": optimizer.init(variables["params"])}

    @functools.partial(jax.jit, donate_argnums=0)
    def step(
        state: dict[str, Any], pixels: jax.Array, labels: jax.Array
    ) -> tuple[dict[str, Any], jax.Array]:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": state["batch_stats"]}
            logits, updated = model.apply(variables, pixels, mutable=["batch_stats"])
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return each.mean(), updated

        (value, updated), gradient = jax.value_and_grad(loss, has_aux=True)(state["params"])
        change, trace = optimizer.update(gradient, state["trace"], state["params"])
        params = optax.apply_updates(state["params"], change)
        return {"params": params, "trace": trace, **updated}, value

    def shaped(x: Any, place: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

    state = jax.tree.map(lambda x: shaped(x, everywhere), jax.eval_shape(create))
    pixels = jax.ShapeDtypeStruct((images, size, size, 3), jnp.bfloat16, sharding=rows)
    labels = jax.ShapeDtypeStruct((images,), jnp.int32, sharding=rows)
    return Traced(step.lower(state, pixels, labels), {}, ())


def trace_ours(network: str, mesh: Mesh, images: int, size: int) -> Traced:
    """The step of this project's recipe."""
    config = load_recipe("imagenet", "cross_entropy")
    config.model.name = network
    config.batch_size, config.data.image_size = images, size
    return programs.trace(
        config, programs.TRAINING, mesh, num_classes=CLASSES, train_images=TRAIN_IMAGES
    )


TRACES = {"plain": trace_plain, "ours": trace_ours}


def compile_one(topology: Topology, question: Answer) -> None:
    """Asks the compiler about one contender, and writes down what it says."""
    mesh = distributed.make_mesh(topology.devices())
    trace = TRACES[question["contender"]]
    images = question["images"] * mesh.size
    found = worker.compile_for(trace(question["network"], mesh, images, question["size"]), topology)
    said = ("estimate_ms", "estimate_ms_by_part", "flops", "bytes_accessed", "temporaries")
    pins = environment.requirements("tpu").read_text().splitlines()
    answer = {
        **question,
        **{name: found[name] for name in said},
        "date": datetime.date.today().isoformat(),
        "versions": " ".join((f"jax=={jax.__version__}", *pins[1:])),
    }
    with RESULTS.open("a") as lines:
        lines.write(json.dumps(answer) + "\n")


def known(question: Answer) -> Answer | None:
    """The last answer to a question."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    answers = [each for each in map(json.loads, lines) if each | question == each]
    return answers[-1] if answers else None


def show(answers: Sequence[Answer]) -> None:
    for found in answers:
        print(
            f"{found['contender']}: {found['estimate_ms']:.2f} ms, {found['flops'] / 1e9:,.0f} "
            f"GFLOP, {found['bytes_accessed'] / 1e9:.1f} GB, temporaries "
            f"{found['temporaries'] / 2**30:.2f} GiB",
            flush=True,
        )
    if len(answers) == len(TRACES):
        plain, ours = (found["estimate_ms"] for found in answers)
        print(f"ours takes {ours / plain:.3f} x the estimate of the plain network")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="v5e:1x1")
    parser.add_argument("--network", default="resnet50", help="a ResNet of bottlenecks")
    parser.add_argument("--images", type=int, default=128, help="per device")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--contender", choices=tuple(TRACES), help="only this one; default: both")
    parser.add_argument("--again", action="store_true", help="ask anew what is known")
    parser.add_argument("--compiling", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    topology = parse_topology(arguments.topology)
    if topology.accelerator.kind != "tpu":
        parser.error("only a TPU's compiler estimates times")
    asked = {name: vars(arguments)[name] for name in ("topology", "network", "images", "size")}
    questions = [{**asked, "contender": name} for name in TRACES]
    chosen = [each for each in questions if arguments.contender in (None, each["contender"])]
    if arguments.compiling:
        compile_one(topology, chosen[0])
        return
    environment.install("tpu", print)
    variables = environment.process_environment("tpu")  # which has the compiler on its path
    for question in chosen:
        if arguments.again or known(question) is None:
            print(f"compiling {question['contender']}", flush=True)
            flags = [f"--{name}={value}" for name, value in question.items()]
            again = [sys.executable, __file__, *flags, "--compiling"]
            code = subprocess.run(again, env=variables, check=False).returncode
            if code:
                sys.exit(code)
    show([answer for question in questions if (answer := known(question))])


if __name__ == "__main__":
    main()
