"""Row-sparse gradients of unmodified models, beside `jax.grad`."""

import functools
import inspect

import equinox as eqx
import flax.linen as nn
import haiku as hk
import hypothesis
import jax
import jax.extend.core as extend
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec as P

from gradxform.leaves.masks import path_matches
from gradxform.leaves.row_sparse import RowSparse
from gradxform.sparse.gradient import grad, value_and_grad

pytestmark = pytest.mark.numeric

is_rows = functools.partial(lambda kind, x: isinstance(x, kind), RowSparse)
IDS = jnp.array([[1, 2, 1], [0, 6, -1]])
ODD = jnp.array([9, -9, 3, -1, 7, -7, -8])  # of 7 rows; some out of range
EMBEDDING = path_matches("embedding")


def tables(path, leaf):
    return path[-1] in {"t", "u", "v"}


def params(rows=7):
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"t": (rows, 3), "u": (rows, 2, 3), "v": (rows,), "w": (3, 3)}
    return {k: jax.random.normal(key, shapes[k]) for k, key in zip(shapes, keys, strict=True)}


def sq(x):
    return jnp.sum(x * x)


def densified(tree):
    return jax.tree.map(lambda x: x.to_dense() if is_rows(x) else x, tree, is_leaf=is_rows)


def close(ours, theirs, tol=1e-6):
    def compare(x, y):
        assert x.shape == y.shape and x.dtype == y.dtype
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        np.testing.assert_allclose(x, y, rtol=tol, atol=tol)

    jax.tree.map(compare, ours, theirs)


def beside(loss, p, where=tables, tol=1e-6, mixed="error"):
    """Return our gradients, after comparing them and the loss to those of JAX."""

    @jax.jit
    def both(p):
        value, gradients = value_and_grad(loss, where, mixed=mixed)(p)
        return gradients, (value, densified(gradients)), jax.value_and_grad(loss)(p)

    gradients, ours, theirs = both(p)
    close(ours, theirs, tol)
    return gradients


@jax.custom_jvp
def tripled(table, w, ids):
    return table[ids] @ w


@tripled.defjvp
def _(primals, tangents):
    table, w, ids = primals
    return tripled(*primals), 3 * (tripled(tangents[0], w, ids) + table[ids] @ tangents[1])


# ---------------------------------------------------------------------------------- row lookups

