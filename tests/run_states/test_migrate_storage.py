"""The state of a run in another form or memory: what goes on, and how exactly."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.leaves.storage import fetched, is_stored
from tests.leaves.test_storage import loaded, normal

pytestmark = pytest.mark.numeric

SHAPES = {"w": (128, 256), "l": (4, 128, 128), "b": (5000,), "n": ()}
PARAMS = {name: normal(shape) for name, shape in SHAPES.items()}
GRADS = jax.tree.map(lambda x: normal(x.shape, 1), PARAMS)
FORMS = {
    "float32": lambda tx: tx,
    "8 bits": gx.quantize_state,
    "4 bits": lambda tx: gx.quantize_state(tx, 4, 128),
    "rank1": lambda tx: gx.quantize_state(tx, 4, 64, "rank1"),
    "bfloat16": gx.state_dtype,
    "chance": lambda tx: gx.state_dtype(tx, stochastic=True, key=0),
    "factored": gx.factor_state,
    "host": gx.offload_state,
    "host in 8 bits": lambda tx: gx.offload_state(gx.quantize_state(tx)),
}
RUNS = {}


def run_of(form):
    """A transform, and its state after two steps."""
    if form not in RUNS:
        tx = FORMS[form](gx.adam(1e-2))
        state = tx.init(PARAMS)
        for _ in range(2):
            _, state = jax.jit(tx.update)(GRADS, state, PARAMS)
        RUNS[form] = tx, state
    return RUNS[form]


def kinds(state):
    return [(x.shape, x.dtype, x.sharding.memory_kind) for x in jax.tree.leaves(state)]


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


# Each form is read as numbers and written from numbers: from each to itself, to float32 and back,
# and to the next one; and between two memories in both directions.
PAIRS = [(form, other) for form in FORMS for other in dict.fromkeys((form, "float32"))]
PAIRS += [("float32", form) for form in FORMS if form != "float32"]
PAIRS += itertools.pairwise([*FORMS][1:])
PAIRS += [("host in 8 bits", form) for form in ("8 bits", "host")]


@pytest.mark.parametrize("old, new", PAIRS)
def test_a_state_goes_on_in_any_other_form(old, new):
    (tx, state), (new_tx, like) = run_of(old), run_of(new)
    migrated, report = gx.migrate_state(state, tx, new_tx, PARAMS)
    assert jax.tree.structure(migrated) == jax.tree.structure(like)
    assert kinds(migrated) == kinds(like)
    assert not report.begun and not report.dropped
    elsewhere = {"host": "float32", "host in 8 bits": "8 bits"}
    assert report.is_identity == (elsewhere.get(old, old) == elsewhere.get(new, new))
    if old == new:
        assert_same(migrated, state)
    # What the new rule sees is what the old one left, as the new form writes it.
    before, after, forms = (
        jax.tree.leaves(x, is_leaf=is_stored) for x in (loaded(state), loaded(migrated), like)
    )
    for x, y, form in zip(before, after, forms, strict=True):
        want = fetched(form).store(fetched(x)).load() if is_stored(form) else x.astype(form.dtype)
        by_chance = 1 / 128 if new == "chance" else 1e-6
        np.testing.assert_allclose(y, want, rtol=by_chance)


NARROW = {
    "plain": lambda tx: tx,
    "masters": gx.master_weights,
    "remainders": lambda tx: gx.master_weights(tx, remainders=True),
    "remainders of 8 bits": lambda tx: gx.master_weights(tx, remainders=8),
    "kahan": gx.kahan,
    "chance": lambda tx: gx.stochastic_rounding(tx, 0),
}


@pytest.mark.parametrize("old, new", list(itertools.product(NARROW, NARROW)))
def test_narrow_parameters_go_on_with_the_numbers_that_they_stand_for(old, new):
    tx, new_tx = NARROW[old](gx.adam(1e-2)), NARROW[new](gx.adam(1e-2))
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), {"w": PARAMS["b"], "n": PARAMS["n"]})
    grads, state = {"w": GRADS["b"], "n": GRADS["n"]}, tx.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(3):
            updates, state = tx.update(grads, state, params)
            params = gx.apply_updates(params, updates)
    migrated, report = gx.migrate_state(state, tx, new_tx, params)
    like = jax.eval_shape(new_tx.init, params)
    assert jax.tree.structure(migrated) == jax.tree.structure(like)
    assert kinds_of(migrated) == kinds_of(like)
    adam = [x.inner_state if hasattr(x, "inner_state") else x for x in (state, migrated)]
    assert_same(*adam)
    masters = {"masters", "remainders", "remainders of 8 bits"}
    if old != new and {old, new} <= masters:
        copies = tx.form.wide(params["w"], state.master["w"])
        kept = new_tx.form.wide(params["w"], migrated.master["w"])
        of_8_bits = any(name.endswith("8 bits") for name in (old, new))
        np.testing.assert_allclose(kept, copies, rtol=2**-16 if of_8_bits else 2**-23)
        assert "master.w" in str(report) or "master" in str(report)
    elif old != new and new in masters:
        np.testing.assert_array_equal(new_tx.form.wide(params["w"], migrated.master["w"]),
                                      params["w"].astype(jnp.float32))  # fmt: skip
        assert any("master" in x.slot for x in report.begun)


def kinds_of(state):
    return [(x.shape, x.dtype) for x in jax.tree.leaves(state)]


def test_to_float32_and_back_is_the_same_state():
    for form in ("8 bits", "4 bits", "rank1", "bfloat16"):
        tx, state = run_of(form)
        plain, _ = gx.migrate_state(state, tx, gx.adam(1e-2), PARAMS)
        back, _ = gx.migrate_state(plain, gx.adam(1e-2), tx, PARAMS)
        for x, y in zip(jax.tree.leaves(loaded(back)), jax.tree.leaves(loaded(state)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)


def test_the_report_names_the_forms():
    (tx, state), (new_tx, _) = run_of("8 bits"), run_of("4 bits")
    _, report = gx.migrate_state(state, tx, new_tx, PARAMS)
    assert "0.mu (was float32 in 8 bits (float, blocks of 256))" in str(report)
    assert "float32 in 4 bits (float, blocks of 128)[5000]" in str(report)


def test_wrappers_and_other_rules_go_on_too():
    tx, state = run_of("8 bits")
    new_tx = gx.apply_if_finite(gx.chain(gx.clip(1.0), gx.quantize_state(gx.nadam(1e-2), 4)), 3)
    migrated, report = gx.migrate_state(state, tx, new_tx, PARAMS)
    assert not report.dropped
    _, (adam, _) = migrated.inner_state
    for name in PARAMS:
        a, b = adam.nu[name], state[0].nu[name]
        a, b = (x.load() if hasattr(x, "load") else x for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=0.3, atol=float(jnp.max(b)) / 100)


def test_under_jit():
    (tx, state), (new_tx, like) = run_of("8 bits"), run_of("host")
    migrated = jax.jit(lambda s, p: gx.migrate_state(s, tx, new_tx, p)[0])(state, PARAMS)
    assert kinds(migrated) == kinds(like)
    eager, _ = gx.migrate_state(state, tx, new_tx, PARAMS)
    for x, y in zip(jax.tree.leaves(migrated), jax.tree.leaves(eager), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("old, new", [("8 bits", "float32"), ("float32", "8 bits"), ("rank1",) * 2])
def test_a_checkpoint_without_a_target_is_restored_by_name(tmp_path, old, new):
    ocp = pytest.importorskip("orbax.checkpoint")
    (tx, state), (new_tx, like) = run_of(old), run_of(new)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state")
    assert isinstance(restored, list | tuple | dict)
    migrated, _ = gx.migrate_state(restored, tx, new_tx, PARAMS)
    want, _ = gx.migrate_state(state, tx, new_tx, PARAMS)
    assert jax.tree.structure(migrated) == jax.tree.structure(like)
    assert_same(migrated, want)


def test_the_new_state_does_not_share_buffers_with_the_old_one_twice():
    tx, state = run_of("8 bits")
    two = gx.named_chain(("a", tx), ("b", tx))
    migrated, _ = gx.migrate_state(state, tx, two, PARAMS, match={"a.0": "0", "b.0": "0"})
    leaves = jax.tree.leaves(migrated)
    assert len({id(x) for x in leaves}) == len(leaves)


def test_another_shape_is_refused_by_name():
    tx, state = run_of("8 bits")
    params = PARAMS | {"w": normal((256, 128))}
    with pytest.raises((TypeError, ValueError), match=r"migrate_state: the state is not one of"):
        gx.migrate_state(state, tx, gx.adam(1e-2), params)
