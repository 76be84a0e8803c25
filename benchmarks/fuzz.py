"""Feeds damaged input to whatever reads files: pictures, configs, checkpoints.

    python benchmarks/fuzz.py --pictures=10000 --configs=2000 --checkpoints=100

Every input is a valid one with bytes flipped, cut out, repeated or replaced. It may be accepted, or
refused with the error meant for it; any other exception, an input that takes longer than ten
seconds, or memory that grows makes the exit code 1. A crash of the interpreter speaks for itself.
"""

import argparse
import collections
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import jax
import numpy as np
from PIL import Image

from cone_jax import config as config_lib
from cone_jax import workdir as workdirs
from cone_jax.data import decode
from cone_jax.errors import Failure, UserError
from cone_jax.workdir.checkpoints import Checkpoints

LONGEST = 10.0  # seconds for one input
GROWTH = 100.0  # megabytes of resident memory from the first tenth of the inputs to the last

Outcomes = collections.Counter


def mutate(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to eight changes of the kinds that transfer errors and bugs make."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not result:
            break
        at, length = rng.randrange(len(result)), rng.randint(1, 64)
        kind = rng.randrange(6)
        if kind == 0:
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            result[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del result[at : at + length]
        elif kind == 3:
            result[at:at] = result[at : at + length]
        elif kind == 4:
            result[at : at + 4] = rng.choice(
                (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")
            )
        else:
            del result[rng.randrange(len(result)) :]
    return bytes(result)


def observe(attempt: Callable[[], None], refusals: tuple[type[Exception], ...]) -> str:
    """What became of one input: accepted, refused, slow, or the name of another exception."""
    began = time.monotonic()
    try:
        attempt()
        outcome = "accepted"
    except refusals:
        outcome = "refused"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"[:200]
    return "slow" if time.monotonic() - began > LONGEST else outcome


def pictures() -> list[bytes]:
    """Small valid files of every format and mode that is read."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    files = []
    for mode in ("RGB", "L", "P", "RGBA", "CMYK"):
        image = Image.fromarray(pixels).convert(mode)
        for form, options in (
            ("JPEG", {}),
            ("JPEG", {"progressive": True}),
            ("PNG", {}),
            ("WEBP", {}),
            ("WEBP", {"lossless": True}),
            ("BMP", {}),
        ):
            buffer = io.BytesIO()
            try:
                image.save(buffer, form, **options)
            except OSError:  # the format has no such mode
                continue
            files.append(buffer.getvalue())
    return files


def fuzz_pictures(count: int, seed: int = 0) -> Iterator[str]:
    """Decodes damaged pictures, whole and in part."""
    rng, valid = random.Random(seed), pictures()

    def decode_all(data: bytes) -> None:
        picture = decode.open_image(data, max_pixels=10**6)
        assert isinstance(picture, decode.Picture)
        picture.region((0, 0, *picture.size), (8, 8))
        assert picture.full().mode == "RGB"

    for _ in range(count):
        data = mutate(rng.choice(valid), rng)
        yield observe(lambda data=data: decode_all(data), (decode.DamagedImage,))


def fuzz_configs(count: int, seed: int = 0) -> Iterator[str]:
    """Loads damaged `config.json` files, and checks the config if there is one."""
    rng = random.Random(seed)
    config = config_lib.default()
    valid = config.to_json_best_effort(indent=1).encode()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, workdirs.CONFIG_FILE)
        for index in range(count):
            if index % 2:
                path.write_bytes(mutate(valid, rng))
            else:  # valid JSON with a value of another kind somewhere
                path.write_text(json.dumps(_replace_one(json.loads(valid), rng)))
            yield observe(lambda: config_lib.validate(workdirs.load_config(scratch)), (UserError,))


def _replace_one(tree: dict, rng: random.Random) -> dict:
    section = tree
    while True:
        name = rng.choice(sorted(section))
        if not isinstance(section[name], dict) or not section[name] or rng.random() < 0.1:
            break
        section = section[name]
    section[name] = rng.choice((None, -1, 0, 1e400, "", "x", [], [1], {}, {"a": 1}, True, 2**70))
    return tree


def fuzz_checkpoints(count: int, seed: int = 0) -> Iterator[str]:
    """Resumes from a run whose newest checkpoint has a damaged file."""
    rng = random.Random(seed)

    def state(value: float) -> dict:
        return {"params": {"w": jax.numpy.full((300,), value)}, "step": jax.numpy.int32(0)}

    with tempfile.TemporaryDirectory() as scratch:
        valid, damaged = Path(scratch, "valid"), Path(scratch, "damaged")
        with Checkpoints(valid, keep=2) as checkpoints:
            for step in (1, 2):
                checkpoints.save(step, state(step), {"next_step": step}, {})
                checkpoints.wait()

        def resume() -> None:
            with Checkpoints(damaged, keep=2) as checkpoints:
                step = checkpoints.newest_intact_step(lambda line: None)
                assert step in (1, 2)
                restored = checkpoints.restore(step, jax.eval_shape(lambda: state(0.0)))
                np.testing.assert_array_equal(restored.state["params"]["w"], float(step))

        for _ in range(count):
            shutil.copytree(valid, damaged)
            # Files of the items, the manifest, and Orbax's own bookkeeping alike.
            files = sorted(
                path for path in damaged.rglob("*") if path.is_file() and "1" not in path.parts
            )
            path = rng.choice(files)
            if rng.random() < 0.2:
                path.unlink()
            else:
                path.write_bytes(mutate(path.read_bytes(), rng))
            yield observe(resume, (UserError, Failure))
            shutil.rmtree(damaged)


PARTS = {"pictures": fuzz_pictures, "configs": fuzz_configs, "checkpoints": fuzz_checkpoints}


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(part: str, count: int, seed: int) -> bool:
    """Prints what became of the inputs of one part; returns whether all is well."""
    outcomes: Outcomes = collections.Counter()
    began, early = time.monotonic(), 0.0
    for index, outcome in enumerate(PARTS[part](count, seed)):
        outcomes[outcome] += 1
        if index == count // 10:
            early = resident_megabytes()
    growth = resident_megabytes() - early
    seconds = time.monotonic() - began
    print(f"{part}: {count} inputs in {seconds:.0f} s, memory {growth:+.0f} MB", flush=True)
    for outcome, times in outcomes.most_common():
        print(f"  {times:>6} {outcome}", flush=True)
    return set(outcomes) <= {"accepted", "refused"} and growth < GROWTH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for part, count in (("pictures", 10_000), ("configs", 2_000), ("checkpoints", 100)):
        parser.add_argument(f"--{part}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = {part: getattr(options, part) for part in PARTS}
    well = [run(part, count, options.seed) for part, count in counts.items() if count]
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    main()
