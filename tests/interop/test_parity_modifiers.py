"""Beside the installed Optax: what changes an optimizer's steps, or its view of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import gradxform as gx
import gradxform.distributed as gd

pytestmark = pytest.mark.numeric

STEPS = 30
TREE = {"w": (3, 4), "b": (4,), "s": ()}
FALLING = gx.linear_schedule(0.5, 0.1, 20)


def normal(seed, lead=()):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.normal(size=lead + s), jnp.float32) for k, s in TREE.items()}


START, GRADS = normal(0), normal(1, (STEPS,))
# They fall, wait, and fall again.
LOSSES = jnp.asarray(np.maximum(3 - 0.4 * np.arange(STEPS) % 5, 1.0), jnp.float32)


class Both:
    """The names of Optax's modules in one."""

    def __getattr__(self, name):
        return getattr(optax if hasattr(optax, name) else optax.contrib, name)


def curved(params, i):
    """The gradient of a loss with another batch at each turn."""
    return jax.tree.map(lambda p: p**3 + (0.5 + i) * p, params)


def walk(tx, start, grads, loss_as=None, **extra):
    """The parameters after every step, and the last state; `loss_as` names the losses."""

    def step(carry, x):
        (p, state), (g, loss) = carry, x
        named = {loss_as: loss} if loss_as else {}
        updates, state = tx.update(g, state, p, **extra, **named)
        p = jax.tree.map(jnp.add, p, updates)
        return (p, state), p

    def run(p):
        (_, state), path = jax.lax.scan(step, (p, tx.init(p)), (grads, LOSSES))
        return path, state

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return jax.jit(run)(start)


def worst(ours, theirs, start):
    """The largest difference on the way, as a part of the movement of its array."""
    found = 0.0
    for a, b, p in zip(*map(jax.tree.leaves, (ours, theirs, start)), strict=True):
        a, b, p = (np.asarray(x, np.float64) for x in (a, b, p))
        found = max(found, np.max(np.abs(a - b)) / np.max(np.abs(b - p)))
    return found