# What is looked up, and the rows that the gradient then holds.
LOOKUPS = {
    "several": (lambda p: sq(p["t"][IDS] @ p["w"]) + sq(p["t"][2]) + sq(p["t"][ODD]), {"t": 14}),
    "tables": (lambda p: sq(p["t"][IDS]) + sq(p["u"][IDS]) + sq(p["v"][IDS]), dict(t=6, u=6, v=6)),
    "modes": (
        lambda p: (
            jnp.nansum(jnp.take(p["t"], ODD, axis=0) ** 2)
            + sq(jnp.take(p["u"], ODD, axis=0, mode="clip"))
            + sq(jnp.take(p["u"], ODD, axis=0, mode="wrap"))
            + sq(p["v"].at[ODD].get(mode="fill", fill_value=2.0))
            + sq(p["u"].at[ODD].get(mode="clip"))
            + sq(p["t"].at[ODD].get(mode="promise_in_bounds"))
            + sq(p["t"][jnp.array([250, 3, 6], jnp.uint8)])
        ),
        {"t": 17, "u": 21, "v": 7},
    ),
    "numbers": (
        lambda p: (
            (sq(p["t"][3]) + sq(p["t"][-1]) + sq(p["v"][2]))
            + (sq(p["t"][IDS[0, 0]]) + p["v"][IDS[1, 2]])
            + sq(jax.lax.dynamic_index_in_dim(p["u"], IDS[0, 1]))
        ),
        {"t": 3, "u": 1, "v": 2},
    ),
    "slices": (
        lambda p: (
            (sq(p["t"][:4]) + sq(p["t"][5:1:-2]) + sq(p["u"][1:6:2]))
            + sq(jax.lax.dynamic_slice_in_dim(p["t"], 5 + IDS[0, 0], 4))
        ),
        {"t": 10, "u": 3},
    ),
    "vmap": (lambda p: sq(jax.vmap(lambda i: p["t"][i], out_axes=1)(ODD)), {"t": 7}),
    "vmap_window": (
        lambda p: sq(jax.vmap(lambda i: jax.lax.dynamic_slice_in_dim(p["u"], i, 2))(ODD)),
        {"u": 14},
    ),
    "vmap_loss": (
        lambda p: jax.vmap(lambda q, i: sq(q["t"][i] @ q["w"]), (None, 0))(p, IDS).sum(),
        {"t": 6},
    ),
    "empty": (lambda p: sq(p["t"][jnp.zeros((0, 3), jnp.int32)]) + sq(p["w"]), {}),
    "computed_ids": (lambda p: sq(p["t"][jnp.argmax(p["w"] @ p["w"], -1)]), {"t": 3}),
    "cast": (lambda p: sq(p["t"].astype(jnp.float16).astype(jnp.float32)[IDS]), {"t": 6}),
    "copied": (
        lambda p: sq(jax.lax.optimization_barrier((p["w"], jnp.copy(p["t"])))[1][0]),
        {"t": 1},
    ),
    "jit": (lambda p: sq(jax.jit(lambda t, w: t[IDS] @ w)(p["t"], p["w"])), {"t": 6}),
    "jit_of_table": (
        lambda p: sq(jax.jit(lambda t: (t + 0, jnp.copy(t)))(p["t"])[1][IDS]),
        {"t": 6},
    ),
    "fori": (lambda p: jax.lax.fori_loop(0, 3, lambda k, c: c + sq(p["t"][k]), 0.0), {"t": 3}),
    "map": (lambda p: sq(jax.lax.map(lambda i: p["t"][i], ODD, batch_size=4)), {"t": 7}),
    "nested_scans": (
        lambda p: jax.lax.scan(
            lambda c, row: jax.lax.scan(lambda d, i: (d + sq(p["t"][i] * p["v"][i]), 0), c, row),
            0.0,
            IDS,
        )[0],
        {"t": 6, "v": 6},
    ),
    "scan_reversed": (
        lambda p: sq(
            jax.lax.scan(
                lambda c, i: (c * 0.5 + sq(p["t"][i]), c * p["u"][i]), 1.0, ODD, reverse=True
            )[1]
        ),
        {"t": 7, "u": 7},
    ),
    "scan_dead_carry": (
        lambda p: sq(jax.lax.scan(lambda c, i: (c + p["t"][i], c.sum()), jnp.zeros(3), ODD)[1]),
        {"t": 7},
    ),
    "custom_jvp": (lambda p: sq(tripled(p["t"], p["w"], IDS)), {"t": 6}),
    "custom_jvp_in_scan": (
        lambda p: jax.lax.scan(lambda c, i: (c + sq(tripled(p["t"], p["w"], i)), 0), 0.0, IDS)[0],
        {"t": 6},
    ),
    "custom_jvp_in_remat": (
        lambda p: sq(jax.checkpoint(lambda t, w: tripled(t, w, IDS))(p["t"], p["w"])),
        {"t": 6},
    ),
    "stopped": (lambda p: sq(jax.lax.stop_gradient(p["t"])[IDS]) + sq(p["t"][2]), {"t": 1}),
    "without_derivative": (
        lambda p: sq(p["t"][IDS]) * jnp.sum(p["t"] > 0).astype(jnp.float32) + p["v"].argmax(),
        {"t": 6},
    ),
    "stopped_norm": (
        lambda p: sq(p["t"][IDS]) / jax.lax.stop_gradient(jnp.linalg.norm(p["t"])),
        {"t": 6},
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_every_form_of_lookup_gives_rows(name):
    loss, rows = LOOKUPS[name]
    with jax.numpy_dtype_promotion("standard" if name == "without_derivative" else "strict"):
        found = beside(loss, params())
    held = {k: g.indices.shape[0] for k, g in found.items() if is_rows(g)}
    assert held == {"t": 0, "u": 0, "v": 0, **rows}


def test_ids_of_64_bits_are_accepted():
    with jax.enable_x64(True):
        ids = jnp.array([1, 2, -1, 2**40, -(2**40), 9])
        p = jax.tree.map(lambda x: x.astype(jnp.float32), params())

        def loss(p):
            rows = p["u"].at[ids.astype(jnp.uint64)].get(mode="clip")
            return sq(p["t"][ids]) + sq(p["v"].at[ids].get(mode="fill", fill_value=0)) + sq(rows)

        assert beside(loss, p)["u"].indices.dtype == jnp.int32


def test_a_gradient_goes_back_through_each_dtype_of_its_table():
    ids, weights = jnp.array([4, 0, 2]), jax.random.normal(jax.random.key(1), (3, 3))

    def loss(p):
        return jnp.sum(p["t"].astype(jnp.bfloat16).astype(jnp.float32)[ids] * weights)

    values = beside(loss, params())["t"].values
    assert np.any(np.asarray(values) != np.asarray(weights))  # they are rounded on their way


@pytest.mark.parametrize("rows", [1, 2])
def test_tables_of_one_or_two_rows_are_accepted(rows):
    p = {"t": jnp.ones((rows, 1)), "v": jnp.ones(rows)}
    ids = jnp.zeros((2, 2), jnp.int32)
    beside(lambda p: sq(p["t"][ids]) + sq(p["t"][ids, 0]) + sq(p["v"][ids]) + p["v"][ids[0, 0]], p)


def test_the_loss_keeps_its_bits():
    p = {"t": jnp.full((3, 2), -0.0)}
    assert value_and_grad(lambda p: jnp.copysign(1.0, p["t"][IDS % 3]).sum(), tables)(p)[0] == -12


def test_rows_of_bfloat16_tables_follow_jax():
    p = {k: x.astype(jnp.bfloat16) for k, x in params().items()}
    found = beside(lambda p: sq(p["t"][IDS[0]] @ p["w"]).astype(jnp.float32), p, tol=0.05)
    assert found["t"].values.dtype == jnp.bfloat16
    found = beside(
        lambda p: sq(p["t"].astype(jnp.bfloat16)[IDS]).astype(jnp.float32), params(), tol=0.05
    )
    assert found["t"].values.dtype == jnp.float32


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in extend.jaxprs_in_params(eqn.params):
            yield from equations(inner)


def test_nothing_of_the_size_of_a_table_is_made():
    def loss(p, ids):
        scanned = jax.lax.scan(lambda c, i: (c + sq(p["u"][i]), None), 0.0, ids[0])[0]
        kept = jax.checkpoint(lambda t, w: sq(t[ids] @ w))(p["t"], p["w"])
        return scanned + kept + sq(tripled(p["t"], p["w"], ids)) + sq(p["v"][ids])

    jaxpr = jax.make_jaxpr(value_and_grad(loss, tables))(params(1009), IDS).jaxpr
    sizes = {size for eqn in equations(jaxpr) for v in eqn.outvars for size in v.aval.shape}
    assert 1009 not in sizes


def test_rematerialization_is_kept():
    policy = jax.checkpoint_policies.dots_saveable

    @functools.partial(jax.checkpoint, policy=policy, prevent_cse=False)
    def block(t, w):
        return jnp.sin(jnp.sin(t[IDS] @ w))

    def loss(p):
        return sq(block(p["t"], p["w"]))

    ours = jax.make_jaxpr(value_and_grad(loss, tables))(params()).jaxpr
    theirs = jax.make_jaxpr(jax.value_and_grad(loss))(params()).jaxpr

    def remats(jaxpr):
        found = [eqn for eqn in equations(jaxpr) if "policy" in eqn.params]
        return [(eqn.params["policy"] == policy, eqn.params["prevent_cse"]) for eqn in found]

    assert remats(ours) == remats(theirs) == [(True, False)]
    beside(loss, params())


# ---------------------------------------------------------------------------------- other uses

DENSE = {
    "tied": lambda p: sq(p["t"][IDS] @ p["t"].T),
    "sum": lambda p: p["t"].sum() + sq(p["t"][IDS]),
    "columns": lambda p: sq(p["t"][IDS, 1]) + sq(jnp.take(p["t"], IDS, axis=1, mode="clip")),
    "all_rows": lambda p: sq(p["t"][:] * p["t"][IDS[0, 0]][None]),
    "cond": lambda p: jax.lax.cond(IDS[0, 0] > 0, lambda t: sq(t[IDS]), sq, p["t"]),
    "carry": lambda p: jax.lax.scan(lambda t, i: (t * 0.9, sq(t[i])), p["t"], ODD)[1].sum(),
    "scanned": lambda p: jax.lax.scan(lambda c, row: (c + sq(row), 0), 0.0, p["t"])[0],
    "in_scan": lambda p: jax.lax.scan(lambda c, i: (c + sq(p["t"] @ p["t"][i]), 0), 0.0, ODD)[0],
    "in_remat": lambda p: sq(jax.checkpoint(lambda t: t[IDS] @ t.T)(p["t"])),
    "in_jit": lambda p: sq(jax.jit(lambda t: (t.astype(jnp.float16)[IDS], t.T))(p["t"])[1]),
    "custom_jvp": lambda p: sq(jax.nn.relu(p["t"])) + sq(tripled(p["t"], p["w"], IDS)),
    "custom_vjp": lambda p: sq(halved(p["t"])) + sq(p["t"][IDS]),
    "complex": lambda p: jnp.abs(p["t"].astype(jnp.complex64)[IDS]).sum(),
}


@jax.custom_vjp
def halved(table):
    return table[IDS]


halved.defvjp(lambda t: (t[IDS], t), lambda t, g: (0.5 * jnp.zeros_like(t).at[IDS].add(g),))


@pytest.mark.parametrize("name", DENSE)
def test_a_table_with_other_uses_has_a_dense_gradient_or_an_error(name):
    def loss(p):
        return DENSE[name](p) + sq(p["u"][IDS])

    found = beside(loss, params(), mixed="dense", tol=1e-5)
    assert not is_rows(found["t"]) and is_rows(found["u"]) and is_rows(found["v"])
    with pytest.raises(ValueError, match=r"the table \['t'\] is used by") as caught:
        grad(loss, tables)(params())
    line = inspect.getsourcelines(loss)[1] + 1
    known = {f"{__file__}:{line} (", f"{__file__}:{DENSE[name].__code__.co_firstlineno} ("}
    assert any(at in str(caught.value) for at in known)


def test_the_message_names_table_line_and_remedy():
    def logits(p):
        return p["t"][IDS] @ jax.nn.relu(p["t"]).T

    def other(p):
        return jax.nn.relu(p["t"]).sum()

    for loss in (lambda p: sq(logits(p)), other):  # `relu` is traced once, and cached
        body = logits if loss is not other else other
        with pytest.raises(ValueError) as caught:
            value_and_grad(loss, tables)(params())
        at = f"{__file__}:{body.__code__.co_firstlineno + 1} ({body.__qualname__})"
        assert at.replace("<locals>.", "") in str(caught.value).replace("<locals>.", "")
        assert str(caught.value).startswith("value_and_grad: the table ['t'] is used by ")
        assert str(caught.value).endswith(
            'which is not a plain row lookup. Pass mixed="dense" for a dense gradient of this '
            "table, or leave it out of where."
        )


def test_an_error_message_needs_no_source():
    scope = {}
    exec(compile("def loss(p): return (p['t'] * 2).sum()", "<made>", "exec"), scope)
    with pytest.raises(ValueError, match=r"the table .* at <made>:1 "):
        grad(scope["loss"], tables)(params())


# ---------------------------------------------------------------------------------- any program


def wrapped(kind, f):
    """Wrap a function of a table and a shift of the indices in another such function."""

    def ruled(t, s):
        return f(t, s)

    def rule(primals, tangents):
        (t, s), (dt, _) = primals, tangents
        value, moved = jax.jvp(lambda t: f(t, s), (t,), (dt,))
        return value, 2 * moved

    custom = jax.custom_jvp(ruled)
    custom.defjvp(rule)
    return {
        "jit": jax.jit(f),
        "remat": jax.checkpoint(f),
        "vmap": lambda t, s: jax.vmap(lambda k: f(t, s + k))(jnp.arange(2)).sum(),
        "scan": lambda t, s: jax.lax.scan(
            lambda c, k: (0.5 * c + f(t, s + k), jnp.sin(c)), 0.1, jnp.arange(2)
        )[1].sum(),
        "custom_jvp": custom,
        "half_stopped": lambda t, s: f(t, s) * f(jax.lax.stop_gradient(t), s),
        "copied": lambda t, s: f(jnp.copy(t), s) + f(t, s + 1),
    }[kind]


@st.composite
def programs(draw):
    """A function of a table and a shift; and whether the table is only looked up."""
    ids = np.array(draw(st.lists(st.integers(-9, 9), max_size=4)), np.int32)
    low, high = sorted(draw(st.lists(st.integers(0, 6), min_size=2, max_size=2)))
    kinds = {
        "index": lambda t, s: t[ids + s],
        "square": lambda t, s: t[jnp.stack([ids + s, ids])],
        "clip": lambda t, s: jnp.take(t, ids + s, axis=0, mode="clip"),
        "fill": lambda t, s: t.at[ids + s].get(mode="fill", fill_value=0.5),
        "one": lambda t, s: t[s - 3],
        "slice": lambda t, s: t[low:high:2],
        "window": lambda t, s: jax.lax.dynamic_slice_in_dim(t, s, 3),
        "dense": lambda t, s: t * 2,
    }
    kind = draw(st.sampled_from([*kinds, *kinds][:-1]))

    def f(t, s):
        return jnp.sum(jnp.sin(kinds[kind](t, s)))

    for wrapper in draw(st.lists(st.sampled_from(WRAPPERS), max_size=2)):
        f = wrapped(wrapper, f)
    return f, kind != "dense"


WRAPPERS = ["jit", "remat", "vmap", "scan", "custom_jvp", "half_stopped", "copied"]


@hypothesis.settings(max_examples=15, phases=[hypothesis.Phase.generate])
@hypothesis.given(st.lists(programs(), min_size=1, max_size=2), st.sampled_from("tuv"))
def test_random_programs_follow_jax(made, table):
    def loss(p):
        shift = jnp.int32(1)
        return sum(f(p[table], shift) for f, _ in made) + sq(p["w"])

    found = beside(loss, params(), mixed="dense", tol=1e-5)
    assert is_rows(found[table]) or not all(only for _, only in made)


# ---------------------------------------------------------------------------------- models


class Linen(nn.Module):
    wrap: object = None
    dtype: object = None

    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed if self.wrap is None else self.wrap(nn.Embed)
        x = embed(7, 3, dtype=self.dtype, name="e")(ids)
        return sq(nn.Dense(2, dtype=self.dtype)(x).astype(jnp.float32))


class LinenScan(nn.Module):
    @nn.compact
    def __call__(self, ids):
        run = nn.scan(
            lambda embed, c, i: (c + sq(embed(i)), None),
            variable_broadcast="params",
            split_rngs={"params": False},
        )
        return run(nn.Embed(7, 3, name="e"), jnp.zeros(()), ids)[0]


class LinenTied(nn.Module):
    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(7, 3, name="e")
        return sq(embed.attend(nn.Dense(3)(embed(ids))))


LINEN = {
    "remat": Linen(nn.remat),
    "jit": Linen(nn.jit),
    "bfloat16": Linen(dtype=jnp.bfloat16),
    "scan": LinenScan(),
}


def started(model):
    """Return variables for a module; its own would be compiled entry by entry."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), IDS)
    return jax.tree.map(
        lambda s: np.sin(np.arange(s.size)).reshape(s.shape).astype(s.dtype), shapes
    )


@pytest.mark.parametrize("name", LINEN)
def test_a_linen_model_gives_rows(name):
    model = LINEN[name]
    variables = started(model)
    tol = 0.05 if name == "bfloat16" else 1e-6
    found = beside(lambda v: model.apply(v, IDS), variables, EMBEDDING, tol)
    rows = found["params"]["e"]["embedding"]
    assert rows.values.shape == (6, 3) and rows.values.dtype == jnp.float32


def test_a_tied_linen_embedding_is_dense_or_an_error():
    model = LinenTied()
    variables = started(model)
    beside(lambda v: model.apply(v, IDS), variables, EMBEDDING, mixed="dense", tol=1e-5)
    line = LinenTied.__call__.__wrapped__ if hasattr(LinenTied.__call__, "__wrapped__") else None
    with pytest.raises(ValueError, match=r"\['params'\]\['e'\]\['embedding'\] is used by") as found:
        grad(lambda v: model.apply(v, IDS), EMBEDDING)(variables)
    number = inspect.getsourcelines(line or LinenTied)[1] + (3 if line else 4)
    assert f"{__file__}:{number} (" in str(found.value)


class Nnx(nnx.Module):
    def __init__(self):
        self.embed = nnx.Embed(7, 3, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(3, 2, rngs=nnx.Rngs(1))

    def __call__(self, ids):
        return sq(self.head(self.embed(ids)))


def test_an_nnx_model_gives_rows():
    model = Nnx()
    graph, state = nnx.split(model)
    found = beside(lambda s: nnx.merge(graph, s)(IDS), state, EMBEDDING)
    assert is_rows(jax.tree.leaves(found, is_leaf=is_rows)[0])
    of_model = beside(lambda m: m(IDS), model, path_matches("^embed/embedding$"))
    assert isinstance(of_model, Nnx) and is_rows(jax.tree.leaves(of_model, is_leaf=is_rows)[0])


@pytest.mark.parametrize("style", ["ARRAY_INDEX", "ONE_HOT"])
def test_a_haiku_model_gives_rows(style):
    model = hk.transform(lambda ids: sq(hk.Linear(2)(hk.Embed(7, 3, lookup_style=style)(ids))))
    p = started(model)

    def loss(p):
        return model.apply(p, None, IDS)

    found = beside(loss, p, EMBEDDING, mixed="dense", tol=1e-5)
    assert is_rows(found["embed"]["embeddings"]) == (style == "ARRAY_INDEX")
    if style == "ONE_HOT":
        with pytest.raises(ValueError, match="used by dot_general at"):
            grad(loss, EMBEDDING)(p)


class Equinox(eqx.Module):
    embed: eqx.nn.Embedding
    head: eqx.nn.MLP

    def __call__(self, i):
        return sq(self.head(self.embed(i)))


def test_an_equinox_model_gives_rows():
    keys = jax.random.split(jax.random.key(0))
    model = Equinox(eqx.nn.Embedding(7, 3, key=keys[0]), eqx.nn.MLP(3, 2, 4, 1, key=keys[1]))
    arrays, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(arrays):
        return jax.vmap(jax.vmap(eqx.combine(arrays, static)))(IDS).sum()

    found = beside(loss, arrays, path_matches("embed/weight"))
    assert found.embed.weight.values.shape == (6, 3)
    # A tree of booleans may be a module, which can be called.
    chosen = eqx.tree_at(lambda m: m.embed.weight, jax.tree.map(lambda _: False, arrays), True)
    assert is_rows(jax.eval_shape(grad(loss, chosen), arrays).embed.weight)
    with pytest.raises(TypeError, match=r"\['head'\]\['activation'\] is a "):
        grad(lambda m: jax.vmap(m)(IDS[0]).sum(), path_matches("weight"))(model)


# ---------------------------------------------------------------------------------- the interface


def test_aux_keeps_its_structure():
    def loss(p):
        aux = {"norm": sq(p["t"]), "table": p["t"], "name": "x", "n": 3, "none": None}
        return sq(p["t"][IDS]), aux

    (value, aux), gradients = value_and_grad(loss, tables, has_aux=True)(params())
    (value_, aux_), gradients_ = jax.value_and_grad(loss, has_aux=True)(params())
    assert aux.pop("name") == aux_.pop("name") and type(aux.pop("n")) is type(aux_.pop("n")) is int
    close((value, aux, densified(gradients)), (value_, aux_, gradients_))
    gradients, aux = grad(loss, tables, has_aux=True)(params())
    assert is_rows(gradients["t"]) and aux["name"] == "x"


def test_argnums_and_other_arguments_are_those_of_jax():
    def loss(scale, p, q, ids, *, train):
        assert train is True  # passed on untouched
        return sq(p["t"][ids]) * scale + sq(q["t"][ids] @ q["w"])

    args = (jnp.float32(2), params(), params(), IDS)
    for argnums in ((1, 2), [1, 0], 2, -2, (-3,), np.int64(1)):
        ours = grad(loss, tables, argnums)(*args, train=True)
        theirs = jax.grad(
            loss, argnums if isinstance(argnums, int) else tuple(np.atleast_1d(argnums))
        )
        theirs = theirs(*args, train=True)
        if isinstance(argnums, np.int64):
            theirs = theirs[0]
        close(densified(ours), theirs)
        assert jax.tree.structure(ours, is_leaf=is_rows) == jax.tree.structure(theirs)
    first = grad(loss, lambda path, leaf: path == ("1", "t"), (1, 2))(*args, train=True)
    assert not is_rows(first[0]["t"]) and is_rows(first[1]["t"])


def test_tables_are_selected_by_any_mask():
    p = {"a": params(), "hole": None, "s": jnp.float32(1)}

    def loss(p):
        return sq(p["a"]["t"][IDS]) * p["s"]

    booleans = {"a": {"t": True, "u": False, "v": False, "w": np.bool_(False)}, "s": False}
    for where in (path_matches("t$"), lambda path, leaf: path == ("a", "t"), booleans):
        found = grad(loss, where)(p)
        assert is_rows(found["a"]["t"]) and found["hole"] is None
        assert sum(map(is_rows, jax.tree.leaves(found, is_leaf=is_rows))) == 1
        close(densified(found), jax.grad(loss)(p))


def refused(error, words, call):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert message.endswith((".", "?")) and "\n" not in message


def test_wrong_calls_are_refused():
    p, only_t = {"t": jnp.ones((3, 2)), "s": jnp.ones(())}, path_matches("t")

    def loss(p):
        return p["t"][IDS % 3].sum()

    call = functools.partial(refused, ValueError)
    call(["grad: mixed", "'dense'?"], lambda: grad(loss, only_t, mixed="denser"))
    call(["['s']", "shape ()"], lambda: grad(loss, path_matches("."))(p))
    call(["matches none of the parameters 's', 't'"], lambda: grad(loss, path_matches("q"))(p))
    call(["none of the leaves ()"], lambda: grad(loss, only_t)({"t": None}))
    call(["['z']", "no parameter"], lambda: grad(loss, {"t": True, "s": False, "z": True})(p))
    call(["argnums", "[0, -2]"], lambda: grad(loss, only_t, (0, -2))(p, p))
    call = functools.partial(refused, TypeError)
    call(["value_and_grad: loss_fn", "3"], lambda: value_and_grad(3, only_t))
    call(["where", "'t'"], lambda: grad(loss, "t"))
    call(["where", "None"], lambda: grad(loss, None))
    for argnums in ("a", (), True, (True,), 1.5):
        call(["argnums", repr(argnums)], lambda argnums=argnums: grad(loss, only_t, argnums))
    call(["argnums", "2"], lambda: grad(loss, only_t, 2)(p))
    call(["argnums", "the 0 given"], lambda: grad(loss, only_t)(p=p))
    for bad in (jnp.arange(3), jnp.ones((3, 2), jnp.complex64), jax.random.key(0), "x"):
        call(["['t']", "real floating"], lambda bad=bad: grad(loss, only_t)({"t": bad}))
    call(["real scalar", "(3, 2)"], lambda: grad(lambda p: p["t"], only_t)(p))
    call(["real scalar", "None"], lambda: grad(lambda p: None, only_t)(p))
    call(["real scalar", "tuple"], lambda: grad(lambda p: (p["s"], 1), only_t)(p))
    call(["real scalar", "int32"], lambda: grad(lambda p: jnp.int32(1), only_t)(p))
    call(
        ["real scalar", "complex64"],
        lambda: grad(lambda p: p["s"].astype(jnp.complex64), only_t)(p),
    )
    call(["a pair (loss, aux)"], lambda: grad(loss, only_t, has_aux=True)(p))


def test_a_loss_that_jax_refuses_is_refused():
    """The conditions on the loss are those of `jax.grad`, and so is the kind of error."""
    for loss in (lambda t: t, lambda t: None, lambda t: 1, lambda t: (t.sum(), 1), lambda t: 1j):
        for f in (jax.grad(loss), grad(loss, True)):
            with pytest.raises(TypeError):
                f(jnp.ones((3, 2)))
    assert value_and_grad(lambda t: 3.0, True)(jnp.ones((3, 2)))[0] == 3.0


# ---------------------------------------------------------------------------------- in JAX


def curved(p, ids):
    """A loss whose gradients have gradients, with a lookup of every kind."""
    scanned = jax.lax.scan(lambda c, i: (c + sq(jnp.sin(p["u"][i])), None), 0.0, ids)[0]
    kept = jax.checkpoint(lambda t, w: sq(jnp.sin(t[ids] @ w)))(p["t"], p["w"])
    return scanned + kept + sq(jnp.cos(tripled(p["t"], p["w"], ids))) + p["v"][ids[0]] ** 3


def test_a_gradient_is_computed_eagerly():
    def loss(p, ids):
        return sq(jax.checkpoint(lambda t, w: tripled(t, w, ids))(p["t"], p["w"]))

    p = params()
    ours = value_and_grad(loss, tables)(p, ODD)
    close((ours[0], densified(ours[1])), jax.value_and_grad(loss)(p, ODD), 1e-5)


@pytest.mark.parametrize("axes", [(None, 0), (0, None)])
def test_a_gradient_is_computed_under_vmap(axes):
    p = params() if axes[0] is None else jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params())
    ids = ODD if axes[1] is None else jnp.stack([ODD, ODD - 1])

    def both(p, ids):
        return densified(grad(curved, tables)(p, ids)), jax.grad(curved)(p, ids)

    close(*jax.jit(jax.vmap(both, axes))(p, ids), 1e-5)


def test_second_derivatives_follow_jax():
    def penalty(grad, p):
        found = densified(grad(p, IDS[0]))
        return sum(map(sq, jax.tree.leaves(found)))

    def tied(p, ids):
        return curved(p, ids) + sq(jnp.sin(p["t"] @ p["w"]))

    for loss in (curved, tied):
        ours = jax.grad(functools.partial(penalty, grad(loss, tables, mixed="dense")))
        theirs = jax.grad(functools.partial(penalty, jax.grad(loss)))
        close(*jax.jit(lambda p: (ours(p), theirs(p)))(params()), 1e-4)  # noqa: B023


def test_a_step_with_donated_parameters_follows_jax():
    def loss(p):
        return sq(p["t"][ODD] @ p["w"])

    def step(p):
        g = grad(loss, tables)(p)
        return jax.tree.map(lambda x, g: x + g * -0.1, p, g, is_leaf=is_rows)

    p = jax.jit(step, donate_argnums=0)(params())
    close(p, jax.tree.map(lambda x, g: x - 0.1 * g, params(), jax.grad(loss)(params())), 1e-5)


def mesh(*shape):
    names = ("x", "y")[: len(shape)]
    return jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape))


def joint(p, ids):
    return jax.lax.psum(curved_here(p, ids), "x")


def curved_here(p, ids):
    start = jax.lax.pcast(0.0, ("x",), to="varying")
    scanned = jax.lax.scan(lambda c, i: (c + sq(p["u"][i]), None), start, ids)[0]
    kept = jax.checkpoint(lambda t, w: sq(t[ids] @ w))(p["t"], p["w"])
    return scanned + kept + sq(p["t"][:2] @ p["w"]) + sq(tripled(p["t"], p["w"], ids))


def in_shards(loss, mixed="error", axes=(4,), params=params, **specs):
    """Return our gradients of a loss inside `shard_map`, and those of JAX."""

    def both(p, ids):
        return densified(grad(loss, tables, mixed=mixed)(p, ids)), jax.grad(loss)(p, ids)

    return jax.jit(jax.shard_map(both, mesh=mesh(*axes), **specs))(params(), jnp.arange(8) % 5)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("loss", [curved_here, joint])
def test_in_shard_map_rows_are_joined_where_gradients_are_summed(loss):
    close(*in_shards(loss, in_specs=(P(), P("x")), out_specs=P()), 1e-5)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("mixed", ["dense", "error"])
def test_in_shard_map_tables_may_be_split_by_columns(mixed):
    def loss(p, ids):
        return sq(p["t"][ids]) + sq(p["t"] @ p["w"] if mixed == "dense" else p["w"])

    def wide():
        return {"t": params()["t"].repeat(2, 1), "w": params()["w"].repeat(2, 0)}

    split = {"t": P(None, "y"), "w": P("y")}
    specs = dict(in_specs=(split, P("x")), out_specs=(split, split))
    close(*in_shards(loss, mixed, (4, 2), wide, **specs), 1e-5)


@pytest.mark.usefixtures("eight_devices")
def test_in_shard_map_without_types_of_variation_rows_stay_local():
    def loss(p, ids):
        return sq(p["t"][ids] @ p["w"])

    close(*in_shards(loss, in_specs=(P(), P("x")), out_specs=P("x"), check_vma=False), 1e-5)


@pytest.mark.usefixtures("eight_devices")
def test_the_rows_leave_a_shard_map():
    def loss(p, ids):
        return sq(p["t"][ids])

    specs = dict(mesh=mesh(4), in_specs=(P(), P("x")), out_specs=P())
    ours = jax.jit(jax.shard_map(grad(loss, tables), **specs))(params(), jnp.arange(8) % 5)
    assert ours["t"].values.shape == (8, 3)
    assert sorted(ours["t"].indices.tolist()) == [0, 0, 1, 1, 2, 2, 3, 4]


@pytest.mark.usefixtures("eight_devices")
def test_tables_may_be_sharded():
    def loss(p):
        return sq(p["t"][ids] @ p["w"])

    split, ids = NamedSharding(mesh(4), P("x")), jnp.arange(8)
    ids = jax.device_put(ids, split)
    p = params(8)
    beside(loss, {"t": jax.device_put(p["t"], split), "w": p["w"]}, tol=1e-5)


@pytest.mark.usefixtures("eight_devices")
def test_a_mesh_may_have_explicit_axes():
    explicit = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit):
        t = jax.device_put(jnp.ones((7, 4)), NamedSharding(explicit, P(None, "x")))

        def loss(t):
            return sq(t[IDS]) + sq(t[2])

        rows = jax.jit(grad(loss, True))(t)
        assert jax.typeof(rows.values).sharding.spec == P(None, "x")
        close(np.asarray(rows.values), np.full((7, 4), 2, np.float32))
        with pytest.raises(ValueError, match=r"gather \(in a mesh of its own"):
            grad(lambda t: sq(t.at[IDS].get(out_sharding=P(None, None, "x"))), True)(t)
