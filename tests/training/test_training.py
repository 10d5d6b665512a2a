"""Gradients for some parameters, and steps that are compiled once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform._jax import jaxprs

pytestmark = pytest.mark.numeric

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def params():
    keys = jax.random.split(jax.random.key(0), 2)
    enc = {"w": jax.random.normal(keys[0], (3, 2)), "b": jnp.zeros(2)}
    return {"enc": enc, "out": jax.random.normal(keys[1], (2,))}


def loss_fn(p, x):
    hidden = jnp.tanh(x @ p["enc"]["w"] + p["enc"]["b"][None])
    return jnp.sum(jnp.square(hidden @ p["out"] - 1))


def counting():
    """A loss, and a list that grows whenever it is traced."""
    traces = []

    def loss(p, x):
        traces.append(1)
        return loss_fn(p, x)

    return loss, traces


def holes(grads):
    """The paths of the gradients that are None."""
    flat = jax.tree_util.tree_flatten_with_path(grads, is_leaf=lambda x: x is None)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/") for path, x in flat if x is None}


def close(ours, theirs, atol=1e-6):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol), ours, theirs)


# -------------------------------------------------------------------------------------- gradients


def test_all_gradients_are_those_of_jax():
    close(gx.compute_gradients(loss_fn, params(), X), jax.value_and_grad(loss_fn)(params(), X))


@pytest.mark.parametrize(
    ("var_list", "left_out"),
    [
        (["enc/w"], {"enc/b", "out"}),
        (("enc",), {"out"}),
        (["out", "enc/b"], {"enc/w"}),
        (gx.path_matches("^enc/"), {"out"}),
        (~gx.ndim_at_least(2), {"enc/w"}),
        ({"enc": True, "out": False}, {"out"}),
        (lambda p: jax.tree.map(lambda x: x.ndim == 2, p), {"enc/b", "out"}),
        (lambda path, leaf: path[-1] == "w", {"enc/b", "out"}),
        (lambda: ["out"], {"enc/w", "enc/b"}),
        (None, set()),
    ],
)
def test_what_is_left_out_is_none(var_list, left_out):
    loss, grads = gx.compute_gradients(loss_fn, params(), X, var_list=var_list)
    assert holes(grads) == left_out
    value, all_grads = jax.value_and_grad(loss_fn)(params(), X)
    np.testing.assert_array_equal(loss, value)
    expected = {k: g for k, g in by_path(all_grads).items() if k not in left_out}
    close(by_path(grads), expected)


def by_path(tree):
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in flat}


def matrix_products(var_list):
    """How many products of matrices the gradients of three layers need."""
    layers = [jnp.ones((3, 3))] * 3

    def deep(p, x):
        return jnp.sum(functools.reduce(lambda h, w: jnp.tanh(h @ w), p, x))

    grads = functools.partial(gx.compute_gradients, deep, var_list=var_list)
    closed = jax.make_jaxpr(grads)(layers, X)
    return sum(eqn.primitive.name == "dot_general" for eqn in jaxprs.as_open_jaxpr(closed)[0].eqns)


def test_what_is_left_out_costs_no_backward_pass():
    forward = 3
    assert matrix_products(None) == forward + 2 * 3 - 1  # that of the input is not needed
    assert matrix_products(["2"]) == forward + 1
    assert matrix_products(["1", "2"]) == forward + 3


def test_parameters_that_are_left_out_may_be_integers():
    tree = params() | {"n": jnp.arange(3)}
    _, grads = gx.compute_gradients(loss_fn, tree, X, var_list=["enc", "out"])
    assert holes(grads) == {"n"}


def test_aux_is_returned_beside_the_loss():
    def with_aux(p, x):
        return loss_fn(p, x), {"rows": x.shape[0], "sum": jnp.sum(x)}

    (loss, aux), grads = gx.compute_gradients(with_aux, params(), X, has_aux=True)
    assert aux["rows"] == 4
    close((loss, grads), jax.value_and_grad(loss_fn)(params(), X))


def test_grad_loss_is_the_cotangent():
    def rows(p, x):
        return jnp.tanh(x @ p["enc"]["w"] + p["enc"]["b"][None]) @ p["out"]

    cotangent = jnp.array([1.0, -2.0, 0.0, 0.5])
    loss, grads = gx.compute_gradients(rows, params(), X, grad_loss=cotangent)
    value, pull = jax.vjp(lambda p: rows(p, X), params())
    close((loss, grads), (value, pull(cotangent)[0]))
    scaled = gx.compute_gradients(loss_fn, params(), X, grad_loss=3)
    plain = gx.compute_gradients(loss_fn, params(), X)
    close(scaled, (plain[0], jax.tree.map(lambda g: 3 * g, plain[1])))


def embedding_loss(p, ids):
    return jnp.sum(jnp.square(p["table"][ids] @ p["w"]))


TABLES = {"table": jnp.arange(12.0).reshape(6, 2) / 12, "w": jnp.array([1.0, -2.0])}
IDS = jnp.array([1, 4, 1])


@pytest.mark.parametrize(
    "sparse", [["table"], gx.path_matches("table"), {"table": True, "w": False}]
)
def test_sparse_gives_rows(sparse):
    loss, grads = gx.compute_gradients(embedding_loss, TABLES, IDS, sparse=sparse, grad_loss=2.0)
    value, dense = jax.value_and_grad(embedding_loss)(TABLES, IDS)
    assert isinstance(grads["table"], gx.RowSparse) and grads["table"].values.shape == (3, 2)
    np.testing.assert_allclose(loss, value, rtol=1e-6)
    close(
        {"table": grads["table"].to_dense(), "w": grads["w"]},
        jax.tree.map(lambda g: 2 * g, dense),
    )


def test_a_table_that_is_left_out_is_not_sparse_either():
    _, grads = gx.compute_gradients(embedding_loss, TABLES, IDS, var_list=["w"], sparse=["table"])
    assert holes(grads) == {"table"} and not isinstance(grads["w"], gx.RowSparse)


# ------------------------------------------------------------------------------------------ steps


@pytest.mark.parametrize("tx", [gx.adamw(0.1), optax.sgd(0.1, momentum=0.9)], ids=["ours", "optax"])
def test_a_step_is_gradients_and_an_update(tx):
    step = gx.make_step(tx, loss_fn)
    p, state = params(), tx.init(params())
    q, other = params(), tx.init(params())
    for _ in range(3):
        loss, grads = jax.value_and_grad(loss_fn)(q, X)
        updates, other = tx.update(grads, other, q)
        q = gx.apply_updates(q, updates)
        p, state, ours = step(p, state, X)
        np.testing.assert_allclose(ours, loss, rtol=1e-5)
    close((p, state), (q, other), atol=1e-5)


def test_equal_arguments_share_one_program():
    loss, traces = counting()
    for var_list in (["enc"], ("enc",), ["enc"]):
        step = gx.make_step(gx.adam(0.1), loss, var_list=var_list)
        p, state = params(), gx.adam(0.1).init(params())
        for _ in range(3):
            p, state, _ = step(p, state, X)
    assert len(traces) == 1
    step = gx.make_step(gx.adam(0.2), loss, var_list=["enc"])
    step(params(), gx.adam(0.1).init(params()), X)
    assert len(traces) == 2


def test_a_step_donates():
    step = gx.make_step(gx.adam(0.1), loss_fn)
    p, state, x = params(), gx.adam(0.1).init(params()), X + 0
    step(p, state, x)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((p, state)))
    assert not x.is_deleted()
    lowered = step.lower(params(), gx.adam(0.1).init(params()), X)
    assert lowered.as_text().count("tf.aliasing_output") == len(jax.tree.leaves((p, state)))


def test_a_step_leaves_what_is_frozen_and_its_slots():
    p, state = params(), gx.adamw(0.1).init(params())
    step = gx.make_step(gx.adamw(0.1), loss_fn, var_list=["enc/w"])
    p, state, _ = step(p, state, X)
    np.testing.assert_array_equal(p["out"], params()["out"])
    assert not np.any(gx.tree.get(state, "mu")["out"]) and np.any(
        gx.tree.get(state, "mu")["enc"]["w"]
    )
    assert np.any(p["enc"]["w"] != params()["enc"]["w"])


def test_a_step_can_be_scanned():
    tx = gx.adam(0.1)
    loss, traces = counting()
    step = gx.make_step(tx, loss)

    @jax.jit
    def run(p, state, xs):
        def body(carry, x):
            *carry, value = step(*carry, x)
            return tuple(carry), value

        return jax.lax.scan(body, (p, state), xs)

    (p, state), losses = run(params(), tx.init(params()), jnp.stack([X] * 4))
    assert len(traces) == 1
    q, other = params(), tx.init(params())
    for value in losses:
        q, other, expected = step(q, other, X)
        np.testing.assert_allclose(value, expected, rtol=1e-4)
    close((p, state), (q, other), atol=1e-4)


@pytest.mark.parametrize("mode", ["shard_map", "jit", "pmap", "vmap"])
def test_a_step_runs_on_replicas(mode, eight_devices):
    tx = gd.tower(gx.sgd(0.1), "replica")
    replicas = gd.Replicas(n=4 if mode == "vmap" else None, mode=mode)
    step = replicas.wrap(gx.make_step(tx, loss_fn, var_list=["enc"]))
    x = jnp.linspace(-1.0, 1.0, replicas.n * 12).reshape(-1, 3)
    p, state = map(replicas.replicate, (params(), tx.init(params())))
    p, state, losses = step(p, state, replicas.split(x))
    assert losses.shape == (replicas.n,)
    mean = jax.grad(lambda p: loss_fn(p, x) / replicas.n)(params())
    expected = params()["enc"]["w"] - 0.1 * mean["enc"]["w"]
    for replica in range(replicas.n):
        one = replicas.unreplicate(p, replica)
        np.testing.assert_allclose(one["enc"]["w"], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(one["out"], params()["out"])


def test_a_step_passes_the_global_step_and_the_loss():
    tx = gx.chain(
        gx.external_step(gx.scale_by_learning_rate(gx.linear_schedule(1.0, 0.0, 10))),
        gx.reduce_on_plateau(),
    )
    step = gx.make_step(tx, loss_fn)
    p, _, _ = step(params(), tx.init(params()), X, step=5)
    grads = jax.grad(loss_fn)(params(), X)
    close(p, jax.tree.map(lambda p, g: p - 0.5 * g, params(), grads), atol=1e-5)


def test_a_step_with_aux_and_sparse_gradients():
    def with_aux(p, ids):
        return embedding_loss(p, ids), ids.shape

    tx = gx.lazy_adam(0.1)
    step = gx.make_step(tx, with_aux, has_aux=True, sparse=["table"])
    tables = jax.tree.map(jnp.copy, TABLES)
    p, _, (loss, aux) = step(tables, tx.init(tables), IDS)
    assert aux == (3,)
    np.testing.assert_allclose(loss, embedding_loss(TABLES, IDS), rtol=1e-5)
    moved = np.any(p["table"] != TABLES["table"], axis=1)
    assert moved.tolist() == [i in (1, 4) for i in range(6)]


def test_sam_gets_the_gradients_at_other_places():
    tx = gx.sam(gx.sgd(0.1), gx.sgd(0.5), opaque_mode=True)
    p, _, _ = gx.make_step(tx, loss_fn)(params(), tx.init(params()), X)
    grads = jax.grad(loss_fn)(params(), X)
    args = (grads, tx.init(params()), params())
    updates, _ = tx.update(*args, grad_fn=lambda p, i: jax.grad(loss_fn)(p, X))
    close(p, gx.apply_updates(params(), updates), atol=1e-5)


@pytest.mark.parametrize("tx", [gx.sophia(0.1), gx.adahessian(0.1)], ids=["sophia", "adahessian"])
def test_estimates_of_curvature_get_the_loss_of_the_batch(tx):
    p, state = params(), tx.init(params())
    grads = jax.grad(loss_fn)(p, X)
    updates, _ = tx.update(grads, state, p, obj_fn=lambda p: loss_fn(p, X))
    moved, _, _ = gx.make_step(tx, loss_fn)(params(), tx.init(params()), X)
    close(moved, gx.apply_updates(p, updates))


def test_a_learning_rate_may_be_traced():
    def after(rate):
        return gx.make_step(gx.sgd(rate), loss_fn)(params(), gx.sgd(0.1).init(params()), X)[0]

    rates = jnp.array([0.1, 0.2])
    several = jax.vmap(after)(rates)
    close(jax.tree.map(lambda x: x[1], several), after(0.2), atol=1e-5)


# ------------------------------------------------------------------------------- apply_gradients


def test_gradients_are_applied():
    tx = gx.adamw(0.1)
    grads = jax.grad(loss_fn)(params(), X)
    p, state = gx.apply_gradients(tx, grads, tx.init(params()), params())
    updates, other = tx.update(grads, tx.init(params()), params())
    close((p, state), (gx.apply_updates(params(), updates), other))


def test_pairs_may_come_in_any_order():
    grads = jax.grad(loss_fn)(params(), X)
    pairs = [(grads["out"], "out"), (None, "enc/b"), (grads["enc"]["w"], ("enc", "w"))]
    tx = gx.adam(0.1)
    state = tx.init(params())
    p, _ = gx.apply_gradients(tx, state=state, params=params(), grads_and_vars=iter(pairs))
    frozen = {"enc": grads["enc"] | {"b": None}, "out": grads["out"]}
    close(p, gx.apply_gradients(tx, frozen, state, params())[0])
    np.testing.assert_array_equal(p["enc"]["b"], params()["enc"]["b"])


def test_apply_gradients_passes_the_step():
    tx = gx.compat.tf1.GradientDescent(gx.linear_schedule(1.0, 0.0, 10))
    grads = jax.tree.map(jnp.ones_like, params())
    p, _ = gx.apply_gradients(tx, grads, tx.init(params()), params(), 4)
    close(p, jax.tree.map(lambda p: p - 0.6, params()))


def test_parameters_without_an_array_need_no_gradient():
    assert gx.apply_gradients(gx.sgd(0.1), {}, gx.sgd(0.1).init({}), {})[0] == {}


# ------------------------------------------------------------------ functions without arguments


RATES = 0.1, 0.3
BY_COUNT = [
    gx.compat.keras.Adam,
    gx.compat.keras.SGD,
    gx.compat.keras.Ftrl,
    functools.partial(gx.compat.keras.SGD, decay=0.5),
    gx.compat.tf1.GradientDescent,
    gx.compat.tf1.ProximalGradientDescent,
    gx.compat.tf1.ProximalAdagrad,
    gx.compat.tf1.AdagradDA,
    gx.compat.tf1.Ftrl,
    gx.compat.tf_contrib.LARS,
    gx.compat.tf_contrib.AddSign,
    gx.compat.returnn.CustomGradientDescent,
]


@pytest.mark.parametrize("door", BY_COUNT, ids=lambda door: getattr(door, "__name__", "decay"))
def test_a_function_without_arguments_is_called_at_each_update(door):
    calls = []
    live = door(learning_rate=lambda: calls.append(1) or RATES[len(calls) - 1])
    scheduled = door(learning_rate=lambda n: jnp.where(n == 0, *RATES))
    grads = jax.tree.map(jnp.ones_like, params())
    p, state = params(), live.init(params())
    q, other = params(), scheduled.init(params())
    step = gx.make_step(live, lambda p: sum(jnp.sum(x) for x in jax.tree.leaves(p)))
    for _ in RATES:
        q, other = gx.apply_gradients(scheduled, grads, other, q)
        p, state, _ = step(p, state)
    close(p, q, atol=1e-5)
    assert len(calls) == len(RATES)


def test_each_of_several_functions_without_arguments_is_called_once_for_its_own_parts():
    calls = []

    def rate():
        calls.append("rate")
        return 0.1

    doors = {
        "enc": gx.compat.keras.SGD(rate),
        "out": gx.compat.keras.SGD(lambda: calls.append("other") or 0.5),
    }
    groups = gx.partition(doors, {"enc": "enc", "out": "out"})
    tx = gx.chain(groups, gx.sum_of(gx.identity(), gx.compat.keras.SGD(rate)))
    step = gx.make_step(tx, lambda p: sum(jnp.sum(x) for x in jax.tree.leaves(p)))
    p = params()
    new, *_ = step(jax.tree.map(jnp.array, p), tx.init(p))
    close(new, {"enc": jax.tree.map(lambda x: x - 0.09, p["enc"]), "out": p["out"] - 0.45})
    assert sorted(calls) == ["other", "rate"]


@pytest.mark.parametrize("door", [gx.compat.keras.Nadam, gx.compat.tf_contrib.Shampoo])
def test_a_function_without_arguments_stands_for_its_number(door):
    grads = jax.tree.map(jnp.ones_like, params())
    live, fixed = door(learning_rate=lambda: 0.1), door(learning_rate=0.1)
    p, _ = gx.apply_gradients(live, grads, live.init(params()), params())
    close(p, gx.apply_gradients(fixed, grads, fixed.init(params()), params())[0])


def test_a_function_without_arguments_compiles_once():
    rate = [0.1]
    loss, traces = counting()
    tx = gx.compat.keras.SGD(lambda: rate[0])
    step = gx.make_step(tx, loss)
    p, state = params(), tx.init(params())
    for rate[0] in (0.1, 0.0):
        before = jax.tree.map(np.array, p)
        p, state, _ = step(p, state, X)
    close(p, before)
    assert len(traces) == 1
    # Eager updates call it too.
    grads = jax.tree.map(jnp.ones_like, p)
    tx.update(grads, state, p)
    rate[0] = 0.5
    updates, _ = tx.update(grads, state, p)
    np.testing.assert_allclose(updates["out"], -0.5, rtol=1e-6)
    # Under a condition too, which is traced even in an eager update.
    every = gx.MultiSteps(tx, 1)
    q, _ = gx.apply_gradients(every, grads, every.init(p), p)
    close(q, jax.tree.map(lambda x: x - 0.5, p))


def test_a_transform_with_a_function_is_a_value():
    def rate():
        return 0.1

    tx = gx.compat.keras.SGD(rate)
    assert tx == gx.compat.keras.SGD(rate) and hash(tx) == hash(gx.compat.keras.SGD(rate))
    assert tx != gx.compat.keras.SGD(lambda: 0.1)
    assert "<locals>.rate" in repr(tx)


def test_errors_have_tensorflows_classes_too():
    with pytest.raises(RuntimeError, match="loss_fn must be a function"):
        gx.compute_gradients(3.0, params())
    with pytest.raises(ValueError, match="has dtype int32; only"):
        gx.compute_gradients(lambda p: 1.0, {"n": jnp.arange(3)})
    table = jnp.ones((4, 2))
    bounded = gx.project(gx.sgd(0.1), gx.projections.projection_non_negative)
    rows = gx.sparse.RowSparse(jnp.array([1]), jnp.ones((1, 2)), 4)
    with pytest.raises(RuntimeError, match="cannot take the row-sparse gradient"):
        bounded.update(rows, bounded.init(table), table)
