"""The programs of a detector for ``--mode=compile``: those that training and evaluation run."""

import re

import jax
import pytest

from cone_jax import distributed
from cone_jax.compilation import program_text, programs
from cone_jax.recipes import coco
from cone_jax.training.run import Run
from tests.detection import shapes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = coco.get_config("own,tiny").unlock()
    config.data.path = str(shapes.write(tmp_path_factory.mktemp("shapes"), 16))
    config.data.holdout, config.data.threads = 0.25, 1
    config.batch_size = config.evaluation.batch_size = 8  # of eight devices
    return Run.open(config)


def described(batch):
    return {name: (each.shape, str(each.dtype)) for name, each in batch.items()}


def test_the_traced_batches_are_those_of_training_and_evaluation(run):
    mesh = distributed.make_mesh(jax.devices()[:1])
    real = run.host_batch(1)
    real.pop("damaged")
    assert described(programs._train_batch(run.config, mesh)) == described(real)
    traced = programs.trace(
        run.config,
        programs.EVALUATION,
        mesh,
        num_classes=run.dataset.num_classes,
        train_images=0,
    )
    (_, batch, _), _ = traced.lowered.in_avals
    first = next(iter(run.eval_stream(run.dataset.test, print)))
    for name, each in batch.items():
        if name in first:
            assert each.shape == first[name].shape, name


def text_of(run, program):
    traced = programs.trace(
        run.config,
        program,
        distributed.make_mesh(jax.devices()[:1]),
        num_classes=run.dataset.num_classes,
        train_images=len(run.dataset.train),
    )
    return traced.lowered.as_text(debug_info=True)


@pytest.mark.parametrize("program", [programs.TRAINING, programs.EVALUATION])
def test_no_step_asks_the_host(run, program):
    text = text_of(run, program)
    assert "stablehlo.convolution" in text
    assert not re.findall(r"\w*callback\w*|outfeed|infeed|stablehlo.send", text)


def test_roi_align_and_nms_are_parts_of_the_estimate(run):
    """Their names are in the programs, forward and backward."""
    text = text_of(run, programs.TRAINING)
    for part in ("roi_align", "nms", "transpose(jvp(Detector"):
        assert part in text, part
    scopes = {
        "RoIAlign": "transpose(jvp(Detector))/vmap(roi_align)/dot_general",
        "NMS": "jvp(Detector)/vmap(nms)/while",
        "gradient": "transpose(jvp(Detector))/backbone/conv1/conv_general_dilated",
        "detector forward": "jvp(Detector)/backbone/conv1/conv_general_dilated",
        "rest": "mul",
    }
    lines = [
        f'  %f{n} = f32[8]{{0}} fusion(), backend_config={{"estimated_cycles":"{n}"}}, '
        f'metadata={{op_name="jit(step)/{scope}"}}'
        for n, scope in enumerate(scopes.values(), 1)
    ]
    found = program_text.Program("\n".join(["ENTRY %main () -> f32[8] {", *lines, "}"]))
    assert found.cycles_by_part() == {part: n for n, part in enumerate(scopes, 1)}
