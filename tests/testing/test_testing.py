"""`gradxform.testing` says which promise a transform breaks, at which leaf, and what to do."""

import gc
import inspect
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import optax
import pytest

import gradxform as gx
from gradxform import testing
from tests.environment import limit
from tests.testing.broken import (
    BROKEN,
    NARROW,
    PARAMS,
    REFERENCE,
    VALUE,
    Momentum,
    nan_on_zeros,
    narrow_slots,
    no_extras,
    right,
    sums_what_cancels,
    wrong_sign,
)

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("row", BROKEN, ids=lambda row: type(row[0]).__name__)
def test_a_broken_promise_is_found_at_its_leaf(row, request):
    tx, promise, leaf, expected, got = row
    if promise in ("sharded_equals_unsharded", "runs_on_explicit_meshes"):
        request.getfixturevalue("eight_devices")
    reference = REFERENCE if promise == "follows_its_reference" else None
    params = None if promise == "drops_no_imaginary_part" else PARAMS  # it makes complex ones
    if promise == "leaks_no_traced_arrays":
        gc.freeze()  # JAX asks each object whether it holds the leak, a minute after many tests
    report = testing.check(tx, reference, params=params, only=promise, derivatives="both")
    (finding,) = report.findings
    assert finding.status == "broken"
    assert re.fullmatch(re.escape(leaf) + r"(\[\d[\d, ]*\])?", finding.leaf)  # or an entry of it
    assert expected in finding.expected and got in finding.got
    assert len(finding.remedy) > 20


def test_every_promise_can_be_broken():
    broken = {promise for _, promise, *_ in BROKEN}
    assert set(testing.PROMISES) - broken == {"runs_inside_optax_and_optax_inside"}


def test_a_correct_transform_keeps_every_promise(eight_devices):
    report = testing.check(right(), REFERENCE, params=PARAMS, derivatives="both").raise_if_broken()
    others = {
        "turns_with_complex_numbers_or_refuses",  # of rules
        "says_which_slots_are_copies",
        "drops_no_imaginary_part",  # of the library's own examples
        "what_is_inside_knows_the_parameters",  # and of wrappers
        "what_is_inside_is_told_of_moves",
        "moves_are_known_on_both_sides",
        "what_is_inside_takes_the_inner_steps",
        "what_comes_after_takes_its_updates",
        "names_the_axes_that_it_needs",
        "a_nan_goes_no_further_than_a_guard",
    }
    assert {f.promise for f in report.skipped} == others and not report.broken
    assert [f.promise for f in report.kept] == [x for x in testing.PROMISES if x not in others]


@pytest.mark.parametrize("tx", [wrong_sign(), narrow_slots(), nan_on_zeros()], ids=repr)
def test_a_broken_rule_breaks_only_its_promise(tx):
    reference = REFERENCE if tx == wrong_sign() else None
    report = testing.check(tx, reference, params=PARAMS)
    (promise,) = [row[1] for row in BROKEN if row[0] == tx]
    assert [f.promise for f in report.broken] == [promise]


def test_sums_that_cancel_may_be_rounded_differently():
    """A processor that sums in another order is none that computes something else."""
    tx, tree = sums_what_cancels(), {"a": jnp.full(8, 0.7), "b": jnp.ones((8, 2))}
    g = {"a": jnp.ones(8).at[:3].set(jnp.asarray([1e4, -1e4, 1 / 3])), "b": jnp.ones((8, 2))}
    state = tx.init(tree)
    one, other = tx.update(g, state)[1].total, jax.jit(tx.update)(g, state)[1].total
    assert abs(one - other) > 1e-4 * abs(one)  # of what is left; of the terms, it is 1e-8
    testing.check(
        tx, params=tree, gradients=lambda params, steps: [g] * steps, only="jit_changes_nothing"
    ).raise_if_broken()


@pytest.mark.parametrize("rows", [True, False])
def test_a_case_can_require_row_sparse_gradients(rows):
    taking, refusing = gx.trace(0.9), gx.clip_by_block_norm(1.0)
    promise = "touches_rows_or_refuses"
    right, wrong = (taking, refusing) if rows else (refusing, taking)
    testing.check(right, only=promise, rows=rows).raise_if_broken()
    (finding,) = testing.check(wrong, only=promise, rows=rows).broken
    assert ("a refusal: clip_by_block_norm" if rows else "an update") in finding.got


# ------------------------------------------------------------------------------- the report