GRAD_FN = {"grad_fn": curved}
VALUE = {"loss_as": "value"}
ROWS = [
    ("mechanize", lambda lib: lib.mechanize(lib.adam(0.5), s_init=0.1), {}),
    (
        "mechanize, all",
        lambda lib: lib.mechanize(lib.sgd(FALLING, momentum=0.9), 0.2, 0.1, 0.3, 3),
        {},
    ),
    (
        "sam",
        lambda lib: lib.sam(lib.adam(FALLING), lib.chain(lib.normalize(), lib.sgd(0.2))),
        GRAD_FN,
    ),
    ("sam, 4", lambda lib: lib.sam(lib.sgd(0.1), lib.adam(0.2), 4), GRAD_FN),
    (
        "sam, kept",
        lambda lib: lib.sam(lib.sgd(0.1, momentum=0.9), lib.adam(0.2), 3, reset_state=False),
        GRAD_FN,
    ),
    (
        "sam, opaque",
        lambda lib: lib.sam(lib.adam(FALLING), lib.adam(0.2), 4, opaque_mode=True),
        GRAD_FN,
    ),
    (
        "sam, opaque, kept",
        lambda lib: lib.sam(lib.adam(0.1), lib.adam(0.2), 2, False, True),
        GRAD_FN,
    ),
    ("sam, opaque, 1", lambda lib: lib.sam(lib.adam(0.1), lib.sgd(0.2), 1, True, True), GRAD_FN),
    ("normalize", lambda lib: lib.chain(lib.normalize(), lib.sgd(FALLING)), {}),
    ("flatten", lambda lib: lib.flatten(lib.adamw(FALLING)), {}),
    ("flatten, lamb", lambda lib: lib.flatten(lib.lamb(FALLING)), {}),
    (
        "plateau",
        lambda lib: lib.chain(lib.sgd(0.1), lib.reduce_on_plateau(0.5, 2, cooldown=2)),
        VALUE,
    ),
    (
        "plateau, means",
        lambda lib: lib.chain(
            lib.sgd(0.1), lib.reduce_on_plateau(0.7, 1, 0.1, 0.2, 0, 3, min_scale=0.3)
        ),
        VALUE,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_modified_optimizer_makes_the_steps_of_optax(row):
    """Optax in double precision, ours in single: what Optax loses to rounding is not asked for."""
    _, make, extra = row
    ours, _ = walk(make(gx), START, GRADS, **extra)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(float), (START, GRADS))
        theirs, _ = walk(make(Both()), *wide, **extra)
    assert worst(ours, theirs, START) < 1e-4


def test_the_factor_falls_in_the_parity_rows():
    """Else the rows on plateaus would compare nothing."""
    for name, make, _ in ROWS:
        if name.startswith("plateau"):
            _, state = walk(make(gx), START, GRADS, **VALUE)
            assert 0 < float(state[1].scale) < 0.75


def test_complex_parameters_make_the_steps_of_optax():
    start = {"w": jnp.asarray([1 + 2j, -1j], jnp.complex64), "b": jnp.ones(3)}
    rng = np.random.default_rng(2)

    def draw(p):
        g = rng.normal(size=(STEPS, *p.shape)) + 1j * rng.normal(size=(STEPS, *p.shape))
        return jnp.asarray(g if jnp.iscomplexobj(p) else g.real, p.dtype)

    grads = jax.tree.map(draw, start)
    ours, state = walk(gx.split_real_and_imaginary(gx.adamw(0.1)), start, grads)
    theirs, other = walk(optax.contrib.split_real_and_imaginary(optax.adamw(0.1)), start, grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, theirs)
    paths = [
        [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(s)]
        for s in (state, other)
    ]
    assert paths[0] == paths[1]


# ------------------------------------------------------------------------------------- sharpness


def loss(params, x, y):
    return jnp.mean(jnp.square(jnp.tanh(x @ params["w"]) @ params["v"] - y))


def regression():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(32, 4)), rng.normal(size=(32, 2))
    params = {"w": 0.5 * rng.normal(size=(4, 8)), "v": 0.5 * rng.normal(size=(8, 2))}
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (params, x, y))


CLIMB = gx.chain(gx.normalize(), gx.sgd(0.05))


def test_both_modes_of_sam_train_alike():
    """Two calls that show the climb make one that hides it."""
    params, x, y = regression()
    seen = gx.chain(gx.scale(1.0), gx.sam(gx.adam(0.01), CLIMB))
    hidden = gx.sam(gx.adam(0.01), CLIMB, opaque_mode=True)
    value_and_grad = jax.value_and_grad(loss)

    @jax.jit
    def open_step(params, state):
        for _ in range(2):
            _, grads = value_and_grad(params, x, y)
            updates, state = seen.update(grads, state, params)
            params = gx.apply_updates(params, updates)
        return params, state

    @jax.jit
    def opaque_step(params, state):
        _, grads = value_and_grad(params, x, y)
        updates, state = hidden.update(
            grads, state, params, grad_fn=lambda p, i: value_and_grad(p, x, y)[1]
        )
        return gx.apply_updates(params, updates), state

    one, other = (params, seen.init(params)), (params, hidden.init(params))
    for _ in range(20):
        one, other = open_step(*one), opaque_step(*other)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), one[0], other[0]
    )
    assert loss(one[0], x, y) < 0.95 * loss(params, x, y)


def test_the_climb_goes_up_and_the_step_starts_from_below():
    params, x, y = regression()
    tx = gx.sam(gx.sgd(0.0), gx.chain(gx.normalize(), gx.sgd(0.5)))
    state = tx.init(params)
    grads = jax.grad(loss)(params, x, y)
    updates, state = tx.update(grads, state, params)
    up = gx.apply_updates(params, updates)
    np.testing.assert_allclose(gx.global_norm(updates), 0.5, rtol=1e-5)
    assert loss(up, x, y) > loss(params, x, y)
    updates, state = tx.update(jax.grad(loss)(up, x, y), state, up)
    back = gx.apply_updates(up, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), back, params)


