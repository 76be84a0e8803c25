"""Training: the state, the step, and the loop around them."""

from cone_jax.training.loop import train
from cone_jax.training.train_state import TrainState, abstract_state, create_state, init_state
from cone_jax.training.train_step import train_step

__all__ = ["TrainState", "abstract_state", "create_state", "init_state", "train", "train_step"]
