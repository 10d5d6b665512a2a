"""Bytes between a chip and its memory, counted in texts as a compiler for TPUs writes them."""

import jax
import jax.numpy as jnp
import pytest

from gradxform.testing import hlo

# A loop of three turns over the rows of an array: each reads a row, and puts it elsewhere, doubled.
PROGRAM = """HloModule jit_f, is_scheduled=true

%doubled (x: f32[3,256], y: f32[3,256], i: s32[]) -> f32[3,256] {
  %x = f32[3,256]{1,0} parameter(0)
  %y = f32[3,256]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %row = f32[1,256]{1,0} dynamic-slice(%x, %i, %zero), dynamic_slice_sizes={1,256}
  %twice = f32[1,256]{1,0} add(%row, %row)
  ROOT %put = f32[3,256]{1,0} dynamic-update-slice(%y, %twice, %i, %zero)
}

%other_tiles (x: f32[3,256]) -> f32[3,256] {
  %x = f32[3,256]{1,0} parameter(0)
  ROOT %same = f32[3,256]{1,0:T(4,128)} copy(%x)
}

%inner (x: f32[3,256], i: s32[]) -> f32[1,256] {
  %x = f32[3,256]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %row = f32[1,256]{1,0} dynamic-slice(%x, %i, %zero), dynamic_slice_sizes={1,256}
}

%nested (x: f32[3,256], i: s32[]) -> f32[1,256] {
  %x = f32[3,256]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %same = f32[3,256]{1,0} fusion(%x), output_to_operand_aliasing={{}: (0, {})}, calls=%other_tiles
  %row = f32[1,256]{1,0} fusion(%same, %i), kind=kLoop, calls=%inner
  ROOT %twice = f32[1,256]{1,0} add(%row, %row)
}

%body (carry: (s32[], f32[3,256], f32[3,256])) -> (s32[], f32[3,256], f32[3,256]) {
  %carry = (s32[], ARRAY, ARRAY) parameter(0)
  %count = s32[] get-tuple-element(%carry), index=0
  %from = ARRAY get-tuple-element(%carry), index=1
  %to = ARRAY get-tuple-element(%carry), index=2
  %next = ARRAY fusion(%from, %to, %count), kind=kLoop, calls=%doubled
  ROOT %all = (s32[], ARRAY, ARRAY) tuple(%count, %from, %next)
}

%test (carry: (s32[], f32[3,256], f32[3,256])) -> pred[] {
  %carry = (s32[], ARRAY, ARRAY) parameter(0)
  %count = s32[] get-tuple-element(%carry), index=0
  %three = s32[] constant(3)
  ROOT %more = pred[] compare(%count, %three), direction=LT
}

ENTRY %main (p: f32[3,256], q: f32[3,256]) -> f32[3,256] {
  %p = ARRAY parameter(0)
  %q = ARRAY parameter(1)
  LINES
}
"""
LOOP = """%zero = s32[]{:T(128)S(6)} constant(0)
  %start = (s32[], ARRAY, ARRAY) tuple(%zero, %p, %q)
  ROOT %done = (s32[], ARRAY, ARRAY) while(%start), \
condition=%test, body=%body"""
KNOWN = ', backend_config={"known_trip_count":{"n":"7"}}'
SPELLED = {
    "ROW_ON_CHIP": "f32[1,256]{1,0:T(8,128)S(1)}",
    "ON_CHIP": "f32[3,256]{1,0:T(8,128)S(1)}",
    "ARRAY": "f32[3,256]{1,0:T(8,128)}",
}
ARRAY, ROW = 3 * 256 * 4, 256 * 4
NESTED = """%zero = s32[] constant(0)
  ROOT %row = f32[1,256]{1,0} fusion(%p, %zero), kind=kLoop, calls=%nested"""
TO_CHIP = """%start = (ON_CHIP, ARRAY, u32[]{:S(2)}) copy-start(%p)
  %here = ON_CHIP copy-done(%start)
  ROOT %sum = ARRAY add(%here, %q)"""
SLICED = """%start = ((ARRAY), ROW_ON_CHIP, s32[]{:S(2)}) slice-start(%p), \
slice={[0:1], [0:256]}
  %here = ROW_ON_CHIP slice-done(%start)
  %same = ROW_ON_CHIP custom-call(%here), custom_call_target="ConcatBitcast"
  ROOT %twice = ROW_ON_CHIP add(%same, %same)"""


@pytest.mark.parametrize(
    "lines, moved",
    [
        ("ROOT %sum = ARRAY add(%p, %q)", 3 * ARRAY),
        ("ROOT %sum = ON_CHIP add(%p, %q)", 2 * ARRAY),
        ("ROOT %same = f32[768]{0:T(1024)} bitcast(%p)", 0),
        (LOOP, 3 * (2 * ROW + 4)),  # and the number of the row
        (LOOP + KNOWN, 7 * (2 * ROW + 4)),
        (NESTED, 2 * ROW + 4),
        (TO_CHIP, 3 * ARRAY),
        (SLICED, ROW),
        ("ROOT %row = f32[1,256]{1,0} slice(%p), slice={[0:1], [0:256]}", 2 * ROW),
        (
            "ROOT %put = f32[3,256]{1,0} dynamic-update-slice(%p, %q)",
            2 * ARRAY,
        ),
    ],
    ids=[
        "read and written",
        "on the chip",
        "free",
        "loop",
        "known",
        "nested",
        "copy",
        "slices",
        "cut",
        "in place",
    ],
)
def test_what_an_instruction_moves(lines, moved):
    text = PROGRAM.replace("LINES", lines)
    for word, shape in SPELLED.items():
        text = text.replace(word, shape)
    assert hlo.moved_bytes(text) == moved


def test_a_compiled_program_reads_its_arguments_and_writes_its_results():
    x = jnp.ones((64, 128))
    compiled = jax.jit(lambda x, y: 2 * x + y).lower(x, x).compile()
    assert hlo.moved_bytes(compiled) == 3 * x.nbytes


def test_what_is_not_a_program_is_refused():
    with pytest.raises(ValueError, match="not the text of a compiled program"):
        hlo.moved_bytes("f32[3]")
