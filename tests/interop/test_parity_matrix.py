"""Muon and GaLore beside the installed Optax; Shampoo and GGT beside NumPy in many forms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import gradxform as gx
from tests import references as ref
from tests.public import names_of

pytestmark = pytest.mark.numeric

STEPS = 30
LEAVES = {"w": (5, 3), "k": (2, 3, 4), "b": (3,), "s": ()}
FALLING = gx.linear_schedule(0.1, 0.01, 20)


def drawn(leaves, seed, lead=()):
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(rng.normal(size=lead + s), jnp.float32) for k, s in leaves.items()}


def walk(tx, leaves=LEAVES, start=0):
    """The parameters after every step, and the last state."""

    @jax.jit
    def run(params, grads):
        def step(carry, g):
            params, state = carry
            updates, state = tx.update(g, state, params)
            params = jax.tree.map(jnp.add, params, updates)
            return (params, state), params

        state = tx.init(params)
        if start:
            state = gx.tree.set(state, count=start)
        return jax.lax.scan(step, (params, state), grads)

    (_, state), path = run(drawn(leaves, 0), drawn(leaves, 1, (STEPS,)))
    return jax.tree.map(np.asarray, path), state


def in_optax(tx):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return walk(tx)


def in_numpy(reference, leaves):
    """The parameters after every step, as the reference has them."""
    rule = ref.as_tree(reference)
    grads = drawn(leaves, 1, (STEPS,))
    ps = [np.asarray(p, np.float64) for p in drawn(leaves, 0).values()]
    state, path = rule.start(ps), []
    for t in range(STEPS):
        gs = [np.asarray(grads[k][t], np.float64) for k in leaves]
        us, state = rule.step(gs, state, ps, t + 1)
        ps = [p + u for p, u in zip(ps, us, strict=True)]
        path.append(ps)
    return {k: np.stack([ps[i] for ps in path]) for i, k in enumerate(leaves)}


def assert_same_path(ours, theirs, leaves=LEAVES, rtol=1e-5):
    for k, first in drawn(leaves, 0).items():
        moved = np.max(np.abs(theirs[k] - np.asarray(first)))
        assert np.max(np.abs(ours[k] - theirs[k])) <= rtol * moved, k


def assert_same_kind(ours, theirs):
    assert type(ours).__name__ == type(theirs).__name__ and ours._fields == theirs._fields
    assert ours.count == theirs.count


# ---------------------------------------------------------------------------------- muon and galore


def optax_numbers(x, kind):
    """Dimension numbers as Optax's tuples."""
    ours = gx.MuonDimensionNumbers | gx.GaLoreDimensionNumbers
    if isinstance(x, ours):
        return kind(x.reduction_axis, x.output_axis)
    return {k: optax_numbers(v, kind) for k, v in x.items()} if isinstance(x, dict) else x


def for_matrices(kind):
    return lambda params: jax.tree.map(lambda p: kind() if p.ndim == 2 else None, params)


AXES = gx.MuonDimensionNumbers
MUON = {
    "default": {},
    "decay": {
        "learning_rate": FALLING,
        "weight_decay": 0.1,
        "weight_decay_mask": {"w": True, "k": False, "b": True, "s": False},
    },
    "dion": {"ns_coeffs": "dion", "nesterov": False},
    "spectral": {"preconditioning": "spectral", "ns_steps": 3, "beta": 0.5, "eps": 1e-3},
    "aol": {"preconditioning": "aol", "consistent_rms": 0.2},
    "schatten": {"preconditioning": "schatten", "adaptive": True},
    "adam": {
        "adam_b1": 0.8,
        "adam_b2": 0.9,
        "adam_eps_root": 1e-3,
        "adam_weight_decay": 0.1,
        "adam_learning_rate": 0.3,
    },
    "axes": {"w": AXES(1, 0), "k": AXES((1, 0), -1), "b": None, "s": None},
    "batches": {"w": None, "k": AXES(2, 1), "b": None, "s": None},
    "function": for_matrices(contrib.MuonDimensionNumbers),
}


