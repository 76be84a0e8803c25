"""CoNe's losses and memory bank in a training loop of your own: JAX, a Flax network, optax.

    python -m examples.own_loop --steps=300

trains on the handwritten digits of scikit-learn and prints the test accuracy.
"""

import argparse
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from cone_jax import losses, memory_bank, momentum

BATCH, BANK, NEIGHBOURS, CLASSES = 64, 512, 32, 10
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


class Network(nn.Module):
    """Images [B, 64] -> embedding [B, 32] of unit length, logits [B, 10]."""

    @nn.compact
    def __call__(self, images):
        hidden = nn.relu(nn.Dense(128)(images))
        embedding = nn.Dense(32)(hidden)
        return losses.normalise(embedding), nn.Dense(CLASSES)(embedding)


def loss_fn(params, images, labels, key, bank):
    query, logits = Network().apply(params, images)
    near = memory_bank.neighbours(bank, query, NEIGHBOURS)
    positive = near.labels == labels[:, None]
    contrast = losses.sup_in(near.similarity, positive, temperature=0.1, where=near.valid)
    target = memory_bank.soft_labels(bank, key, temperature=0.07)
    agreement = losses.distributional_consistency(target, logits)
    started = bank.filled == BANK  # before that, neighbours are a matter of chance
    extra = jnp.where(started, 0.7 * contrast + 0.4 * agreement, 0.0)
    return jnp.mean(losses.cross_entropy(logits, labels) + extra)


@functools.partial(jax.jit, donate_argnums=0)  # the old state is not needed again
def step(state, images, labels):
    params, ema_params, opt_state, bank = state
    ema_params = momentum.update(ema_params, params, 0.99)
    key, key_logits = Network().apply(ema_params, images)
    loss, gradient = jax.value_and_grad(loss_fn)(params, images, labels, key, bank)
    updates, opt_state = OPTIMIZER.update(gradient, opt_state)
    bank = memory_bank.enqueue(bank, key, labels, jax.nn.softmax(key_logits))
    return (optax.apply_updates(params, updates), ema_params, opt_state, bank), loss


def train(steps: int, seed: int = 0) -> float:
    """The share of test images that are classified right."""
    images, labels = load_digits(return_X_y=True)
    data = train_test_split(images / 16, labels, test_size=360, stratify=labels, random_state=seed)
    train_images, test_images, train_labels, test_labels = data
    params = Network().init(jax.random.key(seed), train_images[:1])
    bank = memory_bank.init(BANK, dim=32, num_classes=CLASSES)
    state = (params, jax.tree.map(jnp.copy, params), OPTIMIZER.init(params), bank)
    rng = np.random.default_rng(seed)
    for number in range(1, steps + 1):
        rows = rng.choice(len(train_images), BATCH, replace=False)
        state, loss = step(state, train_images[rows], train_labels[rows])
        if number % 100 == 0:
            print(f"step {number}: loss {loss:.3f}")
    _, logits = Network().apply(state[0], test_images)
    return float(np.mean(np.argmax(logits, axis=-1) == test_labels))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    print(f"test accuracy {train(parser.parse_args().steps):.1%}")
