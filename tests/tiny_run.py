"""A run that is small enough to compile and train in seconds, as flags and as a config."""

from ml_collections import ConfigDict

FLAGS = (
    "--config.batch_size=32",
    "--config.model.options.width=4",
    "--config.model.head_hidden=16",
    "--config.model.embedding_dim=8",
    "--config.bank.size=64",
    "--config.objective.cone.neighbours=8",
)


def config() -> ConfigDict:
    """CoNe on digits: eight steps, records of three, one evaluation and one checkpoint."""
    from cone_jax.config.recipe import load_recipe

    config = load_recipe("configs/digits.py").unlock()
    config.batch_size = 32
    config.steps = 8
    config.model.options.width = 4
    config.model.head_hidden = 16
    config.model.embedding_dim = 8
    config.bank.size = 72  # no multiple of the batch
    config.objective.cone.neighbours = 8
    config.objective.cone.start_epochs = 0
    config.log_every = 3
    config.evaluation.batch_size = 64
    config.evaluation.every_epochs = 0.0
    config.checkpoint.every_epochs = 0.0
    return config