def test_a_period_of_one_call_is_the_outer_optimizer():
    """Where Optax goes back to the parameters before the last step."""
    ours, _ = walk(gx.sam(gx.adam(0.1), CLIMB, 1), START, GRADS)
    plain, _ = walk(gx.adam(0.1), START, GRADS)
    assert worst(ours, plain, START) < 1e-5


def test_a_nan_in_the_climb_is_not_in_the_state_of_the_outer_optimizer():
    """Only the optimizer whose turn it is runs."""
    tx = gx.sam(gx.sgd(0.1, momentum=0.9), gx.sgd(0.2))
    nan = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), START)
    _, state = jax.jit(tx.update)(nan, tx.init(START), START)
    for leaf in jax.tree.leaves((state.opt_state, state.cache)):
        assert np.all(np.isfinite(leaf))


def test_sam_follows_parameters_that_something_else_moves():
    tx = gx.sam(gx.sgd(0.0), gx.sgd(0.2))
    updates, state = tx.update(START, tx.init(START), START)
    up = gx.apply_updates(START, updates)
    shifted = jax.tree.map(lambda p: p + 1, up)
    state = tx.moved(state, up, shifted)
    updates, _ = tx.update(START, state, shifted)
    end = gx.apply_updates(shifted, updates)
    jax.tree.map(lambda a, p: np.testing.assert_allclose(a, p + 1, atol=1e-5), end, START)


@pytest.mark.parametrize(
    "wrap", [lambda tx: gx.apply_if_finite(tx, 2), lambda tx: gx.MultiSteps(tx, 1)]
)
@pytest.mark.parametrize("jit", [False, True])
def test_a_gradient_function_passes_a_conditional_wrapper(wrap, jit):
    inner = gx.sam(gx.adam(0.1), gx.sgd(0.2), opaque_mode=True)
    results = []
    for tx in (inner, wrap(inner)):

        def step(grads, state, params, tx=tx):
            return tx.update(grads, state, params, grad_fn=curved)[0]

        results.append((jax.jit(step) if jit else step)(START, tx.init(START), START))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *results)


def test_the_climb_of_asam_does_not_change_when_layers_are_rescaled():
    rule = gx.normalize_adaptively(0.0)
    g = normal(5)
    u, _ = rule.update(g, rule.init(START), START)
    factors = {"w": 4.0, "b": 0.25, "s": 2.0}
    scaled = {k: factors[k] * p for k, p in START.items()}
    # The gradient shrinks by the factor by which the parameter grows.
    v, _ = rule.update({k: x / factors[k] for k, x in g.items()}, rule.init(scaled), scaled)
    for k in u:
        np.testing.assert_allclose(v[k], factors[k] * u[k], rtol=1e-5)


def test_replicas_climb_on_their_own_batches_or_on_the_mean():
    """Inside `tower` all climb alike; around it each climbs alone, and all step alike."""
    params, x, y = regression()
    shards = (x.reshape(4, 8, -1), y.reshape(4, 8, -1))

    def run(tx):
        def step(params, state, x, y):
            grads = jax.grad(loss)(params, x, y)
            updates, state = tx.update(grads, state, params)
            return gx.apply_updates(params, updates), state

        def each(x, y):
            p, state = params, tx.init(params)
            middle, state = step(p, state, x, y)
            end, _ = step(middle, state, x, y)
            return middle, end

        return jax.jit(jax.vmap(each, axis_name="data"))(*shards)

    sgd = gx.sgd(0.1)
    for tx, alike in (
        (gd.tower(gx.sam(sgd, CLIMB), "data"), True),
        (gx.sam(gd.tower(sgd, "data"), CLIMB), False),
    ):
        middle, end = run(tx)
        spread = max(float(jnp.max(jnp.abs(m - m[:1]))) for m in jax.tree.leaves(middle))
        assert (spread < 1e-6) == alike
        for leaf in jax.tree.leaves(end):
            np.testing.assert_allclose(leaf, np.broadcast_to(leaf[:1], leaf.shape), atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [lambda: gx.mechanize(gx.sgd(1.0), s_init=0.1), lambda: gx.cautious(gx.sgd(0.1, 0.9))],
    ids=["mechanize", "cautious"],
)
def test_replicas_decide_on_the_mean_gradient(make):
    params, x, y = regression()
    tx = gd.tower(make(), "data")

    def each(x, y):
        p, state = params, tx.init(params)
        for _ in range(3):
            updates, state = tx.update(jax.grad(loss)(p, x, y), state, p)
            p = gx.apply_updates(p, updates)
        return p

    ends = jax.jit(jax.vmap(each, axis_name="data"))(x.reshape(4, 8, -1), y.reshape(4, 8, -1))
    for leaf in jax.tree.leaves(ends):
        np.testing.assert_allclose(leaf, np.broadcast_to(leaf[:1], leaf.shape), atol=1e-6)


