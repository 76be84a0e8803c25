"""Would the tests notice? Breaks one line at a time in a copy of the project and runs its tests.

    python benchmarks/mutants.py [--only=WORD] [--list]

Each mutant is a plausible mistake in a line that results depend on. One that the tests named beside
it do not catch survives; survivors are listed and make the exit code 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    """A mistake, and the tests that should see it."""

    file: str  # below cone_jax/
    before: str  # occurs once
    after: str
    tests: str  # below tests/


MUTANTS = (
    Mutant(
        "losses.py",
        "return jnp.where(has_positive, every - positives, 0.0)",
        "return every - positives",
        "test_losses.py",
    ),
    Mutant(
        "losses.py",
        "return logits, positive | empty, where | empty, has_positive",
        "return logits, positive, where, has_positive",
        "test_losses.py",
    ),
    Mutant(
        "losses.py",
        "uniform_share = smoothing * num_classes / (num_classes - 1)",
        "uniform_share = smoothing",
        "test_losses.py",
    ),
    Mutant(
        "losses.py",
        "target = jax.lax.stop_gradient(target_probs.astype(jnp.float32))",
        "target = target_probs.astype(jnp.float32)",
        "test_losses.py",
    ),
    Mutant(
        "momentum.py",
        "return optax.incremental_update(params, ema_params, step_size=1.0 - m)",
        "return optax.incremental_update(params, ema_params, step_size=m)",
        "test_momentum.py",
    ),
    Mutant(
        "memory_bank/bank.py",
        "filled=jnp.minimum(bank.filled + count, size),",
        "filled=bank.filled + count,",
        "memory_bank/test_memory_bank.py",
    ),
    Mutant(
        "memory_bank/bank.py",
        "cursor=(bank.cursor + count) % size,",
        "cursor=jnp.where(bank.cursor + count < size, bank.cursor + count, 0),",
        "memory_bank/test_memory_bank.py",
    ),
    Mutant(
        "memory_bank/lookup.py",
        "visible = visible & ~((bank.ids[None, :] == ids) & (ids != NO_ID))",
        "visible = visible & ~(bank.ids[None, :] == ids)",
        "memory_bank/test_memory_bank.py",
    ),
    Mutant(
        "memory_bank/lookup.py",
        "chosen = jnp.sort(chosen, axis=-1)",
        "chosen = chosen + 0",
        "memory_bank/test_selection.py",
    ),
    Mutant(
        "objectives/cone.py",
        'count = jnp.maximum(jnp.sum(kept), 1) if self.sup_reduction == "kept" else kept.size',
        "count = jnp.maximum(jnp.sum(kept), 1)",
        "objectives/test_cone.py",
    ),
    Mutant(
        "objectives/cone.py",
        "loss_dc = jnp.mean(jnp.where(active & keep, consistency, 0.0))",
        "loss_dc = jnp.mean(jnp.where(keep, consistency, 0.0))",
        "objectives/test_cone.py",
    ),
    Mutant(
        "training/train_step.py",
        "state = state.replace(ema_params=momentum.update(state.ema_params, state.params, m))",
        "state = state.replace(ema_params=state.params)",
        "training/test_train_step.py",
    ),
    Mutant(
        "training/train_step.py",
        "return memory_bank.enqueue(before.bank, **passed.keys, when=finite)",
        "return memory_bank.enqueue(before.bank, **passed.keys)",
        "training/test_step_at_scale.py",
    ),
    Mutant(
        "training/train_step.py",
        "keys = _to_remember(query if key is None else key, rows, needs, state.bank)",
        "keys = _to_remember(query, rows, needs, state.bank)",
        "training/test_train_step.py",
    ),
    Mutant(
        "data/pipeline.py",
        "return self.num_records // self.batch_size * self.batch_size",
        "return self.num_records",
        "data/test_train_order.py",
    ),
    Mutant(
        "data/pipeline.py",
        "return np.random.default_rng((seed, draw.epoch, draw.record, view, *again))",
        "return np.random.default_rng((seed, draw.record, view, *again))",
        "data/test_train_order.py",
    ),
    Mutant(
        "workdir/checkpoints.py",
        "return max(scored)[1] if scored else None",
        "return min(scored)[1] if scored else None",
        "workdir/test_checkpoints.py",
    ),
    Mutant(
        "workdir/integrity.py",
        "if checksum != expected_checksum:",
        "if size != expected_size:",
        "workdir/test_checkpoints.py",
    ),
    Mutant(
        "training/optimizers.py",
        'lambda path, _: path[-1].key == "kernel", params',
        "lambda path, leaf: leaf.ndim > 1, params",
        "training/test_optimizers.py",
    ),
    Mutant(
        "training/faults.py",
        "elif now - first > SAME_REQUEST:",
        "elif now < first:",
        "training/test_interruption.py",
    ),
    Mutant(
        "training/faults.py",
        "if not flags.all():",
        "if not flags.any():",
        "training/test_nonfinite.py",
    ),
    Mutant(
        "storage.py",
        "codes = set(map(int, _IN_TEXT.findall(str(error))))",
        "codes = set[int]()",
        "workdir/test_disk_errors.py",
    ),
    Mutant(
        "workdir/compatibility.py",
        "if there != here and not _differ_in_padding(name, there, here, bank_size):",
        "if len(there) != len(here):",
        "workdir/test_compatibility.py",
    ),
    Mutant(
        "data/decode.py",
        "if width * height > max_pixels:",
        "if width > max_pixels or height > max_pixels:",
        "data/test_decode.py",
    ),
    Mutant(
        "interop/files.py",
        'content = torch.load(file, map_location="cpu", weights_only=True)',
        'content = torch.load(file, map_location="cpu", weights_only=False)',
        "interop/test_files.py",
    ),
)


def survives(mutant: Mutant, copy: Path) -> bool:
    """Whether the tests pass in spite of it."""
    path = copy / "cone_jax" / mutant.file
    original = path.read_text()
    if original.count(mutant.before) != 1:
        sys.exit(f"{mutant.file}: {mutant.before!r} must be there once; the list is out of date")
    path.write_text(original.replace(mutant.before, mutant.after))
    command = (sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider")
    try:
        done = subprocess.run(
            [*command, f"tests/{mutant.tests}"],
            cwd=copy,
            env={**os.environ, "CI": "true"},  # the same examples every time
            capture_output=True,
            text=True,
        )
    finally:
        path.write_text(original)
    if done.returncode not in (0, 1):  # 1: a test failed; others: pytest could not do its work
        sys.exit(done.stdout + done.stderr)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a word of the file's path")
    parser.add_argument("--list", action="store_true", help="only say what would be broken")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.file]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.file}: {mutant.before}\n    -> {mutant.after}")
        return
    survivors = 0
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "project"
        ignored = shutil.ignore_patterns(".*", "runs", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for mutant in chosen:
            began = time.monotonic()
            alive = survives(mutant, copy)
            survivors += alive
            fate = "SURVIVES" if alive else "killed"
            seconds = time.monotonic() - began
            print(f"{fate:9} {seconds:4.0f} s  {mutant.file}: {mutant.after}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants killed")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
