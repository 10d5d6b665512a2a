"""Every promise of the library, for every row of the catalogue."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import gradxform as gx
from gradxform.registry import REGISTRY
from tests.catalogue import CASES, OPTIMIZERS, TRANSFORMS, WRAPPERS, params
from tests.references import as_tree

every_case = pytest.mark.parametrize("name", list(CASES))
# Mixes of the dtypes of parameters and gradients.
MIXES = [
    (jnp.float32, jnp.float32),
    (jnp.bfloat16, jnp.bfloat16),
    (jnp.bfloat16, jnp.float32),
    (jnp.float32, jnp.bfloat16),
    (jnp.float16, jnp.float16),
]


def optax_is_lax(f):
    """Run with standard promotion where Optax's own code needs it."""

    @functools.wraps(f)
    def run(name):
        if "optax" not in name and name != "GradientTransformation":
            return f(name)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return f(name)

    return run


def run(tx, tree, grads, update=None):
    """Several steps; return the parameters, all updates and the state."""
    update = update or tx.update
    state, all_updates = tx.init(tree), []
    for g in grads:
        updates, state = update(g, state, tree)
        tree = gx.apply_updates(tree, updates)
        all_updates.append(updates)
    return tree, all_updates, state


def assert_close(ours, theirs, rtol=1e-6):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            np.asarray(a, np.float64),
            np.asarray(b, np.float64),
            rtol=rtol,
            atol=rtol * max(1e-6, float(np.max(np.abs(b), initial=0.0))),
        ),
        ours,
        theirs,
    )


def shapes(tree):
    """The structure of a tree with shape, dtype and weak type of each leaf."""
    return jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), tree)


@every_case
@optax_is_lax
def test_follows_its_reference(name):
    case = CASES[name]
    if case.reference is None:
        pytest.skip("its numbers are random; test_transforms.py looks at their distribution")
    reference = as_tree(case.reference)
    tree = params()
    wide = [np.asarray(p, np.float64) for p in jax.tree.leaves(tree)]
    start, state = [p.copy() for p in wide], reference.start(wide)
    grads = case.gradients(tree, 7)
    theirs = []
    for t, g in enumerate(grads, 1):
        flat = [np.asarray(x, np.float64) for x in jax.tree.leaves(g)]
        updates, state = reference.step(flat, state, wide, t)
        theirs.append(updates)
        wide = [p + u for p, u in zip(wide, updates, strict=True)]
    ours, our_updates, _ = run(case.bound, tree, grads)
    for u, expected in zip(our_updates, theirs, strict=True):
        for a, b in zip(jax.tree.leaves(u), expected, strict=True):
            size = max(1e-6, np.max(np.abs(b), initial=0))
            np.testing.assert_allclose(a, b, rtol=case.rtol, atol=case.rtol * size)
    for a, b, first in zip(jax.tree.leaves(ours), wide, start, strict=True):
        moved = max(np.max(np.abs(b - first)), np.max(np.abs(b)) * 1e-2)
        np.testing.assert_allclose(a, b, rtol=0, atol=2 * case.rtol * moved)


@every_case
@optax_is_lax
def test_jit_changes_nothing(name):
    case, tree = CASES[name], params()
    grads = case.gradients(tree, 3)
    eager = run(case.bound, tree, grads)
    jitted = run(case.bound, tree, grads, jax.jit(case.bound.update))
    assert jax.tree.structure(eager) == jax.tree.structure(jitted)

    def floats(t):
        return [x for x in jax.tree.leaves(t) if jnp.issubdtype(x.dtype, jnp.floating)]

    assert_close(floats(eager), floats(jitted), 1e-5)


@every_case
@optax_is_lax
def test_state_is_a_scan_carry_and_updates_keep_their_dtype(name):
    case = CASES[name]
    tx = case.bound
    if "optax" in name or name == "GradientTransformation":
        mixes = MIXES[:2]  # what Optax does in mixed precision is not ours to promise
    else:
        mixes = MIXES
    for p_dtype, g_dtype in mixes:
        tree = params(p_dtype)
        grads = jax.tree.map(lambda *x: jnp.stack(x), *case.gradients(tree, 3, g_dtype))

        def steps(tree, grads):
            def step(carry, g):
                p, state = carry
                updates, state = tx.update(g, state, p)
                assert shapes(updates) == shapes(g)
                return (gx.apply_updates(p, updates), state), updates

            return jax.lax.scan(step, (tree, tx.init(tree)), grads)

        jax.eval_shape(steps, tree, grads)  # raises if the carry changes
        state = tx.init(tree)
        one = jax.tree.map(lambda g: g[0], grads)
        after = jax.eval_shape(tx.update, one, state, tree)[1]
        assert shapes(after) == shapes(jax.eval_shape(lambda s: s, state))
        assert not any(x.weak_type for x in jax.tree.leaves(jax.eval_shape(lambda s: s, state)))