def test_the_gradients_of_an_opaque_climb_are_averaged_over_the_axis():
    params, x, y = regression()
    shards = (x.reshape(4, 8, -1), y.reshape(4, 8, -1))

    def step(tx, x, y, axis):
        def gradient(p, i):
            return jax.grad(loss)(p, x, y)

        grads = gradient(params, 0)
        if axis:
            grads = jax.lax.pmean(grads, axis)
        return tx.update(grads, tx.init(params), params, grad_fn=gradient)[0]

    options = (gx.sgd(0.1), CLIMB, 2, True, True)
    each = jax.vmap(lambda x, y: step(gx.sam(*options, "data"), x, y, "data"), axis_name="data")
    together = step(gx.sam(*options), x, y, None)
    for u, one in zip(*map(jax.tree.leaves, (each(*shards), together)), strict=True):
        np.testing.assert_allclose(u, np.broadcast_to(one, u.shape), rtol=1e-4, atol=1e-6)


def test_gradients_that_are_summed_already_are_refused(eight_devices):
    params, x, y = regression()
    tx = gx.sam(gx.sgd(0.1), CLIMB, 2, True, True, "data")
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    def run(view):
        def step(x, y):
            def gradient(p, i):
                return jax.grad(loss)(view(p), x, y)

            grads = jax.lax.pmean(gradient(params, 0), "data")
            return tx.update(grads, tx.init(params), params, grad_fn=gradient)[0]

        mapped = jax.shard_map(
            step, mesh=mesh, in_specs=(spec("data"), spec("data")), out_specs=spec()
        )
        return jax.jit(mapped)(x, y)

    alone = gx.sam(gx.sgd(0.1), CLIMB, 2, True, True)
    full = jax.grad(loss)
    want, _ = alone.update(
        full(params, x, y), alone.init(params), params, grad_fn=lambda p, i: full(p, x, y)
    )
    got = run(lambda p: gd.local_view(p, "data"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want)
    with pytest.raises(ValueError, match=r"^sam: the gradients of grad_fn are summed over 'data'"):
        run(lambda p: p)


# --------------------------------------------------------------------------- views and scales


def test_a_hole_freezes_the_entries_of_the_vector():
    tx = gx.flatten(gx.adam(0.1))
    _, state = tx.update(START, tx.init(START), START)
    updates, after = tx.update({**START, "b": None}, state, START)
    assert updates["b"] is None
    mu, old = np.asarray(after[0].mu), np.asarray(state[0].mu)
    np.testing.assert_array_equal(mu[:4], old[:4])  # b comes first
    assert np.all(mu[4:] != old[4:])


def test_arrays_of_several_dtypes_become_a_vector_of_the_widest():
    params = {"h": jnp.ones(3, jnp.bfloat16), "w": jnp.ones(2)}
    tx = gx.flatten(gx.adam(0.1))
    updates, state = tx.update(params, tx.init(params), params)
    assert updates["h"].dtype == jnp.bfloat16 and updates["w"].dtype == jnp.float32
    assert state[0].mu.shape == (5,) and state[0].mu.dtype == jnp.float32


def test_flatten_tells_its_inner_transform_of_a_move():
    tx = gx.flatten(gx.madgrad(0.1))
    state = tx.init(START)
    moved = tx.moved(state, START, jax.tree.map(lambda p: p + 1, START))
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(moved), strict=True)
    assert [float(np.max(b - a)) for a, b in pairs if np.any(a != b)] == [1.0]