def test_a_report_names_the_leaf_and_the_remedy():
    report = testing.check(narrow_slots(), params=PARAMS, only=(NARROW, "is_a_value"))
    assert str(report) == textwrap.dedent("""\
        narrow_slots(): 1 kept, 1 broken
          broken   narrow parameters have wide slots
                     leaf      state.mu['b']
                     expected  float32
                     got       bfloat16
                     remedy    Compute in float32 (an ArrayRule does by itself) and make slots with
                               gradxform.slots.zeros_like or full_like, which widen 16-bit
                               parameters.
          kept     is a value""")
    with pytest.raises(testing.BrokenPromises, match=r"1 broken\nnarrow_slots\(\): 1 kept") as info:
        report.raise_if_broken()
    assert info.value.report is report and isinstance(info.value, AssertionError)
    assert isinstance(info.value.__cause__, testing.Broken)
    assert str(info.value.__cause__).startswith(
        "narrow parameters have wide slots: state.mu['b']: expected float32, got bfloat16. Compute"
    )
    assert report[NARROW] is report.broken[0] and report["is_a_value"].status == "kept"
    with pytest.raises(KeyError, match="Did you mean 'is_a_value'"):
        report["is_value"]


def test_promises_are_left_out_by_name():
    report = testing.check(no_extras(), only=("is_a_value", "takes_params_by_keyword"), skip=VALUE)
    assert [f.status for f in report.findings] == ["broken", "skipped"]
    assert report[VALUE].reason == "left out by skip="
    for field in ("only", "skip"):
        with pytest.raises(ValueError, match=rf"{field}: no promise .* Did you mean 'holes_pass'"):
            testing.check(right(), **{field: "hole_pass"})


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match=r"check: tx is the class right, not a transform; call it"):
        testing.check(right)
    with pytest.raises(TypeError, match=r"check: reference must be a Reference"):
        testing.check(right(), lambda g: g)


def test_skips_have_a_reason(monkeypatch):
    foreign = testing.check(optax.scale(-0.1), params=PARAMS)
    assert not foreign.broken
    assert {f.promise for f in foreign.skipped} >= {"holes_pass", "is_a_value"}
    assert "class with @transform" in foreign["is_a_value"].reason

    @gx.transform
    class unnamed(Momentum):
        pass

    report = testing.check(unnamed(), params=PARAMS, only=("goes_to_json_and_back", VALUE))
    assert "name='package:unnamed'" in report["goes_to_json_and_back"].reason
    assert "local object" in report[VALUE].got  # it cannot be pickled

    monkeypatch.setitem(sys.modules, "optax", None)
    report = testing.check(right(), params=PARAMS, only="runs_inside_optax_and_optax_inside")
    assert "optax is not installed" in report.skipped[0].reason
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    report = testing.check(right(), params=PARAMS, only="sharded_equals_unsharded")
    assert "there is one device" in report.skipped[0].reason


def test_a_check_takes_extra_arguments_gradients_and_trees():
    @gx.transform
    class by_value(gx.ArrayRule):
        def prepare(self, updates, state, params, *, value):
            return state, jnp.asarray(value, jnp.float32)

        def rule(self, g, p, value):
            return g / value

    drawn = []

    def gradients(params, steps):
        drawn.append(steps)
        return [jax.tree.map(jnp.ones_like, params)] * steps

    halves = testing.stateless(lambda g, p, t: g / 2)
    for tree in (jnp.ones((2, 3)), [jnp.ones(3), (jnp.ones(()), jnp.ones((2, 2)))]):
        report = testing.check(
            by_value(), halves, params=tree, gradients=gradients, extra={"value": 2.0}, skip=VALUE
        )
        assert not report.broken, report
    assert drawn
    report = testing.check(by_value(), only="follows_its_reference", reference=halves)
    assert "needs the extra argument 'value'" in report.broken[0].got


def test_complex_parameters_are_checked():
    tree = {"z": jnp.asarray([1.0 + 2.0j, -0.5j]), "x": jnp.ones(3)}
    reference = testing.stateless(lambda g, p, t: -0.1 * g)
    report = testing.check(gx.sgd(0.1), reference, params=tree, skip="sharded_equals_unsharded")
    assert not report.broken, report


def test_checking_needs_neither_pytest_nor_optax_under_any_configuration():
    code = """
        import sys

        for name in ("optax", "flax", "pytest", "chex"):
            sys.modules[name] = None
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_debug_nans", True)
        jax.config.update("jax_numpy_rank_promotion", "raise")
        import gradxform as gx
        from gradxform import testing

        report = testing.check(gx.adamw(1e-3))
        print(report)
        report.raise_if_broken()
        assert jax.config.jax_debug_nans and jax.config.jax_enable_x64
        assert jax.config.jax_numpy_dtype_promotion == "standard"
        """
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_"))}
    env |= {"PYTHONPATH": str(pathlib.Path(gx.__file__).parents[1]), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=limit(60, 300),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ kept, \d+ skipped\n", done.stdout), done.stdout


def test_every_promise_describes_itself():
    for name, promise in testing.PROMISES.items():
        assert getattr(testing, name) is promise
        assert len(inspect.getdoc(promise).splitlines()[0]) > 20