@every_case
@optax_is_lax
def test_16_bit_parameters_have_wide_slots_and_follow(name):
    """In bfloat16 the rule is that of float32, rounded."""
    case = CASES[name]
    if case.reference is None or "bf16" in name or not case.pickles:
        pytest.skip("random, or asked for a narrow slot, or not ours")
    narrow = params(jnp.bfloat16)
    wide = jax.tree.map(lambda p: p.astype(jnp.float32), narrow)
    grads = case.gradients(narrow, 1)
    ours, state = case.bound.update(grads[0], case.bound.init(narrow), narrow)
    exact, _ = case.bound.update(
        jax.tree.map(lambda g: g.astype(jnp.float32), grads[0]), case.bound.init(wide), wide
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=1e-2, atol=1e-6)
    for leaf in jax.tree.leaves(state):
        assert leaf.dtype not in (jnp.bfloat16, jnp.float16)


@every_case
def test_is_a_value(name):
    case = CASES[name]
    tx = case.tx
    hash(tx)
    assert isinstance(tx, gx.GradientTransformation) and isinstance(tx, gx.Transform)
    init, update = tx
    assert init == tx.init and update == tx.update
    assert tx.update is tx.update
    if not case.pickles:
        return
    assert eval(repr(tx), vars(gx)) == tx
    assert hash(eval(repr(tx), vars(gx))) == hash(tx)
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert pickle.loads(pickle.dumps(tx.update)) == tx.update
    assert gx.from_json(gx.to_json(tx)) == tx
    assert tx.update == eval(repr(tx), vars(gx)).update


@every_case
@optax_is_lax
def test_holes_pass(name):
    """A None among the parameters, and a None gradient, which freezes its parameter."""
    case = CASES[name]
    if not case.pickles or "tree" in name:
        pytest.skip("a foreign function need not know holes; a mask tree names every leaf")
    tree = params()
    grads = case.gradients(tree, 2)
    missing = {**tree, "none": None}
    state = case.bound.init(missing)
    updates, _ = case.bound.update({**grads[0], "none": None}, state, missing)
    assert updates["none"] is None

    state = case.bound.init(tree)
    updates, after = case.bound.update({**grads[0], "b": None}, state, tree)
    assert updates["b"] is None
    assert gx.apply_updates(tree, updates)["b"] is tree["b"]
    assert jax.tree.structure(after) == jax.tree.structure(state)
    before = dict(jax.tree_util.tree_flatten_with_path(state)[0])
    for path, leaf in jax.tree_util.tree_flatten_with_path(after)[0]:
        if path and getattr(path[-1], "key", None) == "b":
            np.testing.assert_array_equal(leaf, before[path])


@every_case
@optax_is_lax
def test_takes_params_by_keyword_and_ignores_foreign_extras(name):
    case, tree = CASES[name], params()
    state, (g,) = case.bound.init(tree), case.gradients(tree, 1)
    a, _ = case.bound.update(g, state, tree)
    b, _ = case.bound.update(g, state, params=tree)
    assert_close(a, b, 0)
    if case.pickles:
        c, _ = case.bound.update(g, state, tree, nobody_asked=1)
        assert_close(a, c, 0)


@every_case
def test_runs_inside_optax_and_optax_inside(name):
    case, tree = CASES[name], params()
    grads = case.gradients(tree, 2)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        plain, _, _ = run(gx.chain(case.bound, gx.scale(0.5)), tree, grads)
        outside, _, _ = run(optax.chain(case.bound, optax.scale(0.5)), tree, grads)
        inside, _, _ = run(gx.chain(case.bound, optax.scale(0.5)), tree, grads)
    assert_close(plain, outside, 1e-6)
    assert_close(plain, inside, 1e-6)


