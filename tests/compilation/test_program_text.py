"""What is read out of the text of a compiled program, on a program written by hand."""

import pytest

from cone_jax.compilation.program_text import Collective, Program, StateCopy, shape_bytes

CYCLES = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
TEXT = f"""HloModule jit__train_step, is_scheduled=true

%fused (p: f32[8,4]) -> f32[8,4] {{
  %p = f32[8,4]{{1,0}} parameter(0)
  ROOT %hidden = f32[8,4]{{1,0}} all-reduce(%p), channel_id=5, \
frontend_attributes={{chain_id="0"}}, metadata={{op_name="hidden"}}, \
backend_config={{"async_collective_fusion_config":{{"flag_start":"2"}}}}
}}

%cheap (p: f32[4]) -> f32[4] {{
  ROOT %a = f32[4]{{0}} negate(%p), {CYCLES % 1}
}}

%dear (p: f32[4]) -> f32[4] {{
  ROOT %b = f32[4]{{0}} exponential(%p), {CYCLES % 50}
}}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %c = f32[4]{{0}} multiply(%x, %x), {CYCLES % 10}
  ROOT %t = (s32[], f32[4]{{0}}) tuple(%i, %c)
}}

ENTRY %main (state: f32[512,1000]) -> f32[512,1000] {{
  %state = f32[512,1000]{{0,1}} parameter(0), metadata={{op_name="state.bank.probs"}}
  %copy.1 = f32[512,1000]{{1,0:T(8,128)}} copy(%state), metadata={{op_name="bank"}}, {CYCLES % 300}
  %copy.2 = f32[512,1000]{{1,0:T(8,128)S(1)}} copy(%copy.1), {CYCLES % 20}
  %small = f32[4]{{0}} copy(%x), {CYCLES % 2}
  %loop = (s32[], f32[4]{{0}}) while(%in), condition=%c, body=%body, \
backend_config={{"known_trip_count":{{"n":"3"}}}}
  %choice = f32[4]{{0}} conditional(%k, %x, %x), branch_computations={{%cheap, %dear}}
  %f = f32[8,4]{{1,0}} fusion(%y), kind=kLoop, calls=%fused, \
metadata={{op_name="jit(f)/transpose(jvp(Encoder))/conv"}}, {CYCLES % 1000}
  %g = f32[8,4]{{1,0}} fusion(%y), metadata={{op_name="jit(f)/Encoder/x"}}, {CYCLES % 40}
  %again = f32[8,4]{{1,0}} fusion(%f), kind=kCustom, calls=%fused
  %s = (f32[128,64]{{1,0}}, s32[128,64]{{1,0}}) sort(%v, %w), dimensions={{1}}
  %gather = (bf16[2,8]{{1,0}}, bf16[16,8]{{1,0}}) all-gather-start(%z), dimensions={{0}}
  %same = f32[10]{{0}} all-reduce(%z), channel_id=5, to_apply=%add
  %sent = (f32[20]{{0}}, u32[], token[]) send(%z, %token), channel_id=7, \
frontend_attributes={{_xla_megascale_transfer_type="ALL_REDUCE"}}
  %got = (f32[20]{{0}}, u32[], token[]) recv(%token), channel_id=8, \
frontend_attributes={{_xla_megascale_transfer_type="ALL_REDUCE"}}
  %reduce = f32[100]{{0}} all-reduce-start(%z), backend_config={{"is_sync":true}}
  ROOT %out = f32[512,1000]{{1,0}} fusion(%copy.2), kind=kLoop
}}
"""


@pytest.fixture
def program():
    return Program(TEXT)


def test_loops_count_as_often_as_they_run_and_of_branches_the_dearest(program):
    assert program.cycles == 300 + 20 + 2 + 3 * 10 + 50 + 1000 + 40


def test_cycles_belong_to_the_pass_they_come_from(program):
    parts = program.cycles_by_part()
    assert (parts["gradient"], parts["key forward"]) == (1000, 40)
    assert sum(parts.values()) == program.cycles


def test_collectives_are_found_in_fusions_and_sized_by_their_results(program):
    """One that two fusions carry out counts once, another with its channel for itself."""
    assert program.collectives() == [
        Collective("all-reduce", 400, 1, False, ""),
        Collective("all-gather", 256, 1, True, ""),
        Collective("all-reduce", 128, 1, True, "hidden"),
        Collective("all-reduce between slices", 80, 1, True, ""),
        Collective("all-reduce", 40, 1, False, ""),
    ]


def test_a_copy_of_a_state_buffer_is_one_within_the_main_memory(program):
    shapes = ("f32[512,1000]", "f32[4]")
    assert program.state_copies(shapes) == [StateCopy("f32[512,1000]", 2_048_000, 300, "bank")]
    assert len(program.state_copies(shapes, least_bytes=1)) == 2
    assert not program.state_copies(("f32[512,1001]",))


def test_sorts_are_named_since_they_have_no_estimate(program):
    assert program.without_estimate() == {"f32[128,64]": 1}


@pytest.mark.parametrize(
    ("shape", "size"), [("pred[3]", 3), ("u8[2,2]", 4), ("s64[2]", 16), ("bf16[]", 2)]
)
def test_sizes_follow_the_type(shape, size):
    assert shape_bytes(shape) == size
