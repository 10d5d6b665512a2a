"""Who keeps a copy of the parameters learns of it when an exchange moves them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import gradxform as gx
import gradxform.distributed as gd
from gradxform._jax.jaxprs import traced_along
from gradxform.distributed.shares.shared_leaves import is_shared
from tests.distributed.modes import step_of

pytestmark = pytest.mark.numeric

R, D = 2, 2  # replicas, and the devices of each
SGD = gx.sgd(0.5)
BF16 = jnp.bfloat16


def mapped(function):
    """Two maps over replicas and their devices; what all share is kept once."""
    compiled = []

    def axes(tree):
        treedef = jax.tree.structure(tree)
        return treedef.unflatten([None if shared else 0 for shared in is_shared(tree)])

    def run(*args):
        if not compiled:
            leaves, treedef = jax.tree.flatten(args)
            pairs = zip(leaves, is_shared(args), strict=True)
            one = treedef.unflatten([x if shared else x[0, 0] for x, shared in pairs])
            results = axes(traced_along(function, one, {"data": D, "replica": R})[1])
            both = function
            for name in "data", "replica":
                both = jax.vmap(both, in_axes=axes(args), out_axes=results, axis_name=name)
            compiled.append(jax.jit(both))
        return compiled[0](*args)

    return run


def everywhere(function, mode):
    """`function` of one device for all, on arrays [R, D, ...]."""
    if mode == "vmap":
        return mapped(function)
    mesh = jax.make_mesh((R, D), ("replica", "data"), axis_types=(AxisType.Auto,) * 2)

    def body(*args):
        made = function(*jax.tree.map(lambda x: x[0, 0], args))
        return jax.tree.map(lambda x: x[None, None], made)

    spec = P("replica", "data")
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))


def run(tx, params, grads, mode="vmap", form="step"):
    """The parameters [R, D, ...] after every step, in float64, and the last state."""
    params = {k: jnp.broadcast_to(p, (R, D, *p.shape)) for k, p in params.items()}
    state = everywhere(tx.init, mode)(params)

    step, history = everywhere(step_of(tx, form), mode), []
    for g in grads:
        params, state = step(params, state, {k: jnp.asarray(x) for k, x in g.items()})
        history.append({k: np.asarray(p, np.float64) for k, p in params.items()})
    return history, state


def start(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3), "b": (3,)}
    return {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in shapes.items()}


def gradients(steps, zeros=0, dtype=jnp.float32):
    """Gradients that differ between replicas, and then so many of zeros."""
    rng = np.random.default_rng(1)
    made = []
    for t in range(steps + zeros):
        factor = 1.0 if t < steps else 0.0
        made.append(
            {k: factor * rng.normal(size=(R, D, *p.shape)) for k, p in start(dtype).items()}
        )
    return [jax.tree.map(lambda x: jnp.asarray(x, dtype), g) for g in made]


KINDS: dict[str, Any] = {
    "model_average": lambda tx: gd.model_average(tx, "replica", period=2),
    "with the state": lambda tx: gd.model_average(tx, "replica", period=2, average_state=True),
    "elastic_average": lambda tx: gd.elastic_average(
        tx, "replica", period=2, moving_rate=0.4, rho=0.0
    ),
    "agn": lambda tx: gd.agn(tx, "replica", period=2),
    "outer": lambda tx: gd.diloco(tx, "replica", period=2),
    "fragments": lambda tx: gd.diloco(tx, "replica", period=2, fragments=2),
    "delay": lambda tx: gd.diloco(tx, "replica", period=2, delay=1, blend=0.25),
}


@pytest.mark.parametrize("form", ["update", "step"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_narrow_parameters_of_divided_optimizers_stay_where_replicas_met(kind, form):
    grads = gradients(7)
    divided = KINDS[kind](gd.zero1(SGD, "data"))
    whole = KINDS[kind](gd.tower(SGD, "data"))
    ours, _ = run(divided, start(BF16), grads, form=form)
    theirs, _ = run(whole, start(), grads, form=form)
    for mine, wide in zip(ours, theirs, strict=True):
        for k in mine:
            np.testing.assert_allclose(mine[k], wide[k], rtol=0.02, atol=0.04)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", list(KINDS))
def test_narrow_parameters_stay_there_under_shard_map_too(kind):
    grads = gradients(5)
    tx = KINDS[kind](gd.zero1(SGD, "data"))
    ours, _ = run(tx, start(BF16), grads, mode="shard_map")
    theirs, _ = run(tx, start(BF16), grads)
    for mine, other in zip(ours, theirs, strict=True):
        for k in mine:
            np.testing.assert_allclose(mine[k], other[k], rtol=0.01, atol=0.01)


def test_the_extra_digits_of_copies_outlive_an_exchange():
    """Steps of a sixteenth of what bfloat16 can tell apart, an average after each."""
    tx = gd.model_average(gd.zero1(gx.sgd(1.0), "data"), "replica", period=1)
    g = {"w": jnp.full((R, D, 4), 2.0**-12)}
    *_, (last) = run(tx, {"w": jnp.ones(4, BF16)}, [g] * 64)[0]
    np.testing.assert_array_equal(last["w"], np.full((R, D, 4), 1 - 2.0**-6))


MADGRAD = gx.scale_by_madgrad(0.1, momentum=0.0)
ON_W = gx.path_matches("w")
LISTENERS = {
    "zero1": gd.zero1(SGD, "data"),
    "zero1 of a copy": gd.zero1(MADGRAD, "data"),
    "madgrad": MADGRAD,
    "cocob": gx.scale_by_cocob(alpha=1.0),
    "chain": gx.chain(gx.clip(10.0), MADGRAD),
    "as_optax": gx.as_optax(MADGRAD),
    "a pair of functions": gx.GradientTransformation(*MADGRAD),
    "a pair in a chain": gx.chain(gx.clip(10.0), gx.as_optax(MADGRAD._replace())),
    "named_chain": gx.named_chain(("clip", gx.clip(10.0)), ("step", MADGRAD)),
    "sum_of": gx.sum_of(MADGRAD, gx.set_to_zero()),
    "masked": gx.chain(gx.masked(MADGRAD, ON_W), gx.masked(gx.scale_by_cocob(alpha=1.0), ~ON_W)),
    "partition": gx.partition(
        {"w": MADGRAD, "b": gd.zero1(SGD, "data")}, gx.label_by(("w", ON_W), ("b", True))
    ),
    "MultiSteps": gx.MultiSteps(MADGRAD, 1),
    "accumulate_rows": gx.accumulate_rows(MADGRAD, 1, rows=0),
    "apply_if_finite": gx.apply_if_finite(MADGRAD, 1),
    "external_step": gx.external_step(MADGRAD),
    "sparse_semantics": gx.sparse_semantics(MADGRAD, "dense"),
    "only_dense": gx.only_dense(MADGRAD),
    "inject_hyperparams": gx.inject_hyperparams(gx.scale_by_madgrad)(0.1, momentum=0.0),
    "tower": gd.tower(MADGRAD, "data"),
    "sync_replicas": gd.sync_replicas(MADGRAD, "data"),
    "model_average": gd.model_average(MADGRAD, "data", period=100),
}


@pytest.mark.parametrize("name", list(LISTENERS))
def test_without_gradients_nothing_leaves_the_average(name):
    tx = gd.model_average(LISTENERS[name], "replica", period=3)
    history, _ = run(tx, start(BF16), gradients(3, zeros=2))
    before, met, *after = history[1:]
    assert all(np.ptp(before[k], axis=0).max() > 0.05 for k in before)
    for params in after:
        for k in met:
            np.testing.assert_allclose(params[k], met[k], rtol=2**-7, atol=0.01)


def test_moves_of_less_than_a_rounding_reach_the_copies():
    """DiLoCo moves its anchor by less than bfloat16 shows, and lives by the sum of such moves."""
    tx = gd.diloco(gd.zero1(gx.sgd(2e-4), "data"), "replica", period=4)
    g = {"w": jnp.ones((R, D, 4))}
    narrow, wide = (
        run(tx, {"w": jnp.full(4, 1.5, dtype)}, [g] * 80)[0][-1]["w"] for dtype in (BF16, "float32")
    )
    assert wide.max() < 1.46
    np.testing.assert_allclose(narrow, wide, rtol=2**-7)


def test_slow_weights_move_with_the_fast_ones():
    tx = gd.model_average(gx.lookahead(SGD, 4, 0.5), "replica", period=3)
    params = start()
    history, state = run(tx, params, gradients(3))
    grads = gradients(3)
    for k, p in params.items():
        p = np.asarray(p)[None, None]
        v = p - 0.5 * sum(np.asarray(g[k]) for g in grads)
        moved = p + (v.mean(0, keepdims=True) - v)
        np.testing.assert_allclose(state.inner.slow[k], moved, atol=1e-5)
        np.testing.assert_allclose(history[-1][k], np.broadcast_to(v.mean(0), v.shape), atol=1e-5)


@pytest.mark.parametrize("reset", [False, True])
def test_lookahead_tells_copies_how_far_it_pulls_back(reset):
    grads = gradients(7)
    tx = gx.lookahead(gd.zero1(SGD, "data"), 2, 0.5, reset_state=reset)
    whole = gx.lookahead(gd.tower(SGD, "data"), 2, 0.5, reset_state=reset)
    ours, _ = run(tx, start(BF16), grads, form="update")
    theirs, _ = run(whole, start(), grads, form="update")
    for mine, wide in zip(ours, theirs, strict=True):
        for k in mine:
            np.testing.assert_allclose(mine[k], wide[k], rtol=0.02, atol=0.03)


def test_a_parameter_without_a_gradient_does_not_move_nor_its_copy():
    tx = gd.model_average(gd.zero1(SGD, "data"), "replica", period=2)
    apart = {"w": jnp.asarray([[[1.0] * 4] * D, [[2.0] * 4] * D], BF16), "b": jnp.ones((R, D, 2))}
    state = everywhere(tx.init, "vmap")(apart)
    step = everywhere(lambda p, s, g: tx.step({"w": None, "b": g}, s, p), "vmap")
    params = apart
    for _ in range(2):
        params, state = step(params, state, jnp.ones((R, D, 2)))
    np.testing.assert_array_equal(params["w"], apart["w"])
    np.testing.assert_array_equal(state.inner.master["w"][:, :, 0], [[1.0] * D, [2.0] * D])


# -------------------------------------------------------------------------------- what is refused


REFUSED = {
    "step_by_ftrl": gx.step_by_ftrl(0.1),
    "step_by_dual_averaging": gx.chain(gx.clip(1.0), gx.step_by_dual_averaging(0.1)),
    "elastic_average": gd.elastic_average(SGD, "data", rho=0.0),
    "agn": gx.MultiSteps(gd.agn(SGD, "data"), 2),
    "outer": gd.diloco(SGD, "data"),
}


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("kind", ["model_average", "elastic_average", "agn", "outer"])
def test_a_part_that_would_undo_an_exchange_is_refused_by_name(kind, name):
    with pytest.raises(ValueError, match=rf"^{kind}: it moves the parameters, and {name} goes"):
        KINDS[kind](REFUSED[name])


@gx.transform(name="tests:deaf")
class deaf(gx.Transform):
    """Run the inner transform."""

    inner: Any

    def init(self, params):
        """Return the inner state in a tuple."""
        return (self.inner.init(params),)

    def update(self, updates, state, params=None, **extra):
        """Update the inner transform."""
        updates, inner = self.inner.update(updates, state[0], params)
        return updates, (inner,)


@gx.transform(name="tests:towards_the_start")
class towards_the_start(gx.Transform):
    """Go back to where the parameters began, which it says in its own way has moved."""

    def init(self, params):
        """Return a copy of the parameters."""
        return (jax.tree.map(jnp.copy, params),)

    def update(self, updates, state, params=None, **extra):
        """Return the way back."""
        return jax.tree.map(lambda x, p: x - p, state[0], params), state

    def moved(self, state, old, new):
        """Return the new beginning."""
        return (jax.tree.map(lambda x, p, q: x + (q - p), state[0], old, new),)


def test_a_transform_can_define_its_own_move():
    class_of_two = gx.chain(towards_the_start(), gx.identity())
    tx = gd.model_average(class_of_two, "replica", period=2)
    apart = {"w": jnp.asarray([[[1.0]] * D, [[2.0]] * D])}
    state = everywhere(tx.init, "vmap")(apart)
    step = everywhere(lambda p, s: tx.step(p, s, p), "vmap")
    params = apart
    for _ in range(3):
        params, state = step(params, state)
    np.testing.assert_array_equal(params["w"], np.full((R, D, 1), 1.5))
    with pytest.raises(
        ValueError, match="towards_the_start keeps a copy of them, and tests:deaf around"
    ):
        gd.model_average(deaf(class_of_two), "replica")


def test_a_wrapper_that_does_not_hand_on_a_move_is_refused_around_a_copy():
    with pytest.raises(
        ValueError, match=r"scale_by_madgrad keeps a copy of them, and tests:deaf around"
    ):
        gd.model_average(deaf(MADGRAD), "replica")
    gd.model_average(deaf(SGD), "replica")
