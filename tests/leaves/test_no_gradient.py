"""Integers, keys, functions among the parameters: holes, wherever no gradient comes to them."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse

import gradxform as gx
from gradxform.types import MaskedNode

pytestmark = pytest.mark.numeric

PARAMS = {
    "w": jnp.array([1.0, -2.0]),
    "steps": jnp.array(3),
    "on": jnp.array([True, False]),
    "key": jax.random.key(0),
    "number": 7,
}
FROZEN = {"w": False, "steps": True, "on": True, "key": True, "number": True}
LABELS = {k: "frozen" if x else "train" for k, x in FROZEN.items()}


def float0(x):
    return np.zeros(jnp.shape(x), jax.dtypes.float0)


NO_GRADIENT = {
    "none": lambda x: None,
    "float0": float0,
    "masked": lambda x: MaskedNode(),
    "Optax's masked": lambda x: optax.MaskedNode(),
}

OPTIMIZERS = {
    "adam": lambda: gx.adam(0.1),
    "sgd": lambda: gx.sgd(0.1, momentum=0.9),
    "set_to_zero": gx.set_to_zero,
    "freeze": lambda: gx.chain(gx.adam(0.1), gx.freeze(FROZEN)),
    "freeze by a pattern": lambda: gx.chain(gx.adam(0.1), gx.freeze(gx.path_matches("steps"))),
    "selective_transform": lambda: gx.selective_transform(gx.adam(0.1), freeze_mask=FROZEN),
    "partition": lambda: gx.partition({"train": gx.adam(0.1), "frozen": gx.set_to_zero()}, LABELS),
    "masked": lambda: gx.masked(gx.adam(0.1), {k: not x for k, x in FROZEN.items()}),
    "clipped": lambda: gx.chain(gx.clip_by_global_norm(1.0), gx.lamb(0.1)),
    "muon": lambda: gx.muon(0.1),
    "adafactor": lambda: gx.adafactor(0.1),
    "MultiSteps": lambda: gx.MultiSteps(gx.adam(0.1), 2),
    "apply_if_finite": lambda: gx.apply_if_finite(gx.adam(0.1), 3),
    "moving_average": lambda: gx.moving_average(gx.adam(0.1), 0.9),
    "schedule_free": lambda: gx.schedule_free_adamw(0.1),
    "master_weights": lambda: gx.master_weights(gx.adam(0.1)),
    "quantize_state": lambda: gx.quantize_state(gx.adam(0.1)),
    "lars": lambda: gx.lars(0.1),
    "sam": lambda: gx.contrib.sam(gx.adam(0.1), gx.sgd(0.1), sync_period=2),
}


def gradient(kind, k):
    return {
        name: x * (k + 1.0) if name == "w" else NO_GRADIENT[kind](x) for name, x in PARAMS.items()
    }


@pytest.mark.parametrize("kind", list(NO_GRADIENT))
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_what_has_no_gradient_stays_and_changes_nothing(name, kind):
    tx = OPTIMIZERS[name]()
    own = {"w": PARAMS["w"]}
    alone = {
        "freeze": lambda: gx.adam(0.1),
        "freeze by a pattern": lambda: gx.adam(0.1),
        "selective_transform": lambda: gx.adam(0.1),
        "partition": lambda: gx.adam(0.1),
        "masked": lambda: gx.adam(0.1),
    }.get(name, OPTIMIZERS[name])()
    state, of_own = tx.init(PARAMS), alone.init(own)
    params = PARAMS
    for k in range(3):
        updates, state = tx.update(gradient(kind, k), state, params)
        updates_of_own, of_own = alone.update({"w": gradient(kind, k)["w"]}, of_own, own)
        np.testing.assert_array_equal(updates["w"], updates_of_own["w"])
        params, own = gx.apply_updates(params, updates), gx.apply_updates(own, updates_of_own)
    for k in PARAMS.keys() - {"w"}:
        assert params[k] is PARAMS[k] or np.all(np.asarray(params[k] == PARAMS[k])), k


def test_the_gradients_of_jax_for_integers_come_back_as_they_were():
    params = {"w": jnp.ones(2), "n": jnp.array(2)}
    grads = jax.grad(lambda p: jnp.sum(p["w"] ** p["n"]), allow_int=True)(params)
    tx = gx.adam(0.1)
    updates, _ = tx.update(grads, tx.init(params), params)
    assert updates["n"].dtype == jax.dtypes.float0
    assert gx.apply_updates(params, updates)["n"] == 2


@pytest.mark.parametrize("params", [None, {"w": jnp.ones(2), "n": jnp.array(2)}])
@pytest.mark.parametrize("bad", [jnp.array(1.0), jnp.array(1)])
@pytest.mark.parametrize("tx", [gx.adam(0.1), gx.apply_if_finite(gx.trace(0.9), 2)])
def test_a_gradient_for_an_integer_is_refused_when_it_comes(tx, bad, params):
    state = tx.init({"w": jnp.ones(2), "n": jnp.array(2)})
    with pytest.raises((TypeError, ValueError), match=r"\['n'\]"):
        tx.update({"w": jnp.ones(2), "n": bad}, state, params)


def test_the_state_of_masked_is_that_of_optax():
    mask = {"w": True, "n": False}
    params = {"w": jnp.ones(2), "n": jnp.array(2)}
    ours = gx.masked(gx.adam(0.1), mask).init(params)
    theirs = optax.masked(optax.adam(0.1), mask).init(params)
    names = [jax.tree_util.tree_flatten_with_path(x)[0] for x in (ours, theirs)]
    assert [path for path, _ in names[0]] == [path for path, _ in names[1]]


# ------------------------------------------------------------------------ models with functions


MODEL = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))


def loss(model):
    return jnp.sum(model(jnp.ones(2)) ** 2)


@pytest.mark.parametrize(
    "tx", [gx.sgd(0.1), gx.sgd(lambda n: 0.1), gx.chain(gx.clip_by_global_norm(1.0), gx.sgd(0.1))]
)
def test_a_model_that_nobody_has_filtered(tx):
    state = tx.init(MODEL)
    updates, _ = tx.update(eqx.filter_grad(loss)(MODEL), state, MODEL)
    moved = eqx.apply_updates(MODEL, updates)
    assert loss(moved) < loss(MODEL)
    assert loss(gx.apply_updates(MODEL, updates)) == loss(moved)


@pytest.mark.parametrize(
    "tx, name", [(gx.adam(0.1), "adam"), (gx.sgd(0.1, 0.9), "sgd"), (gx.trace(0.9), "trace")]
)
def test_what_would_keep_something_for_a_function_says_how_to_filter(tx, name):
    with pytest.raises(TypeError) as caught:
        tx.init(MODEL)
    message = str(caught.value)
    assert message.startswith(f"{name}: parameter .activation is ")
    assert "eqx.filter(model, eqx.is_array)" in message


@pytest.mark.parametrize("text", ["float32", b"x"])
def test_a_string_is_not_a_parameter(text):
    params = {"w": jnp.ones(2), "dtype": text}
    assert not jax.tree.leaves(gx.sgd(0.1).init(params))
    with pytest.raises(TypeError, match=r"parameter \['dtype'\] is "):
        gx.adam(0.1).init(params)


# ---------------------------------------------------------------------- functions of the parameters


def parabola(p):
    return jnp.sum((p["w"] - 3) ** 2) + jnp.sum(p["b"] ** 2) + p["n"]


OF_W = {"w": True, "b": False, "n": False}
REST = {k: not x for k, x in OF_W.items()}
SEARCHES = {
    "masked": lambda tx: gx.chain(gx.masked(tx, OF_W), gx.masked(gx.set_to_zero(), REST)),
    "partition": lambda tx: gx.partition(
        {"search": tx, "rest": gx.sgd(0.1)}, {"w": "search", "b": "rest", "n": "rest"}
    ),
    "all": lambda tx: tx,
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("where", list(SEARCHES))
@pytest.mark.parametrize(
    "search", [gx.lbfgs(), gx.chain(gx.sgd(1.0), gx.scale_by_backtracking_linesearch(20))]
)
def test_a_loss_gets_all_parameters(search, where, jit):
    tx = SEARCHES[where](search)
    params = {"w": jnp.ones(2), "b": jnp.full(3, 0.5), "n": jnp.array(4)}
    state = tx.init(params)

    def step(params, state):
        value, grads = jax.value_and_grad(parabola, allow_int=True)(params)
        grads = {**grads, "n": None}
        extra = {"value": value, "grad": grads, "value_fn": parabola}
        updates, state = tx.update(grads, state, params, **extra)
        return gx.apply_updates(params, updates), state

    for _ in range(8):
        params, state = (jax.jit(step) if jit else step)(params, state)
    np.testing.assert_allclose(params["w"], [3.0, 3.0], atol=0.1)


def test_the_gradients_of_sam_inside_masked_are_those_of_its_parameters():
    tx = gx.masked(
        gx.contrib.sam(gx.sgd(0.1), gx.sgd(0.1), opaque_mode=True),
        {"w": True, "b": False, "n": False},
    )
    params = {"w": jnp.ones(2), "b": jnp.ones(3), "n": jnp.array(4)}
    whole = jax.grad(parabola, allow_int=True)
    grads = whole(params)
    updates, _ = tx.update(grads, tx.init(params), params, grad_fn=lambda p, i: whole(p))
    np.testing.assert_array_equal(updates["b"], grads["b"])
    assert np.all(updates["w"] > 0)


# --------------------------------------------------------------- where the library differentiates

MIXED = {
    "w": jnp.array([1.0, -2.0, 3.0]),
    "n": jnp.arange(3),
    "on": jnp.array([True, False, True]),
    "key": jax.random.key(0),
}
ALONE = {"w": MIXED["w"]}


def of_mixed(p):
    noise = jax.random.normal(p["key"], ()) if "key" in p else jax.random.normal(MIXED["key"], ())
    weights = jnp.where(p["on"], 1.0, 0.5) + p["n"].astype(jnp.float32)
    return jnp.sum((p["w"] - noise) ** 2 * weights)


def of_alone(p):
    return of_mixed(MIXED | p)


def sharp(factory, **options):
    return lambda opaque: factory(gx.sgd(0.1), **options, opaque_mode=opaque)


SHARP = {
    "sam": lambda opaque: gx.contrib.sam(gx.sgd(0.1), gx.sgd(0.05), opaque_mode=opaque),
    "gsam": sharp(gx.gsam),
    "wsam": sharp(gx.wsam, learning_rate=0.1),
    "looksam": sharp(gx.looksam, period=2),
}
DIFFERENTIATED = {
    **{f"{name}, {how}": (make, how) for name, make in SHARP.items() for how in (True, False)},
    "lbfgs": (lambda _: gx.lbfgs(), None),
    "newton_cg": (lambda _: gx.newton_cg(), None),
    "backtracking": (lambda _: gx.chain(gx.sgd(1.0), SEARCH), None),
    "lbfgs_steps": (lambda _: gx.lbfgs_steps(), None),
}
SEARCH = gx.scale_by_backtracking_linesearch(5, store_grad=True)


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_a_step_leaves_what_has_no_gradient_and_moves_the_rest(name):
    make, how = DIFFERENTIATED[name]
    ends = []
    for params, loss in ((MIXED, of_mixed), (ALONE, of_alone)):
        tx = make(how)
        p, state, step = jax.tree.map(jnp.copy, params), tx.init(params), gx.make_step(tx, loss)
        for _ in range(3):
            p, state, _ = step(p, state)
        ends.append(p)
    assert set(ends[0]) == set(MIXED) and np.any(ends[0]["w"] != MIXED["w"])
    np.testing.assert_allclose(ends[0]["w"], ends[1]["w"], rtol=1e-4)
    assert np.all(ends[0]["n"] == MIXED["n"]) and ends[0]["key"] == MIXED["key"]


@pytest.mark.parametrize("name", SHARP)
def test_the_gradients_of_a_climb_may_have_holes_or_float0(name):
    tx, alone = SHARP[name](True), SHARP[name](True)
    whole = jax.grad(of_mixed, allow_int=True)
    g = whole(MIXED)

    def holes(p, i):
        return {k: x if k == "w" else None for k, x in whole(p).items()}

    expected, _ = alone.update(
        {"w": g["w"]}, alone.init(ALONE), ALONE, grad_fn=lambda p, i: jax.grad(of_alone)(p)
    )
    for grad_fn in (lambda p, i: whole(p), holes):
        updates, _ = tx.update(g, tx.init(MIXED), MIXED, grad_fn=grad_fn)
        np.testing.assert_allclose(updates["w"], expected["w"], rtol=1e-6)
    with pytest.raises(TypeError) as caught:
        tx.update(g, tx.init(MIXED), MIXED, grad_fn=lambda p, i: jax.grad(of_mixed)(p))
    assert any("allow_int=True" in note for note in caught.value.__notes__)


def test_the_functions_that_differentiate_leave_holes():
    value, grads = gx.compute_gradients(of_mixed, MIXED)
    expected = jax.grad(of_alone)(ALONE)["w"]
    np.testing.assert_allclose(grads["w"], expected)
    assert [grads[k] for k in ("n", "on", "key")] == [None] * 3 and value == of_mixed(MIXED)
    with pytest.raises((TypeError, ValueError), match=r"\['n'\] has dtype int32"):
        gx.compute_gradients(of_mixed, MIXED, var_list=["w", "n"])
    with pytest.raises((TypeError, ValueError), match=r"\['n'\] has dtype int32"):
        gx.compute_gradients(lambda p: 1.0, {"n": MIXED["n"]})
    tx = gx.lbfgs()
    value, grads = gx.value_and_grad_from_state(of_mixed)(MIXED, state=tx.init(MIXED))
    np.testing.assert_allclose(grads["w"], expected)
    v = {**dict.fromkeys(MIXED), "w": jnp.ones(3)}
    product = gx.curvature.hessian_product(of_mixed)(MIXED, v)
    np.testing.assert_allclose(product["w"], [2.0, 3.0, 6.0])


@pytest.mark.parametrize("tx", [gx.sgd(0.1), gx.lbfgs(), gx.newton_cg(), gx.lbfgs_steps()])
def test_minimize_leaves_what_has_no_gradient(tx):
    ours, alone = (
        gx.minimize(loss, params, tx, max_evaluations=8)
        for loss, params in ((of_mixed, MIXED), (of_alone, ALONE))
    )
    np.testing.assert_allclose(ours.params["w"], alone.params["w"], rtol=1e-6)
    assert ours.params["key"] == MIXED["key"] and np.all(ours.params["n"] == MIXED["n"])
    with pytest.raises(TypeError, match=r"minimize: parameter \['n'\] has dtype int32"):
        gx.minimize(of_mixed, {"n": MIXED["n"]}, tx)


def test_what_compiles_a_step_says_how_to_part_a_model():
    tx = gx.sgd(0.1)
    step, holder, state = gx.make_step(tx, loss), gx.Optimizer(tx), tx.init(MODEL)
    grads = eqx.filter_grad(loss)(MODEL)
    for name, call in (
        ("make_step", lambda: step(MODEL, state)),
        ("make_step", lambda: step.lower(MODEL, state)),
        ("Optimizer", lambda: holder.minimize(loss, MODEL)),
        ("Optimizer", lambda: holder.compute_gradients(loss, MODEL)),
        ("Optimizer", lambda: holder.apply_gradients(grads, MODEL)),
        ("Optimizer", lambda: gx.Optimizer(tx, MODEL)),
    ):
        with pytest.raises(TypeError, match=rf"^{name}: parameter \.activation is .*eqx.partition"):
            call()
    params, rest = eqx.partition(MODEL, eqx.is_array)
    step = gx.make_step(tx, lambda p: loss(eqx.combine(p, rest)))
    assert step(jax.tree.map(jnp.copy, params), tx.init(params))[2] == loss(MODEL)
    # What is not compiled takes a model as it is.
    value, grads = gx.compute_gradients(loss, MODEL)
    moved, _ = gx.apply_gradients(tx, grads, state, MODEL)
    assert value == loss(MODEL) > loss(moved)
    assert loss(gx.minimize(loss, MODEL, tx, max_evaluations=4).params) < loss(MODEL)


# ---------------------------------------------------------------------------- sparse arrays of JAX


def sparse_loss(p):
    return jnp.sum((p["w"] @ p["b"] - 1) ** 2)


DENSE = {"w": jnp.diag(jnp.arange(1.0, 4.0)).at[0, 2].set(-0.5), "b": jnp.linspace(0.5, 1.0, 3)}
SPARSE_GRADIENTS = {
    "allow_int": lambda p: jax.grad(sparse_loss, allow_int=True)(p),
    "sparse.grad": lambda p: jax.experimental.sparse.grad(sparse_loss)(p),
    "compute_gradients": lambda p: gx.compute_gradients(sparse_loss, p)[1],
    "equinox": eqx.filter_grad(sparse_loss),
}
SPARSE_RULES = [
    gx.sgd(0.1, momentum=0.9),
    gx.chain(gx.clip_by_global_norm(0.1), gx.adamw(0.1)),
    gx.muon(0.1),
    gx.masked(gx.adam(0.1), gx.path_matches("w")),
    gx.quantize_state(gx.adam(0.1), min_size=0),
    gx.apply_if_finite(gx.moving_average(gx.lion(0.1), 0.9), 3),
]


@pytest.mark.parametrize(
    "kind, tx", [*(("BCOO", tx) for tx in SPARSE_RULES), ("BCSR", SPARSE_RULES[1])], ids=str
)
def test_a_sparse_array_of_jax_steps_as_its_values(kind, tx):
    sparse = pytest.importorskip("jax.experimental.sparse")
    array = getattr(sparse, kind).fromdense(DENSE["w"])
    fixed = jax.tree.leaves(array)[1:]

    def of_data(p):
        return sparse_loss(p | {"w": type(array)((p["w"], *fixed), shape=(3, 3))})

    data = {"w": array.data, "b": DENSE["b"]}
    state = tx.init(data)
    for _ in range(3):
        updates, state = tx.update(jax.grad(of_data)(data), state, data)
        data = gx.apply_updates(data, updates)
    for name, grad in SPARSE_GRADIENTS.items():
        params = DENSE | {"w": array}
        now = tx.init(params)
        for _ in range(3):
            updates, now = jax.jit(tx.update)(grad(params), now, params)
            params = gx.apply_updates(params, updates)
        np.testing.assert_allclose(params["w"].data, data["w"], rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(params["b"], data["b"], rtol=1e-5, err_msg=name)
        for x, old in zip(jax.tree.leaves(params["w"])[1:], fixed, strict=True):
            np.testing.assert_array_equal(x, old)
        sizes = [sum(x.size for x in jax.tree.leaves(s)) for s in (now, state)]
        assert sizes[0] == sizes[1], name  # nothing is kept for the indices


def test_a_step_trains_a_sparse_array_of_jax():
    sparse = pytest.importorskip("jax.experimental.sparse")
    params = DENSE | {"w": sparse.BCOO.fromdense(DENSE["w"])}
    tx = gx.adam(0.1)
    moved, state, loss = gx.make_step(tx, sparse_loss)(
        jax.tree.map(jnp.copy, params), tx.init(params)
    )
    np.testing.assert_array_equal(moved["w"].indices, params["w"].indices)
    assert sparse_loss(moved) < loss
    pickled = pickle.loads(pickle.dumps(state))
    assert jax.tree.structure(pickled) == jax.tree.structure(state)
    # A loop that adds whole trees is stopped before it adds indices to indices.
    updates, _ = tx.update(sparse.grad(sparse_loss)(params), state, params)
    with pytest.raises(TypeError):
        jax.tree.map(jnp.add, params, updates)


def test_a_sparse_array_of_jax_on_one_side_only_is_refused():
    sparse = pytest.importorskip("jax.experimental.sparse")
    params = DENSE | {"w": sparse.BCOO.fromdense(DENSE["w"])}
    grads = sparse.grad(sparse_loss)(params)
    words = r"\['w'\] is a BCOO of jax\.experimental\.sparse on one side only: .* \.todense\(\)\."
    for tx in (gx.sgd(0.1), gx.adam(0.1), gx.clip_by_global_norm(1.0), gx.muon(0.1)):
        for g, p in ((grads, DENSE), (DENSE, params)):
            with pytest.raises((TypeError, ValueError), match=words):
                tx.update(g, tx.init(p), p)


LONG = np.dtype(np.longdouble)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (scipy.sparse.csr_matrix(np.eye(2)), r"a csr_matrix of SciPy, .* let its array \.data be"),
        (scipy.sparse.coo_array(np.eye(2)), r"a coo_array of SciPy, which JAX does not know"),
        (np.array([1.0, None], object), r"an array of dtype object, which JAX does not have; make"),
        (np.array(["a"]), "an array of dtype <U1, which JAX does not have"),
        (
            np.array(["2020"], "datetime64[D]"),
            r"an array of dtype datetime64\[D\], which JAX",
        ),
        (
            np.zeros(2, [("a", float)]),
            r"an array of dtype \[\('a', '<f8'\)\], which JAX",
        ),
        pytest.param(
            np.ones(2, LONG),
            f"an array of dtype {LONG}, which JAX does not have",
            marks=pytest.mark.skipif(np.float64 == LONG, reason="no such dtype here"),
        ),
    ],
)
def test_arrays_that_jax_does_not_have_are_refused_by_init(x, words):
    params = {"w": x, "b": jnp.ones(2)}
    for tx in (gx.adam(0.1), gx.moving_average(gx.sgd(0.1), 0.9)):
        name = "adam" if tx == gx.adam(0.1) else "moving_average"
        with pytest.raises(TypeError, match=rf"^{name}: parameter \['w'\] is {words}"):
            tx.init(params)