@pytest.mark.parametrize("name", MUON)
def test_muon_equals_that_of_optax(name):
    kwargs = MUON[name]
    if name in ("axes", "batches", "function"):
        kwargs = {"muon_weight_dimension_numbers": kwargs}
    kwargs = {"learning_rate": 0.1} | kwargs
    theirs = {k: optax_numbers(v, contrib.MuonDimensionNumbers) for k, v in kwargs.items()}
    path, state = walk(gx.muon(**kwargs))
    optax_path, optax_state = in_optax(contrib.muon(**theirs))
    assert_same_path(path, optax_path)
    assert list(state.inner_states) == list(optax_state.inner_states)
    ours, its = (s.inner_states["muon"].inner_state[0] for s in (state, optax_state))
    assert_same_kind(ours, its)
    np.testing.assert_array_equal(ours.ns_coeffs, its.ns_coeffs)


AXES = gx.GaLoreDimensionNumbers
GALORE = {
    "default": {},
    "gap": {"rank": 2, "update_proj_gap": 7, "scale": 0.5, "learning_rate": FALLING},
    "decay": {
        "rank": 1,
        "weight_decay": 0.1,
        "mask": {"w": True, "k": False, "b": True, "s": False},
    },
    "base": {"rank": 2, "base_optimizer": optax.trace(0.9), "update_proj_gap": 10},
    "axes": {"w": AXES(1, 0), "k": AXES((1, 0), -1), "b": None, "s": None},
    "function": for_matrices(contrib.GaLoreDimensionNumbers),
}


@pytest.mark.parametrize("name", GALORE)
def test_galore_equals_that_of_optax(name):
    kwargs = GALORE[name]
    if name in ("axes", "function"):
        kwargs = {"weight_dimension_numbers": kwargs, "rank": 2}
    kwargs = {"learning_rate": 0.1} | kwargs
    theirs = {k: optax_numbers(v, contrib.GaLoreDimensionNumbers) for k, v in kwargs.items()}
    path, state = walk(gx.galore(**kwargs))
    optax_path, optax_state = in_optax(contrib.galore(**theirs))
    assert_same_path(path, optax_path)
    assert_same_kind(state[0], optax_state[0])
    # What is not projected has one entry here, because Orbax refuses arrays without entries.
    assert jax.tree.map(jnp.shape, state[0].projector) == jax.tree.map(
        lambda x: jnp.shape(x) if x.size else (), optax_state[0].projector
    )


@pytest.mark.parametrize("kind", [gx.MuonDimensionNumbers, gx.GaLoreDimensionNumbers])
def test_dimension_numbers_are_values(kind):
    """Those of Optax, which are tuples, count as ours; configs keep them."""
    muon = kind is gx.MuonDimensionNumbers
    factory = gx.scale_by_muon if muon else gx.scale_by_galore
    optax_kind = contrib.MuonDimensionNumbers if muon else contrib.GaLoreDimensionNumbers
    tx = factory(weight_dimension_numbers={"a": kind((0, 1), -1), "b": None})
    its = factory(weight_dimension_numbers={"a": optax_kind((0, 1), -1), "b": None})
    assert tx == its and hash(tx) == hash(its)
    assert factory(weight_dimension_numbers=optax_kind()).weight_dimension_numbers == kind()
    assert gx.from_json(gx.to_json(tx)) == tx and eval(repr(tx), names_of(gx)) == tx


@pytest.mark.parametrize("numbers", [gx.MuonDimensionNumbers, gx.GaLoreDimensionNumbers])
def test_dimension_numbers_have_optaxs_methods(numbers):
    other = numbers((0, 1), 2)._replace(output_axis=-1)
    assert other == numbers((0, 1), -1)
    assert other._asdict() == {"reduction_axis": (0, 1), "output_axis": -1}


def test_labels_are_values_and_numbers_may_be_a_prefix():
    labels = gx.muon_labels({"a": gx.MuonDimensionNumbers((0, 1), -1), "b": None})
    x = {"a": {"x": jnp.ones((2, 3, 4)), "y": jnp.ones((1, 2, 3))}, "b": jnp.ones(3)}
    assert labels(x) == {"a": {"x": "muon", "y": "muon"}, "b": "adam"}
    assert gx.from_json(gx.to_json(labels)) == labels
    tx = gx.muon(0.1, muon_weight_dimension_numbers=labels.weight_dimension_numbers)
    assert gx.from_json(gx.to_json(tx)) == tx
    mu = tx.init(x).inner_states["muon"].inner_state[0].mu
    assert mu["a"]["x"].shape == (2, 3, 4) and mu["b"] == gx.MaskedNode()


# ---------------------------------------------------------------------------------- shampoo and ggt

ARRAYS = {"b": (3,), "w": (4, 3), "k": (2, 3, 4), "one": (1, 5), "s": ()}


