"""The benchmarks find what both libraries have, and a short run writes what it measured."""

import json
import time

import jax
import jax.numpy as jnp
import pytest

import gradxform as gx
from benchmarks.__main__ import main
from benchmarks.subjects.cases import CHAINS, LIBRARIES, make_step, make_tree
from benchmarks.subjects.pairs import PAIRS
from benchmarks.subjects.regressions import of_lbfgs, of_newton_cg, teacher
from benchmarks.subjects.searches import evaluations_until
from benchmarks.tables import page
from benchmarks.timing.measure import Budget, interleave
from benchmarks.timing.staging import stage
from benchmarks.timing.stepping import time_steps


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Optax about its own arguments
def test_every_pair_runs_a_step_of_both_libraries():
    assert {"adam", "lion", "sgd"} <= set(PAIRS) <= set(gx.OPTIMIZERS)
    params, grads = make_tree("8-mixed", 0)
    for name, pair in PAIRS.items():
        n = pair.examples
        like = [jnp.broadcast_to(g, (n, *g.shape)) if n else g for g in jax.tree.leaves(grads)]
        given = jax.tree.unflatten(jax.tree.structure(grads), like)
        for lib in LIBRARIES.values():
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                tx = pair.make(lib)
                state = jax.eval_shape(tx.init, params)
                new, after = jax.eval_shape(make_step(lib, tx, pair.extra), params, state, given)
            assert jax.tree.structure(new) == jax.tree.structure(params), name
            assert jax.tree.structure(after) == jax.tree.structure(state), name


def test_rounds_alternate_the_order_of_the_calls():
    seen = []
    calls = {name: lambda name=name: seen.append(name) for name in "ab"}
    samples = interleave(calls, Budget(4, 4, 0.0), warmups=0)
    assert "".join(seen) == "abbaabba"
    assert {name: len(found) for name, found in samples.items()} == {"a": 4, "b": 4}


def test_the_beginning_of_a_long_round_is_not_timed():
    seen = []

    def call():  # of the calls of a turn, by far the most are the quick ones of its beginning
        seen.append(time.monotonic())
        time.sleep(0.02 if seen[-1] - seen[0] > 0.05 else 0.0)

    samples = interleave({"a": call}, Budget(1, 1, 0.0), warmups=0, seconds=0.3)
    assert len(seen) > 30 and len(samples["a"]) == 1
    assert samples["a"][0] >= 0.02


def test_steps_are_compiled_and_timed_in_both_orders():
    params, grads = {"w": jnp.ones((4, 4))}, {"w": jnp.ones((4, 4))}
    staged = stage(CHAINS["sgd"], params, grads, Budget(0, 0, 0.0), Budget(3, 3, 0.0))
    first, second = (list(steps) for steps in staged.programs)
    assert sorted(first) == sorted(LIBRARIES) and first == second[::-1]
    assert list(staged.last) == second
    txs = {name: CHAINS["sgd"](lib) for name, lib in LIBRARIES.items()}
    samples, apart = time_steps(staged.programs, txs, params, grads, Budget(5, 5, 0.0))
    assert {len(found) for found in samples.values()} == {6} and apart < 1e-6  # 3 for each order


def test_a_short_run_writes_tables_and_figures(tmp_path, capsys):
    cache = jax.config.jax_enable_compilation_cache
    argv = ["optimizers", "--optimizers", "sgd,polyak_sgd", "--trees", "one-1M", "--repeats", "1"]
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            assert main([*argv, "--quick", "--out", str(tmp_path)]) == 0
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    results = json.loads((tmp_path / "optimizers.json").read_text())
    assert [case["chain"] for case in results["cases"]] == ["sgd", "polyak_sgd"]
    for case in results["cases"]:
        assert "error" not in case and case["difference"] < 1e-3
        assert set(case["figures"]) == {"step", "temp", "trace+lower"}
    assert (tmp_path / "optimizers.png").read_bytes()[:4] == b"\x89PNG"
    assert "polyak_sgd" in capsys.readouterr().out


def test_a_short_run_over_table_sizes_writes_its_results(tmp_path, capsys):
    cache = jax.config.jax_enable_compilation_cache
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            assert main(["rows", "--quick", "--repeats", "1", "--out", str(tmp_path)]) == 0
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    results = json.loads((tmp_path / "rows.json").read_text())
    for case in results["cases"]:
        assert set(case["figures"]) == {"step", "update"} and case["figures"]["step"]["ratio"] > 0
    assert (tmp_path / "rows.png").read_bytes()[:4] == b"\x89PNG"
    assert "1,000" in capsys.readouterr().out


@pytest.mark.parametrize("section", ["losses", "model", "storage"])
def test_a_short_run_of_another_section(section, tmp_path):
    cache = jax.config.jax_enable_compilation_cache
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            assert main([section, "--quick", "--repeats", "1", "--out", str(tmp_path)]) == 0
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    cases = json.loads((tmp_path / f"{section}.json").read_text())["cases"]
    assert cases
    # The page of figures shows a row for each, below a heading, and nothing else changes.
    before, mark = "# Speed\n\n", f"<!-- figures: {section} -->\n"
    text = page.page(f"{before}{mark}old\n<!-- end -->\n\nAfter.\n", tmp_path)
    assert text.startswith(before + mark) and text.endswith("<!-- end -->\n\nAfter.\n")
    assert text.count("\n| ") == len(cases) + 2 and "old" not in text
    assert page.page(text, tmp_path) == text
    assert page.page(text, tmp_path / "none") == text


@pytest.mark.parametrize("argv", ["optimizer", "--optimizers adm", "--trees none", "--repeats 0"])
def test_a_wrong_argument_is_refused_in_one_line(argv, capsys):
    with pytest.raises(SystemExit) as info:
        main(argv.split())
    assert info.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_line_searches_are_counted(tmp_path):
    cache = jax.config.jax_enable_compilation_cache
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            assert main(["linesearch", "--quick", "--out", str(tmp_path)]) == 0
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    results = json.loads((tmp_path / "linesearch.json").read_text())
    for case in results["cases"]:
        counts = case["evaluations"]
        assert counts["lbfgs_steps"] <= counts["SciPy, float64"] + 2
    [timed] = [case["times"] for case in results["cases"] if "times" in case]
    for method in ("lbfgs_steps", "lbfgs"):
        figures = timed[f"{method} / Optax's lbfgs"]
        assert figures["time"]["ratio"] > 0 and figures["compile"]["ratio"] > 0
    assert results["vmap"]["lbfgs_steps"] <= 100
    assert results["vmap"]["lbfgs_steps, not minimized"] == 0
    assert (tmp_path / "linesearch.png").read_bytes()[:4] == b"\x89PNG"


def test_gradients_of_newton_cg_are_counted(tmp_path):
    cache = jax.config.jax_enable_compilation_cache
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            assert main(["curvature", "--quick", "--out", str(tmp_path)]) == 0
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    (case,) = json.loads((tmp_path / "curvature.json").read_text())["cases"]
    for counts in case["gradients"].values():
        assert 0 < counts[0] <= counts[1]  # one step may reach both targets
    assert (tmp_path / "curvature.png").read_bytes()[:4] == b"\x89PNG"


def test_in_a_flat_valley_gauss_newton_takes_half_of_the_gradients_of_lbfgs():
    problem = teacher(2)
    counts, losses = of_newton_cg(problem, 150, "gauss_newton")
    ours = evaluations_until((counts, losses), 0.0, 1e-8)
    assert ours is not None and ours < 7500
    assert evaluations_until(of_lbfgs(problem, 2 * ours), 0.0, 1e-8) is None