@every_case
@optax_is_lax
def test_buffers_are_its_own(name):
    """No two leaves of the first state, or leaf and parameter, share a buffer: donation works."""
    case, tree = CASES[name], params()
    (g,) = case.gradients(tree, 1)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(tree, state, g):
        updates, state = case.bound.update(g, state, tree)
        return gx.apply_updates(tree, updates), state

    for init in (case.bound.init, jax.jit(case.bound.init)):
        mine = jax.tree.map(jnp.copy, tree)
        state = init(mine)
        pointers = [
            x.unsafe_buffer_pointer()
            for x in jax.tree.leaves((mine, state))
            if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        ]
        assert len(set(pointers)) == len(pointers)
        mine, state = step(mine, state, g)
        step(mine, state, g)


@every_case
@optax_is_lax
def test_sharded_equals_unsharded(name):
    case = CASES[name]
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(0)
    shape = {"w": (8, 4), "b": (8,), "s": (), "deep": {"k": (8, 2, 2)}}
    tree = jax.tree.map(
        lambda s: jnp.asarray(rng.normal(size=s), jnp.float32),
        shape,
        is_leaf=lambda x: isinstance(x, tuple),
    )

    def place(x):
        spec = PartitionSpec("x") if x.ndim else PartitionSpec()
        return jax.device_put(x, NamedSharding(mesh, spec))

    grads = case.gradients(tree, 2)
    plain, _, _ = run(case.bound, tree, grads, jax.jit(case.bound.update))
    update = jax.jit(case.bound.update)
    spread = jax.tree.map(place, tree)
    state = case.bound.init(spread)
    for g in grads:
        updates, state = update(jax.tree.map(place, g), state, spread)
        spread = gx.apply_updates(spread, updates)
    assert_close(spread, plain, 1e-5)


EXTREMES = {
    "zero": lambda p: jnp.zeros_like(p),
    "tiny": lambda p: jnp.full_like(p, jnp.finfo(p.dtype).tiny),
    "huge": lambda p: jnp.full_like(p, jnp.finfo(p.dtype).max / 8),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16], ids=["f32", "f16"])
@every_case
def test_extremes_stay_finite(name, dtype):
    case = CASES[name]
    if not case.pickles:
        pytest.skip("not ours")
    tree = params(dtype)
    tree["empty"] = jnp.zeros((0, 3), dtype)
    tx = case.bound
    if "tree" in name:
        tree.pop("empty")
    for kind, make in EXTREMES.items():
        if kind == "huge" and not case.huge_ok:
            continue
        state, now = tx.init(tree), tree
        for _ in range(2):
            updates, state = tx.update(case.like(jax.tree.map(make, now)), state, now)
            for path, u in jax.tree_util.tree_flatten_with_path(updates)[0]:
                assert np.all(np.isfinite(u.astype(jnp.float32))), (kind, path, u)


@every_case
@optax_is_lax
def test_vmap_over_gradients(name):
    case, tree = CASES[name], params()
    grads = case.gradients(tree, 3)
    state = case.bound.init(tree)
    wide = jax.tree.map(lambda *x: jnp.stack(x), *grads)
    together, _ = jax.vmap(lambda g: case.bound.update(g, state, tree))(wide)
    if case.reference is None:
        return
    for i, g in enumerate(grads):
        alone, _ = case.bound.update(g, state, tree)
        assert_close(jax.tree.map(lambda x, i=i: x[i], together), alone, 1e-5)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if "/" not in n])
def test_a_schedule_in_place_of_a_number_keeps_the_structure_of_the_state(name):
    case, factory, tree = CASES[name], getattr(gx, name), params()
    extra = case.extra or {}
    number = factory(0.1).init(tree)
    schedule = factory(gx.constant_schedule(0.1)).init(tree)
    assert jax.tree.structure(number) == jax.tree.structure(schedule)
    assert shapes(number) == shapes(schedule)
    (g,) = case.gradients(tree, 1)
    a, _ = factory(0.1).update(g, number, tree, **extra)
    b, _ = factory(gx.constant_schedule(0.1)).update(g, number, tree, **extra)
    assert_close(a, b, 1e-6)


def test_every_public_part_has_a_row():
    covered = {name.split("/")[0] for name in CASES}
    covered |= {extra for case in CASES.values() for extra in case.names}
    public = {k for k, v in vars(gx).items() if isinstance(v, type) and issubclass(v, gx.Transform)}
    public -= {"Transform", "ArrayRule"}
    public |= set(gx.OPTIMIZERS)
    assert public - covered == set()
    registered = {
        k for k, v in REGISTRY.items() if isinstance(v, type) and issubclass(v, gx.Transform)
    }
    ours = {k for k in registered if ":" not in k}
    assert ours - covered == set()
    assert set(TRANSFORMS) | set(WRAPPERS) | set(OPTIMIZERS) == set(CASES)
