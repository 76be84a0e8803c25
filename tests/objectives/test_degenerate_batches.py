"""The smallest batches and label sets there can be: every loss and its gradient stay finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import memory_bank, objectives
from cone_jax.models import EncoderOutput
from cone_jax.objectives import Activation, ClassCentres, MixedLabels, StepInputs
from cone_jax.objectives.cmsf import Cmsf
from cone_jax.objectives.cone import Cone
from cone_jax.objectives.nnclr import Nnclr
from cone_jax.objectives.paco import PaCo
from cone_jax.objectives.supcon import SupCon

pytestmark = pytest.mark.optimised

D, K = 3, 4

OBJECTIVES = {
    **{
        name: objectives.create(name, {})
        for name in objectives.exchangeable()
        if name not in ("cone", "cmsf")
    },
    "cmsf": Cmsf(neighbours=2, ce_weight=1.0),
    "supcon L_in": SupCon(contrast="sup_in"),
    "paco with prior": PaCo(prior="data"),
    "nnclr with CE": Nnclr(lookup="key", ce_weight=1.0, same_class_only=True),
    **{
        f"cone {contrast} {view}": Cone(
            neighbours=2,
            contrast=contrast,
            contrastive_view=view,
            start_epochs=0,
            wait_for_bank=False,
            label_smoothing=0.1,
        )
        for contrast, view in (("sup_in", "none"), ("sup_out", "key"))
    },
}


def step_inputs(rows, classes, filled, arrays):
    """Inputs with everything that any objective needs; the bank has `filled` rows."""
    embedding, logits, prediction, kernel = arrays
    rng = np.random.default_rng(1)
    features = rng.normal(size=(K, D))
    bank = memory_bank.MemoryBank(
        features=jnp.asarray(features / np.linalg.norm(features, axis=1, keepdims=True)),
        labels=jnp.zeros(K, jnp.int32),
        probs=jnp.full((K, classes), 1 / classes),
        ids=jnp.full((K,), -1),
        cursor=jnp.asarray(0),
        filled=jnp.asarray(filled),
    )
    key = EncoderOutput(embedding, embedding + 1.0, logits, prediction)
    return StepInputs(
        query=EncoderOutput(embedding, embedding, logits, prediction),
        labels=jnp.zeros(rows, jnp.int32),
        epoch=jnp.asarray(1),
        step=jnp.asarray(0),
        key=key,
        bank=bank,
        mixed=MixedLabels(jnp.zeros(rows, jnp.int32), jnp.full(rows, 0.5)),
        class_centres=ClassCentres(embedding, kernel),
        layers={"features": Activation(embedding, lambda a: a @ kernel)},
        class_prior=jnp.full(classes, 1 / classes),
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_one_sample_and_one_class(name):
    objective = OBJECTIVES[name]
    one_sample = 2 if objective.needs.views == "rows" else 1
    rng = np.random.default_rng(0)
    for rows, classes in ((one_sample, 3), (4, 1)):
        shapes = ((rows, D), (rows, classes), (rows, D), (D, classes))
        arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]

        def loss(arrays, filled, rows=rows, classes=classes):
            return objective(step_inputs(rows, classes, filled, arrays))

        step = jax.jit(jax.value_and_grad(loss, has_aux=True))
        for filled in (0, 1, K):
            (value, metrics), gradients = step(arrays, filled)
            for leaf in jax.tree.leaves((value, metrics, gradients)):
                assert np.isfinite(leaf).all(), (rows, classes, filled)