def falling(T):
    """Of an array and of a number."""
    return 0.5 / (T + 1) ** 0.5


def rising(T):
    return T / (T + 1)


# What is ill-conditioned in float32 (a power of a matrix that has not seen the gradient) has a
# larger epsilon.
SHAMPOO = {
    "default": {},
    "functions": {
        "learning_rate": falling,
        "gbar_decay": rising,
        "gbar_weight": falling,
        "mat_gbar_decay": rising,
        "mat_gbar_weight": falling,
        "alpha": rising,
    },
    "diagonal": {"max_matrix_size": 2, "gbar_decay": 0.9, "mat_gbar_decay": 0.9},
    "all diagonal": {"max_matrix_size": 0, "mat_gbar_weight": 0.1},
    "late roots": {"svd_interval": 3, "epsilon": 0.1},
    "late matrices": {"precond_update_interval": 2, "epsilon": 0.1},
    "late both": {"svd_interval": 2, "precond_update_interval": 3, "epsilon": 0.1, "alpha": 1.0},
    "late functions": {
        "svd_interval": lambda T: 1 + T / T,
        "precond_update_interval": lambda T: 3 * T / T,
        "alpha": falling,
        "epsilon": 0.1,
    },
    "moving power": {"precond_update_interval": 2, "alpha": falling, "epsilon": 0.1},
    "iterative": {"use_iterative_root": True, "epsilon": 0.1, "alpha": 0.25},
}


@pytest.mark.parametrize("name", SHAMPOO)
def test_shampoo_follows_its_numpy_reference(name):
    kwargs, start = SHAMPOO[name], 4 if "late" in name or "functions" in name else 0
    path, state = walk(gx.shampoo(**kwargs), ARRAYS, start)
    kwargs = {k: v for k, v in kwargs.items() if k != "use_iterative_root"}
    assert_same_path(path, in_numpy(ref.shampoo(**kwargs, first_step=start), ARRAYS), ARRAYS, 5e-5)
    assert state[0].count == STEPS + start
    assert [root.shape for root in state[0].roots["w"]] == [
        (d, d) if d <= kwargs.get("max_matrix_size", 768) else (d,) for d in (4, 3)
    ]


def test_shampoo_decomposes_only_when_roots_are_due():
    """Code outside of every branch runs at every step."""

    def always(jaxpr):
        for eqn in jaxpr.eqns:
            yield eqn.primitive.name
            # One on the platform is not a branch of the program that runs.
            if eqn.primitive.name != "cond" or eqn.params.get("branches_platforms"):
                for inner in jax.tree.leaves(list(eqn.params.values())):
                    if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                        yield from always(getattr(inner, "jaxpr", inner))

    w = {"w": jnp.ones((4, 3))}
    for kwargs, due in [
        ({}, True),
        ({"precond_update_interval": 2, "alpha": falling}, True),
        ({"svd_interval": 2}, False),
        ({"precond_update_interval": 2}, False),
        ({"svd_interval": lambda T: 2}, False),
    ]:
        tx = gx.shampoo(**kwargs)
        jaxpr = jax.make_jaxpr(tx.update)(w, tx.init(w))
        assert ("eigh" in set(always(jaxpr.jaxpr))) is due, kwargs


def test_a_scalar_is_a_vector_of_one_entry_to_shampoo():
    path, _ = walk(gx.shampoo(gbar_decay=0.5), {"s": ()})
    as_vector, _ = walk(gx.shampoo(gbar_decay=0.5), {"s": (1,)})
    np.testing.assert_allclose(path["s"], as_vector["s"][:, 0], rtol=1e-5, atol=1e-6)


GGT = {
    "default": {},
    "short": {"window": 3, "b1": 0.5},
    "of one": {"window": 1},
    "without the rest": {"eps": 0.1, "sigma_eps": 1e-3},
    "smooth": {"svd_eps": 1e-3, "sigma_eps": 0.1},
}


@pytest.mark.parametrize("name", GGT)
def test_ggt_follows_its_numpy_reference(name):
    path, state = walk(gx.ggt(0.1, **GGT[name]), ARRAYS)
    reference = ref.sequence(ref.ggt(**GGT[name]), ref.scale(-0.1))
    assert_same_path(path, in_numpy(reference, ARRAYS), ARRAYS)
    window = GGT[name].get("window", 10)
    assert jax.tree.map(jnp.shape, state[0].buffer) == {k: (window, *s) for k, s in ARRAYS.items()}
