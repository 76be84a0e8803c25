"""``python main.py --config=... --workdir=... --mode=...``: the command `cone`, in a clone."""

from cone_jax.__main__ import main, run

__all__ = ["main"]

if __name__ == "__main__":
    run()
