"""The doors on the row-sparse gradient of a table, each with what its original does with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.compat import keras, returnn, tf1, tf_contrib
from tests import references as ref
from tests.compat.test_doors import DOORS, FIRST, HAT, RATE, clipped, down, rate
from tests.references import as_tree, row_sparse as tables

pytestmark = pytest.mark.numeric

N = 7  # rows of the table
FADING = keras.InverseTimeDecay(0.1, 2, 1.0)


def fading(g, p, t):
    """A decay of weights that follows the global step."""
    return g - 0.1 / (1 + (t - 1 + FIRST) / 2) * p


# Further arguments than in tests/compat/test_doors.py, and doors that it does not have.
MORE = {
    "tf1.RMSProp/plain": (
        tf1.RMSProp(0.1, 0.8, epsilon=0.1),
        [ref.rms(0.8, 0.1, 1.0), down(0.1), ref.trace(0.0)],
    ),
    "contrib.AdamW/falling": (
        tf_contrib.AdamW(FADING, 0.1, 0.8, 0.9, 0.1),
        [HAT, down(0.1), ref.stateless(fading)],
    ),
    "contrib.AdamW/others": (
        tf_contrib.AdamW(0.2, 0.1, 0.8, 0.9, 0.1, decay_var_list=["b", "s"]),
        [HAT, down(0.1), ref.only(lambda p: p.ndim < 2, ref.decay_down(0.2))],
    ),
    "contrib.MomentumW/table": (
        tf_contrib.MomentumW(0.2, RATE, 0.8, decay_var_list=["w"]),
        [
            ref.trace(0.8),
            down(rate),
            ref.only(lambda p: p.ndim == 2, ref.decay_down(0.2)),
        ],
    ),
    "contrib.LARS/plain": (
        tf_contrib.LARS(0.1, 0.8, 0.1, 0.05),
        [ref.lars_sum(0.1, 0.05, 0.0), down(0.1), ref.trace(0.8)],
    ),
    "returnn.CustomGradientDescent": (returnn.CustomGradientDescent(RATE), [down(rate)]),
    "returnn.Nadam": (
        returnn.Nadam(0.1, 0.8, 0.9, 0.1),
        [ref.adam_hat(0.8, 0.9, 0.1, True), down(0.1)],
    ),
    "keras.SGD/values": (
        keras.SGD(0.1, 0.8, clipvalue=0.3),
        [*clipped(0.3), down(0.1), ref.trace(0.8)],
    ),
    "keras.Adagrad/each": (
        keras.Adagrad(0.1, epsilon=0.1, clipnorm=0.5),
        [*clipped(each=0.5), ref.adagrad_outside(0.1, 0.1), down(0.1)],
    ),
    "keras.Nadam/together": (
        keras.Nadam(0.1, 0.8, 0.9, 0.1, global_clipnorm=0.5),
        [*clipped(together=0.5), ref.keras_nadam(0.8, 0.9, 0.1, 0.004), down(0.1)],
    ),
    "keras.Adam/together": (
        keras.Adam(0.1, 0.8, 0.9, 0.1, amsgrad=True, clipvalue=0.9, global_clipnorm=0.5),
        [*clipped(0.9, together=0.5), ref.keras_amsgrad(0.8, 0.9, 0.1), down(0.1)],
    ),
}
EVERY = {k: door for k, door in (DOORS | MORE).items() if k != "returnn.AMSGrad"}

# What the gradients of a table mean, if not `tables.rows`; of a door, or of one choice of its
# arguments.
MEANING = {
    "tf1.Adam": tables.dense,
    "contrib.AdamGS": tables.dense,
    "contrib.AdamW": tables.adamw,
    "contrib.AddSign": tables.slots,
    "contrib.PowerSign": tables.slots,
    "contrib.LARS": tables.lars,
    "contrib.Nadam": tables.slots,
    "returnn.CustomAdam": tables.last_slice,
    "returnn.CustomGradientDescent": tables.raw,
    "returnn.GradVarianceScaled": lambda parts: tables.variance(0.8, 0.9, 0.1, 0.1),
    "returnn.Nadam": tables.slots,
    "returnn.NeuralOptimizer1": lambda parts: tables.neural(0.8, 0.3, 0.1),
    "returnn.NormalizedSGD": tables.raw,
    "keras.Adam": tables.dense,
    "keras.Nadam": tables.slots,
    "keras.RMSprop": tables.slots,
    "keras.RMSprop/momentum": tables.rows,
}
# How many of the first parts are clips, which see the slices of all tables.
CLIPS = {
    "keras.SGD/decay": 2,
    "keras.RMSprop": 1,
    "keras.Adam": 2,
    "keras.Adam/clip to nothing": 1,
    "keras.SGD/values": 1,
    "keras.Adagrad/each": 1,
    "keras.Nadam/together": 1,
    "keras.Adam/together": 2,
}


def meaning(name):
    return MEANING.get(name, MEANING.get(name.split("/")[0], tables.rows))


def start():
    rng = np.random.default_rng(3)
    draw = {k: rng.normal(size=s) for k, s in [("b", (4,)), ("s", ()), ("w", (N, 3))]}
    return {k: jnp.asarray(x, jnp.float32) for k, x in draw.items()}


def slices(seed, n=6, among=N - 2):
    """Rows of the table in any order, some of them several times, and one of a zero gradient."""
    rng = np.random.default_rng(seed)
    indices, values = rng.integers(0, among, n), rng.normal(size=(n, 3)).astype(np.float32)
    values[indices == indices[0]] = 0
    return indices.astype(np.int32), values


def drawn(seed):
    """Gradients, row-sparse with padding for the table; and the same gradients in NumPy."""
    rng = np.random.default_rng(seed)
    b, s = (rng.normal(size=n).astype(np.float32) for n in ((4,), ()))
    indices, values = slices(seed)
    padded = np.append(values[:2], [[1e9] * 3], 0), values[2:]
    w = gx.sparse.RowSparse(
        np.concatenate([indices[:2], [N], indices[2:]]), np.concatenate(padded), N
    )
    grads = {"b": jnp.asarray(b), "s": jnp.asarray(s), "w": w}
    return grads, [np.asarray(x, np.float64) for x in (b, s)], indices, values.astype(np.float64)


@pytest.mark.parametrize("name", EVERY)
def test_every_door_treats_rows_as_the_original_does(name):
    tx, parts = EVERY[name]
    clips = CLIPS.get(name, 0)
    first, rest = ref.sequence(*parts[:clips]), parts[clips:]
    others, table = as_tree(ref.sequence(*rest)), meaning(name)(rest)
    tree = start()
    wide = [np.asarray(p, np.float64) for p in jax.tree.leaves(tree)]
    theirs = first.start(wide), others.start(wide[:2]), table.start(wide[2])
    state, begun, update = tx.init(tree), [p.copy() for p in wide], jax.jit(tx.update)
    for t in range(1, 9):
        grads, dense, indices, values = drawn(t)
        given, clipping = first.step([*dense, values], theirs[0], [*wide[:2], wide[2][indices]], t)
        us, of_others = others.step(given[:2], theirs[1], wide[:2], t)
        u, of_table = table.step(indices, given[2], theirs[2], wide[2], t)
        wide = [p + u for p, u in zip(wide, [*us, u], strict=True)]
        theirs = clipping, of_others, of_table
        updates, state = update(grads, state, tree, step=jnp.int32(FIRST + t - 1))
        tree = gx.apply_updates(tree, updates)
    for ours, expected, was in zip(jax.tree.leaves(tree), wide, begun, strict=True):
        moved = max(np.max(np.abs(expected - was)), 1e-3)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5 * moved + 3e-7)


def of_rows(state):
    """Every array of a state that has one row for each of the table's."""
    return [np.asarray(x) for x in jax.tree.leaves(state) if jnp.shape(x)[:1] == (N,)]


