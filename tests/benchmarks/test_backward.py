"""The section `backward` measures both kinds of step, and its page is current."""

import importlib.util
import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks.__main__ import main
from benchmarks.sections import backward
from benchmarks.sections.backward import BACKWARD, KINDS, ORDINARY, THEIRS
from benchmarks.subjects import deep
from benchmarks.subjects.deep import ROWS, Size
from benchmarks.tables import page

SMALL = Size(16, 2, 8, layers=2)


@pytest.fixture
def run(tmp_path):
    cache = jax.config.jax_enable_compilation_cache
    yield lambda: main(["backward", "--quick", "--out", str(tmp_path)])
    jax.config.update("jax_enable_compilation_cache", cache)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_a_step_in_the_backward_pass_holds_less(run, tmp_path):
    assert run() == 0
    results = json.loads((tmp_path / "backward.json").read_text())
    (case,), (here,) = results["cases"], results["here"]
    assert {case[kind]["arguments"] for kind in KINDS} == {case[ORDINARY]["arguments"]}
    assert case[BACKWARD]["temp"] < 0.5 * case[ORDINARY]["temp"]
    assert set(here["samples"]) == {BACKWARD, ORDINARY}
    assert (tmp_path / "backward.png").read_bytes()[:4] == b"\x89PNG"


def test_without_the_compiler_one_line_says_what_to_install(run, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run() == 2
    said = capsys.readouterr().err
    assert said.strip().count("\n") == 0 and "make bench ARGS=backward" in said


@pytest.mark.parametrize("name", ROWS)
def test_every_row_has_all_its_kinds_of_step(name):
    row = ROWS[name]
    params = jax.eval_shape(lambda: deep.normal(SMALL, row.dtype, 0))
    batch = jax.ShapeDtypeStruct((SMALL.batch, SMALL.length + 1), jnp.int32)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for kind in KINDS:
            if kind == THEIRS and not row.both:
                continue
            init, step = backward.step_of(row, kind)
            state = jax.eval_shape(init, params)
            new, after, loss = jax.eval_shape(step, params, state, batch)
            assert jax.tree.structure((new, after)) == jax.tree.structure((params, state))
            assert loss.shape == ()


def test_a_model_is_the_same_in_every_process():
    params = deep.normal(SMALL, jnp.float32, 0)
    assert params["layers"]["up"].shape == (2, 16, 64) and params["embed"].shape == (256, 16)
    same = jax.tree.map(jnp.array_equal, params, deep.normal(SMALL, jnp.float32, 0))
    assert all(jax.tree.leaves(same))
    assert not jnp.array_equal(params["layers"]["up"][0], params["layers"]["up"][1])


def test_the_page_shows_the_results():
    results = json.loads(backward.DATA.read_text())
    assert {case["name"] for case in results["cases"]} == set(ROWS), "run make bench ARGS=backward"
    text = page.BACKWARD_PAGE.read_text()
    assert text == page.page(text, backward.DATA.parent), "run python -m benchmarks.tables.page"