def test_mechanic_finds_the_scale_of_a_rate_of_one():
    """On a quadratic, from a scale of 1e-4."""
    curvature = jnp.asarray([1.0, 4.0, 0.5])
    tx = gx.mechanize(gx.sgd(1.0), s_init=1e-4)

    def step(carry, _):
        p, state = carry
        updates, state = tx.update(curvature * p, state, p)
        return (gx.apply_updates(p, updates), state), jnp.sum(curvature * p * p)

    p = jnp.asarray([1.0, -2.0, 3.0])
    _, losses = jax.jit(lambda: jax.lax.scan(step, (p, tx.init(p)), None, 400))()
    assert losses[-1] < 1e-2 * losses[0]


def test_mechanic_begins_at_parameters_restored_after_init():
    tx = gx.mechanize(gx.sgd(1.0), s_init=0.1)
    restored = jax.tree.map(lambda p: p + 5, START)
    _, state = tx.update(START, tx.init(START), restored)
    jax.tree.map(np.testing.assert_array_equal, state.x0, restored)


# -------------------------------------------------------------------------------- cautious steps


def test_a_cautious_step_leaves_out_where_the_gradient_or_the_update_is_zero():
    tx, zeros = gx.cautious(gx.sgd(1.0, momentum=0.5)), jnp.zeros(4)
    _, state = tx.update(jnp.asarray([1.0, 1.0, 2.0, 0.0]), tx.init(zeros), zeros)
    u, _ = tx.update(jnp.asarray([1.0, 0.0, -1.0, 1.0]), state, zeros)
    # Of the steps -1.5, -0.5, 0 and -1 two remain, times 4 / (2 + 1).
    np.testing.assert_allclose(u, [-2.0, 0.0, 0.0, -4 / 3], rtol=1e-6)


def test_a_cautious_step_leaves_out_what_goes_uphill():
    params = {"w": jnp.zeros(4)}
    tx = gx.cautious(gx.sgd(0.1, momentum=0.9))
    _, state = tx.update({"w": jnp.asarray([1.0, 1.0, 1.0, jnp.nan])}, tx.init(params), params)
    updates, _ = tx.update({"w": jnp.asarray([1.0, -0.5, 0.0, 1.0])}, state, params)
    # One entry agrees, and the NaN counts as one: 4 / (2 + 1). Its momentum is 1.9.
    np.testing.assert_allclose(updates["w"], [-0.19 * 4 / 3, 0, 0, np.nan], rtol=1e-6)


@pytest.mark.parametrize("make", [gx.cautious_adamw, gx.cautious_lion, gx.mars_adamw])
def test_a_recipe_goes_downhill(make):
    params, x, y = regression()
    tx = make(0.01)

    def step(carry, _):
        p, state = carry
        updates, state = tx.update(jax.grad(loss)(p, x, y), state, p)
        return (gx.apply_updates(p, updates), state), None

    (end, _), _ = jax.jit(lambda: jax.lax.scan(step, (params, tx.init(params)), None, 100))()
    assert loss(end, x, y) < 0.8 * loss(params, x, y)


def test_a_tiny_update_agrees_with_a_tiny_gradient():
    """Though their product is 0 in float32."""
    g = {"w": jnp.full(3, 1e-25)}
    tx = gx.cautious(gx.sgd(0.1))
    updates, _ = tx.update(g, tx.init(g), g)
    np.testing.assert_allclose(updates["w"], -0.75e-26, rtol=1e-5)