# Which untouched rows move (of the parameters) and change (of the slots).
ELSEWHERE = {
    tables.rows: (False, False),
    tables.dense: (True, True),
    tables.adamw: (True, True),
    tables.lars: (False, False),
    tables.slots: (False, True),
    tables.raw: (False, False),
    tables.last_slice: (False, False),
    MEANING["returnn.NeuralOptimizer1"]: (False, True),
    MEANING["returnn.GradVarianceScaled"]: (False, True),
}


@pytest.mark.parametrize("name", [name for name in EVERY if name != "keras.Adam/clip to nothing"])
def test_every_door_moves_the_rows_that_the_original_moves(name):
    tx, tree = EVERY[name][0], start()
    everywhere = tree | {"w": gx.sparse.RowSparse(np.arange(N), tree["w"] + 2, N)}
    updates, state = tx.update(everywhere, tx.init(tree), tree)
    tree = gx.apply_updates(tree, updates)
    few = {"b": tree["b"], "s": tree["s"], "w": gx.sparse.RowSparse(*slices(1), N)}
    updates, after = jax.jit(tx.update)(few, state, tree)
    moved = gx.apply_updates(tree, updates)["w"]
    rest = np.setdiff1d(np.arange(N), slices(1)[0])
    moves, changes = ELSEWHERE[meaning(name)]
    same = np.asarray(moved == tree["w"])[rest]
    assert not same.any() if moves else same.all()
    assert isinstance(updates["w"], gx.sparse.RowSparse) is not moves
    slots = zip(of_rows(state), of_rows(after), strict=True)
    kept = [np.array_equal(old[rest], new[rest]) for old, new in slots]
    assert not all(kept) if changes else all(kept)
    # Without jit it is the same.
    eager, eager_state = tx.update(few, state, tree)
    np.testing.assert_allclose(gx.apply_updates(tree, eager)["w"], moved, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(of_rows(after), of_rows(eager_state), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_every_door_takes_narrow_tables(name):
    """Updates have the dtype of the gradients, and the state keeps its dtypes."""
    tx = EVERY[name][0]
    tree = jax.tree.map(lambda p: p.astype(jnp.bfloat16), start())
    indices, values = slices(1)
    grads = tree | {"w": gx.sparse.RowSparse(indices, jnp.asarray(values, jnp.bfloat16), N)}
    state = jax.eval_shape(tx.init, tree)
    updates, after = jax.eval_shape(tx.update, grads, state, tree)
    assert after == state
    assert all(updates[k].dtype == jnp.bfloat16 for k in tree)


def test_a_door_refuses_rows_where_the_original_does():
    tree = start()
    grads = drawn(1)[0]
    for tx, name in [
        (tf_contrib.GGT(), "scale_by_ggt: looks at the whole tree, "),
        (returnn.AMSGrad(), "scale_by_amsgrad: is for dense gradients only here, "),
        (returnn.AMSGrad(decay=True), "scale_by_amsgrad: is for dense gradients only here, "),
    ]:
        with pytest.raises(TypeError) as caught:
            tx.update(grads, tx.init(tree), tree)
        message = str(caught.value)
        assert message.startswith(name) and "of ['w']" in message and "densify()" in message
        dense = gx.chain(gx.densify(), tx)
        dense.update(grads, dense.init(tree), tree)


@pytest.mark.parametrize("name", ["tf1.Adagrad", "contrib.RegAdagrad"])
def test_a_regularizers_gradient_leaves_the_slots_alone(name):
    tx, tree = EVERY[name][0], start()
    _, state = tx.update(drawn(1)[0], tx.init(tree), tree)
    updates, after = jax.jit(tx.update)(drawn(2)[0], state, tree, update_slots=False)
    for old, new in zip(of_rows(state), of_rows(after), strict=True):
        np.testing.assert_array_equal(old, new)
    assert np.any(np.asarray(updates["w"].values))


@pytest.mark.parametrize("door", [tf1.Ftrl, keras.Ftrl])
def test_a_row_without_sums_stays_finite(door):
    """There the original's kernel for rows computes 0 / 0; its dense one gives 0, as here."""
    tx = door(0.1, initial_accumulator_value=0.0)
    tree = {"w": jnp.ones((N, 3))}
    zero = {"w": gx.sparse.RowSparse(np.asarray([2, 2]), np.zeros((2, 3), np.float32), N)}
    updates, _ = tx.update(zero, tx.init(tree), tree)
    expected = np.ones((N, 3))
    expected[2] = 0
    np.testing.assert_array_equal(gx.apply_updates(tree, updates)["w"], expected)


# --------------------------------------------------------------------------------------- Shampoo


def rising(T):
    """Of an array and of a number."""
    return T / (T + 1)


# As in tests/interop/test_parity_matrix.py, what is ill-conditioned in float32 has a larger
# epsilon.
SHAMPOO = {
    "both diagonal": ((N, 3), {"max_matrix_size": 2}),
    "one whole": ((N, 3), {"max_matrix_size": 3, "epsilon": 0.1}),
    "three axes": ((N, 2, 5), {"max_matrix_size": 4, "epsilon": 0.1, "alpha": 0.7}),
    "of size 1": ((N, 1), {"max_matrix_size": 1}),
    "vector": ((N,), {"max_matrix_size": 0, "learning_rate": 0.3}),
    "weighted": ((N, 3), {"max_matrix_size": 3, "mat_gbar_weight": 0.3, "epsilon": 0.1}),
    "late roots": ((N, 3), {"max_matrix_size": 3, "svd_interval": 3, "epsilon": 0.1}),
    "late matrices": (
        (N, 3),
        {"max_matrix_size": 3, "precond_update_interval": 2, "epsilon": 0.1},
    ),
    "functions": (
        (N, 3),
        {
            "max_matrix_size": 3,
            "learning_rate": rising,
            "mat_gbar_weight": rising,
            "alpha": rising,
            "epsilon": 0.1,
        },
    ),
    "iterative": (
        (N, 3),
        {"max_matrix_size": 3, "use_iterative_root": True, "epsilon": 0.1},
    ),
}


def walk(tx, shape, table, steps=8):
    """The parameters after some steps, as ours and as the reference, and the last states."""
    rng = np.random.default_rng(0)
    p = rng.normal(size=shape)
    params = {"w": jnp.asarray(p, jnp.float32)}
    state, theirs, update = tx.init(params), table.start(p), jax.jit(tx.update)
    for t in range(1, steps + 1):
        indices = rng.integers(0, N - 2, 5).astype(np.int32)
        values = rng.normal(size=(5, *shape[1:]))
        u, theirs = table.step(indices, values, theirs, p, t)
        p = p + u
        padded = np.append(values, np.ones((1, *shape[1:])), 0).astype(np.float32)
        grads = {"w": gx.sparse.RowSparse(np.append(indices, N), padded, N)}
        updates, state = update(grads, state, params)
        assert isinstance(updates["w"], gx.sparse.RowSparse)
        params = gx.apply_updates(params, updates)
    return params["w"], p, state, theirs


@pytest.mark.parametrize("name", SHAMPOO)
def test_shampoo_of_rows_is_that_of_numpy(name):
    shape, kwargs = SHAMPOO[name]
    reference = {k: v for k, v in kwargs.items() if k != "use_iterative_root"}
    tx = tf_contrib.Shampoo(global_step=None, **kwargs)
    ours, theirs, state, (G, _) = walk(tx, shape, tables.shampoo(**reference))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-5)
    for statistic, expected in zip(state[0].statistics["w"], G, strict=True):
        np.testing.assert_allclose(statistic, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state[0].gbar["w"], np.zeros(shape))


def test_the_weight_of_the_average_does_not_matter_to_shampoo_of_rows():
    tree, grads = {"w": start()["w"]}, {"w": drawn(1)[0]["w"]}
    plain, heavy = (tf_contrib.Shampoo(max_matrix_size=3, gbar_weight=w) for w in (1.0, 5.0))
    updates = [tx.update(grads, tx.init(tree), tree)[0]["w"].values for tx in (plain, heavy)]
    np.testing.assert_array_equal(*updates)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"max_matrix_size": N},
        {"max_matrix_size": 3, "gbar_decay": 0.5, "mat_gbar_decay": 0.5},
        {"max_matrix_size": 3, "gbar_decay": lambda T: 0 * T},
    ],
)
def test_shampoo_densifies_rows_that_it_cannot_keep_sparse(kwargs):
    tx, tree, grads = tf_contrib.Shampoo(**kwargs), start(), drawn(1)[0]
    found, state = tx.update(grads, tx.init(tree), tree)
    arrays = grads | {"w": grads["w"].to_dense()}
    expected, same = tx.update(arrays, tx.init(tree), tree)
    for ours, theirs in zip(
        jax.tree.leaves((found, state)), jax.tree.leaves((expected, same)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.9, lambda T: T / T])
def test_shampoo_cannot_let_untouched_rows_decay(decay):
    tx, tree = tf_contrib.Shampoo(max_matrix_size=3, mat_gbar_decay=decay), start()
    with pytest.raises(ValueError) as caught:
        tx.update(drawn(1)[0], tx.init(tree), tree)
    assert "step_by_shampoo: mat_gbar_decay must be 1.0 for the row-sparse gradient of ['w']" in (
        str(caught.value)
    )
    assert "densify()" in str(caught.value)


def test_shampoo_takes_rows_and_arrays_in_turns():
    """A table's gradient may be row-sparse in one step and an array in the next."""
    tx, tree = tf_contrib.Shampoo(max_matrix_size=3, epsilon=0.1), start()
    state = tx.init(tree)
    for t in (1, 2):
        grads = drawn(t)[0]
        updates, state = tx.update(grads, state, tree)
        tree = gx.apply_updates(tree, updates)
        updates, state = tx.update(grads | {"w": grads["w"].to_dense()}, state, tree)
        tree = gx.apply_updates(tree, updates)
    assert all(np.isfinite(p).all() for p in jax.tree.leaves(tree))
