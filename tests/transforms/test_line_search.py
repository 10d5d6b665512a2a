"""L-BFGS and line searches: Optax's numbers, step for step, and what is better here."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import gradxform as gx

pytestmark = pytest.mark.numeric

SEARCHES = [
    gx.scale_by_backtracking_linesearch,
    functools.partial(gx.scale_by_zoom_linesearch, approx_dec_rtol=None),
]

START = {"a": np.linspace(-1.2, 1.0, 6), "b": {"c": np.full((2, 2), 0.3)}}


def rosenbrock(params):
    x = jnp.concatenate([params["a"], params["b"]["c"].ravel()])
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def valley(params):
    leaves = jax.tree.leaves(params)
    return sum(jnp.sum((i + 1.0) * (x - 1) ** 4 + x**2) for i, x in enumerate(leaves))


def sunk(params):
    return valley(params) - 100.0


def path(lib, tx, loss, params, steps):
    """The parameters after every step, and the last state."""
    stored = any("grad" in str(p) for p, _ in jax.tree_util.tree_leaves_with_path(tx.init(params)))
    value_and_grad = lib.value_and_grad_from_state(loss)

    @jax.jit
    def step(params, state):
        if stored:
            value, grad = value_and_grad(params, state=state)
        else:
            value, grad = jax.value_and_grad(loss)(params)
        extra = {"value": value, "grad": grad, "value_fn": loss}
        updates, state = tx.update(grad, state, params, **extra)
        return lib.apply_updates(params, updates), state

    state, seen = tx.init(params), []
    for _ in range(steps):
        params, state = step(params, state)
        seen.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)]))
    return np.stack(seen), state


CALLS = {
    "lbfgs": lambda lib: lib.lbfgs(),
    "lbfgs, three pairs": lambda lib: lib.lbfgs(memory_size=3, scale_init_precond=False),
    "lbfgs, backtracking": lambda lib: lib.lbfgs(
        linesearch=lib.scale_by_backtracking_linesearch(20, store_grad=True)
    ),
    "lbfgs, no search": lambda lib: lib.lbfgs(1e-3, linesearch=None),
    "zoom": lambda lib: lib.chain(lib.sgd(1.0), lib.scale_by_zoom_linesearch(15)),
    "zoom, bounded": lambda lib: lib.chain(
        lib.sgd(1.0), lib.scale_by_zoom_linesearch(15, max_learning_rate=0.01, curv_rtol=0.1)
    ),
    "zoom, few steps": lambda lib: lib.chain(
        lib.sgd(1.0), lib.scale_by_zoom_linesearch(4, curv_rtol=0.01, stepsize_precision=1e-2)
    ),
    "zoom, tolerant": lambda lib: lib.chain(
        lib.sgd(1.0),
        lib.scale_by_zoom_linesearch(
            14, tol=10.0, slope_rtol=1.0, curv_rtol=1e-4, approx_dec_rtol=None
        ),
    ),
    "backtracking": lambda lib: lib.chain(
        lib.sgd(1.0), lib.scale_by_backtracking_linesearch(30, store_grad=True)
    ),
    "backtracking, numbers": lambda lib: lib.chain(
        lib.sgd(1.0),
        lib.scale_by_backtracking_linesearch(
            40, 0.1, 0.5, float("inf"), 0.5, atol=0.01, rtol=0.001
        ),
    ),
}


@pytest.mark.parametrize("loss", [rosenbrock, valley, sunk])
@pytest.mark.parametrize("name", CALLS)
def test_thirty_steps_are_optaxs(name, loss):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        with jax.numpy_rank_promotion("allow"):
            params = jax.tree.map(jnp.asarray, START)
            mine, my_state = path(gx, CALLS[name](gx), loss, params, 30)
            theirs, their_state = path(optax, CALLS[name](optax), loss, params, 30)
    # Of two good step lengths near the minimum, a rounding may choose.
    np.testing.assert_allclose(mine, theirs, atol=1e-8)
    leaves = [jax.tree_util.tree_leaves_with_path(s) for s in (my_state, their_state)]
    assert [p for p, _ in leaves[0]] == [p for p, _ in leaves[1]]
    assert [x.shape for _, x in leaves[0]] == [x.shape for _, x in leaves[1]]


BY_NAME = {
    "backtracking": lambda **options: gx.scale_by_backtracking_linesearch(
        20, store_grad=True, **options
    ),
    "zoom": lambda **options: gx.scale_by_zoom_linesearch(20, **options),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_loss_with_aux_makes_the_same_steps(name):
    def both(x, y):
        return himmelblau(x) + jnp.sum(y**2), {"sum": x + y, "count": jnp.asarray(3)}

    def run(tx, loss, has_aux):
        value_and_grad = gx.value_and_grad_from_state(loss, (0, 1), has_aux)

        def value_fn(params):
            return loss(*params)

        @jax.jit
        def step(params, state):
            found, grad = value_and_grad(*params, state=state)
            value = found[0] if has_aux else found
            updates, state = tx.update(
                grad, state, params, value=value, grad=grad, value_fn=value_fn
            )
            return gx.apply_updates(params, updates), state, found

        params = (jnp.ones(2), jnp.full(2, 0.5))
        state = tx.init(params)
        for _ in range(5):
            at, (params, state, found) = params, step(params, state)
            if has_aux:
                np.testing.assert_allclose(found[0], loss(*at)[0], rtol=1e-5)
                np.testing.assert_array_equal(found[1]["sum"], at[0] + at[1])
                assert found[1]["count"] == 3
        return np.concatenate(params)

    new, old = (
        run(gx.chain(gx.sgd(0.1), BY_NAME[name](**options)), loss, bool(options))
        for options, loss in (({"has_aux": True}, both), ({}, lambda *xs: both(*xs)[0]))
    )
    np.testing.assert_allclose(new, old, rtol=1e-5)


def test_a_search_for_some_parameters_is_not_asked_for_the_gradient_of_all():
    params = {"w": jnp.ones(2), "v": jnp.full(2, 0.5)}
    tx = AROUND["partition"](gx.scale_by_zoom_linesearch(20))

    def loss(p):
        return himmelblau(p["w"]) + jnp.sum((p["v"] - 1) ** 2)

    words = r"gradient of other trees than these parameters: .* use jax\.value_and_grad"
    with pytest.raises(ValueError, match=words):
        gx.value_and_grad_from_state(loss)(params, state=tx.init(params))


AROUND = {
    "lbfgs": lambda search: gx.lbfgs(0.7, 3, linesearch=search),
    "partition": lambda search: gx.partition(
        {"a": gx.chain(gx.sgd(0.1), search), "b": gx.sgd(0.1)}, {"w": "a", "v": "b"}
    ),
    "apply_if_finite": lambda search: gx.apply_if_finite(gx.chain(gx.sgd(0.1), search), 3),
    "inject": lambda search: gx.inject_hyperparams(
        lambda learning_rate: gx.chain(gx.sgd(learning_rate), search)
    )(0.1),
    "moving_average": lambda search: gx.moving_average(gx.chain(gx.sgd(0.1), search), 0.9),
}
LOOPS = [
    *((around, "by hand") for around in AROUND),
    ("lbfgs", "make_step"),
    ("lbfgs", "minimize"),
    ("partition", "minimize"),
]


@pytest.mark.parametrize("around, loop", LOOPS)
def test_aux_passes_whatever_is_around_the_search(around, loop):
    def both(p):
        return himmelblau(p["w"]) + jnp.sum((p["v"] - 1) ** 2), {"sum": p["w"] + p["v"]}

    def run(has_aux):
        loss = both if has_aux else lambda p: both(p)[0]
        params = {"w": jnp.ones(2), "v": jnp.full(2, 0.5)}
        tx = AROUND[around](gx.scale_by_zoom_linesearch(20, has_aux=has_aux))
        if loop == "minimize":
            result = gx.minimize(loss, params, tx, 0.0, 20, has_aux)
            if has_aux:
                np.testing.assert_array_equal(
                    result.aux["sum"], result.params["w"] + result.params["v"]
                )
            return result.params
        step, state = gx.make_step(tx, loss, has_aux=has_aux), tx.init(params)

        @jax.jit
        def by_hand(params, state):
            out, grad = jax.value_and_grad(loss, has_aux=has_aux)(params)
            given = {"value": out[0] if has_aux else out, "grad": grad, "value_fn": loss}
            updates, state = tx.update(grad, state, params, **given)
            return gx.apply_updates(params, updates), state, out

        for _ in range(4):
            at = params["w"] + params["v"]
            params, state, out = (step if loop == "make_step" else by_hand)(params, state)
            if has_aux:
                np.testing.assert_array_equal(out[1]["sum"], at)
        return params

    with_aux, without = run(True), run(False)
    for key, p in without.items():
        np.testing.assert_allclose(with_aux[key], p, rtol=1e-4, atol=1e-6)


def test_value_and_grad_from_state_evaluates_stored_steps_for_aux_alone():
    program = jax.make_jaxpr(
        lambda x, state: gx.value_and_grad_from_state(lambda y: (jnp.sum(jnp.sin(y)), y), 0, True)(
            x, state=state
        )
    )
    x = jnp.ones(2)
    state = BY_NAME["zoom"]().init(x)
    state = state._replace(value=jnp.asarray(7.0), grad=3 * x)
    (value, aux), grad = gx.value_and_grad_from_state(lambda y: (jnp.sum(y), y), 0, True)(
        2 * x, state=state
    )
    assert value == 7.0
    np.testing.assert_array_equal(aux, 2 * x)
    np.testing.assert_array_equal(grad, 3 * x)
    assert str(program(x, state)).count("cos") == 1  # of the gradient that is not stored


def himmelblau(x):
    return (x[0] ** 2 + x[1] - 11.0) ** 2 + (x[0] + x[1] ** 2 - 7.0) ** 2


@pytest.mark.parametrize("scales", [True, False])
def test_lbfgs_without_a_search_is_optaxs_where_roundings_grow(scales):
    """In float32 the two differ by 1e-4 after 15 steps that start without a scale."""
    ends = []
    for lib in (gx, optax):
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            tx, x = lib.lbfgs(1e-3, 5, scales, None), jnp.ones(2)
            state = tx.init(x)
            for _ in range(15):
                updates, state = tx.update(jax.grad(himmelblau)(x), state, x)
                x = x + updates
            ends.append(np.asarray(x))
    np.testing.assert_allclose(*ends, atol=1e-9)


def test_lbfgs_reaches_the_minimum_in_float32():
    params = {"a": jnp.asarray([-1.2, 1.0]), "b": {"c": jnp.zeros((0, 0))}}
    seen, _ = path(gx, gx.lbfgs(), rosenbrock, params, 50)
    np.testing.assert_allclose(seen[-1], 1.0, atol=1e-3)


def test_the_loss_is_in_the_program_of_a_search_once():
    def loss(params):
        return jnp.sum(jnp.cosh(params["w"]))

    params = {"w": jnp.ones(3)}

    def step(lib):
        tx = lib.scale_by_zoom_linesearch(10)
        extra = {"value": loss(params), "grad": params, "value_fn": loss}
        return lambda p, state: tx.update({"w": -p["w"]}, state, p, **extra)[0]

    def count(lib):
        state = lib.scale_by_zoom_linesearch(10).init(params)
        return len(re.findall(r"\bcosh\b", str(jax.make_jaxpr(step(lib))(params, state))))

    assert count(gx) == 1 < count(optax)


def test_a_search_under_vmap_is_each_search_alone():
    def loss(params, target):
        return jnp.sum((params - target) ** 4)

    tx = gx.chain(gx.sgd(1.0), gx.scale_by_zoom_linesearch(12))

    def step(params, target):
        value, grad = jax.value_and_grad(loss)(params, target)
        extra = {"value": value, "grad": grad, "value_fn": loss, "target": target}
        return tx.update(grad, tx.init(params), params, **extra)[0]

    params, targets = jnp.ones((3, 4)), jnp.asarray([[0.1] * 4, [2.0] * 4, [30.0] * 4])
    together = jax.vmap(step)(params, targets)
    for one, p, target in zip(together, params, targets, strict=True):
        np.testing.assert_allclose(one, step(p, target), rtol=1e-5)


def test_a_loss_that_is_not_finite_gives_no_step_and_the_next_search_starts_again():
    def loss(params):
        return jnp.where(params["w"] < 0, jnp.inf, params["w"] ** 2).sum()

    tx = gx.scale_by_backtracking_linesearch(3)
    params, down = {"w": jnp.ones(1)}, {"w": jnp.full(1, -100.0)}
    state = tx.init(params)
    extra = {"value": 1.0, "grad": {"w": jnp.full(1, 2.0)}, "value_fn": loss}
    updates, state = tx.update(down, state, params, **extra)
    assert updates["w"] == 0 and state.learning_rate == 0
    updates, state = tx.update({"w": jnp.full(1, -0.5)}, state, params, **extra)
    assert updates["w"] == -0.5 and state.learning_rate == 1


@pytest.mark.parametrize("search", SEARCHES)
def test_a_demand_below_the_roundings_of_a_large_value_is_a_demand(search):
    def loss(params):  # a decrease of 1 is half of what float32 can tell here
        return 1e7 + jnp.sum(params["w"])

    params, down = {"w": jnp.zeros(1)}, {"w": jnp.full(1, -0.1)}
    extra = {"value": loss(params), "grad": {"w": jnp.ones(1)}, "value_fn": loss}
    _, state = search(5).update(down, search(5).init(params), params, **extra)
    assert state.info.num_linesearch_steps > 1 and state.info.decrease_error > 0
    tolerant = search(5, **{"atol" if search is SEARCHES[0] else "tol": 1.0})
    _, state = tolerant.update(down, tolerant.init(params), params, **extra)
    assert state.info.num_linesearch_steps == 1


@pytest.mark.parametrize("below", [0.0, 1e4, -1e4])
def test_what_a_loss_is_counted_from_does_not_matter(below):
    """Where values differ by roundings only a step is good if its slope is, below 0 as well."""

    def loss(params):
        return jnp.sum(params["w"] ** 2) - below

    tx, params = gx.scale_by_zoom_linesearch(20), {"w": jnp.asarray([1e-3, -2e-3])}
    value, grad = jax.value_and_grad(loss)(params)
    extra = {"value": value, "grad": grad, "value_fn": loss}
    down = jax.tree.map(jnp.negative, params)
    _, state = tx.update(down, tx.init(params), params, **extra)
    assert state.info.decrease_error == state.info.curvature_error == 0
    assert state.info.num_linesearch_steps == 1


def test_other_extra_arguments_reach_the_loss_alone():
    def loss(params, batch):
        return jnp.sum((params["w"] - batch) ** 2)

    tx = gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(10))
    params, batch = {"w": jnp.ones(2)}, jnp.asarray([0.0, 3.0])
    value, grad = jax.value_and_grad(loss)(params, batch)
    extra = {"value": value, "grad": grad, "value_fn": loss, "batch": batch}
    updates, _ = tx.update(grad, tx.init(params), params, **extra)
    assert loss(gx.apply_updates(params, updates), batch) < value


@pytest.mark.parametrize(
    "hides",
    [
        lambda tx: gx.masked(tx, {"w": True, "b": False}),
        lambda tx: gx.partition({"a": tx, "b": gx.set_to_zero()}, {"w": "a", "b": "b"}),
        lambda tx: gx.chain(gx.masked(gx.chain(tx), gx.path_matches("w"))),
    ],
)
def test_the_loss_of_a_search_under_a_mask_sees_all_parameters(hides):
    def loss(params):
        return jnp.sum((params["w"] - params["b"]) ** 2)

    params = {"w": jnp.ones(2), "b": jnp.asarray([0.0, 3.0])}
    value, grad = jax.value_and_grad(loss)(params)
    extra = {"value": value, "grad": grad, "value_fn": loss}
    tx = hides(gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(10)))
    updates, _ = tx.update(grad, tx.init(params), params, **extra)
    after = gx.apply_updates(params, updates | {"b": jnp.zeros(2)})
    assert loss(after) < value / 2 and np.any(after["w"] != params["w"])


@pytest.mark.parametrize("most", [0.5, 4.0])
def test_after_a_step_of_zero_a_search_begins_at_1_or_its_bound(most):
    tx = gx.scale_by_backtracking_linesearch(3, max_learning_rate=most)
    params = {"w": jnp.ones(1)}
    state = tx.init(params)._replace(learning_rate=jnp.zeros(()))
    extra = {"value": 1.0, "grad": params, "value_fn": lambda p: jnp.sum(p["w"]) - 1e3}
    _, state = tx.update({"w": -params["w"]}, state, params, **extra)
    assert state.learning_rate == min(most, 1.0)


@pytest.mark.parametrize("search", SEARCHES)
def test_where_the_loss_is_never_finite_the_step_is_zero(search):
    params = {"w": jnp.ones(2)}
    extra = {"value": 1.0, "grad": params, "value_fn": lambda p: jnp.sum(p["w"]) * jnp.nan}
    tx = search(4)
    updates, state = tx.update({"w": -params["w"]}, tx.init(params), params, **extra)
    assert not np.any(updates["w"]) and state.learning_rate == 0


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_search_goes_back_as_often_as_it_may(steps):
    params = {"w": jnp.ones(1)}
    tx = gx.scale_by_backtracking_linesearch(steps)
    extra = {"value": 1.0, "grad": params, "value_fn": lambda p: jnp.sum(p["w"]) + 1e3}
    _, state = tx.update({"w": -params["w"]}, tx.init(params), params, **extra)
    assert state.info.num_linesearch_steps == steps + 1
    np.testing.assert_allclose(state.learning_rate, 0.8**steps, rtol=1e-6)


def test_a_failed_search_prints_a_line_if_asked(capfd):
    def up(params):
        return jnp.sum(params["w"])

    params = {"w": jnp.ones(2)}
    for search in (gx.scale_by_backtracking_linesearch, gx.scale_by_zoom_linesearch):
        for verbose in (False, True):
            tx = search(3, verbose=verbose)
            extra = {"value": up(params), "grad": params, "value_fn": up}
            tx.update(params, tx.init(params), params, **extra)
            jax.effects_barrier()
            printed = capfd.readouterr().out
            assert (f"{search.__name__}: the search failed" in printed) == verbose


def test_a_direction_takes_one_exchange_on_a_mesh(eight_devices):
    mesh = Mesh(np.asarray(jax.devices()), ("x",))
    place, everywhere = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    tx = gx.scale_by_lbfgs(10)
    params = {"w": jnp.ones((16, 4)), "b": jnp.ones(8)}
    params = jax.device_put(params, place)

    def sharding(x):
        return (
            NamedSharding(mesh, P(None, "x"))
            if x.ndim > 1 and x.shape[0] == 10
            else (place if x.ndim and x.shape[0] != 10 else everywhere)
        )

    state = tx.init(params)
    state = jax.device_put(state, jax.tree.map(sharding, state))
    compiled = jax.jit(tx.update).lower(params, state, params).compile().as_text()
    exchanges = re.findall(r"= .* (all-reduce|all-gather|all-to-all)(?:-start)?\(", compiled)
    assert exchanges == ["all-reduce"], exchanges


@pytest.mark.parametrize(
    "search", [gx.scale_by_backtracking_linesearch(20), gx.scale_by_zoom_linesearch(20)]
)
def test_a_search_takes_the_gradient_of_complex_parameters_as_jax_returns_it(search):
    target = jnp.asarray([1 + 2j, -3j], jnp.complex64)

    def loss(params):
        return jnp.sum(jnp.abs(params["w"] - target) ** 2)

    params = {"w": jnp.ones(2, jnp.complex64)}
    value, grad = jax.value_and_grad(loss)(params)
    down = jax.tree.map(lambda g: -jnp.conj(g), grad)
    extra = {"value": value, "grad": grad, "value_fn": loss}
    updates, state = search.update(down, search.init(params), params, **extra)
    assert state.info.decrease_error == 0
    np.testing.assert_allclose(loss(gx.apply_updates(params, updates)), 0, atol=value / 2)
