"""`gradxform.tree`: parity with `optax.tree`, and what it promises beyond that."""

import inspect
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict
from flax.training.train_state import TrainState

from gradxform import interop, tree
from gradxform.base import ArrayRule, EmptyState, transform
from gradxform.leaves.masks import label_by, ndim_at_least
from gradxform.optimizers import adam, adamw, sgd
from gradxform.slots import zeros_like as slots_like
from gradxform.transforms.adam import ScaleByAdamState, scale_by_adam
from gradxform.transforms.constraints import zero_nans
from gradxform.transforms.momentum import TraceState, trace
from gradxform.transforms.noise import add_noise
from gradxform.transforms.scaling import scale_by_learning_rate
from gradxform.tree import params_in_state
from gradxform.types import MaskedNode, Slot
from gradxform.wrappers.compose import chain, named_chain
from gradxform.wrappers.guard import apply_if_finite, skip_not_finite
from gradxform.wrappers.hyperparams.inject import inject_hyperparams
from gradxform.wrappers.lookahead import LookaheadParams, lookahead
from gradxform.wrappers.multi_steps import MultiSteps
from gradxform.wrappers.select import masked, partition

pytestmark = pytest.mark.numeric

NAMES = [n for n in dir(optax.tree) if callable(getattr(optax.tree, n)) and n[0] != "_"]


def standard():
    """Optax does not run under strict dtype promotion."""
    return jax.numpy_dtype_promotion("standard")


def dense(seed=0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.normal(size=(2, 3)), dtype),
        "b": [jnp.asarray(rng.normal(size=3), dtype), jnp.asarray(rng.normal(), dtype)],
        "none": None,
    }


X, Y = dense(0), dense(1)
HALF = dense(2, jnp.bfloat16)
COMPLEX = jax.tree.map(jax.lax.complex, X, Y)


def same(got, want, **tolerance):
    """Equal structure, dtypes, and values."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype
        a, b = (np.asarray(x).astype(np.complex128) for x in (a, b))
        np.testing.assert_allclose(a, b, **({"rtol": 1e-6, "atol": 1e-6} | tolerance))


CALLS = {
    "add": [(X, Y), (X, Y, X), (HALF, HALF)],
    "add_scale": [(X, 0.5, Y), (HALF, 0.5, HALF), (X, jnp.float32(2), Y)],
    "allclose": [(X, X), (X, Y), (X, Y, 10.0, 10.0), (HALF, HALF)],
    "batch_shape": [(X,), (X, (4, 5))],
    "bias_correction": [(X, 0.9, jnp.int32(3)), (HALF, 0.9, jnp.int32(3))],
    "cast": [(X, jnp.bfloat16), (X, None), (X, "float16")],
    "cast_like": [(X, HALF), ({"a": X["w"]}, {"a": 1.0})],
    "clip": [(X, -0.1, 0.1), (X, None, 0.1), (X, -0.1), (HALF, -0.1, 0.1), (X,)],
    "conj": [(COMPLEX,), (X,)],
    "div": [(X, Y), (HALF, HALF), (COMPLEX, COMPLEX)],
    "dtype": [(X,), (HALF,), ({},)],
    "full_like": [(X, 2.0), (HALF, 2.0), (HALF, 2.0, jnp.float32)],
    "max": [(X,), (HALF,)],
    "min": [(X,), (HALF,)],
    "mul": [(X, Y), (HALF, HALF)],
    "norm": [(X,), (X, 1), (X, 2, True), (X, math.inf), (X, "inf", True), (COMPLEX,), (COMPLEX, 1)],
    "ones_like": [(X,), (HALF,), (X, jnp.int32)],
    "random_like": [
        (jax.random.key(0), X),
        (jax.random.PRNGKey(0), HALF),
        (jax.random.key(1), X, jax.random.rademacher, jnp.int32),
        (jax.random.key(1), X, lambda key, shape, dtype: jax.random.uniform(key, shape, dtype)),
    ],
    "real": [(COMPLEX,), (X,)],
    "scale": [(0.5, X), (3, HALF), (jnp.float32(0.5), X)],
    "size": [(X,), ({},)],
    "sub": [(X, Y), (HALF, HALF)],
    "sum": [(X,), (X, True), ({"i": jnp.arange(4)},), (COMPLEX,)],
    "unwrap_random_key_data": [({"k": jax.random.key(3), "x": X["w"]},)],
    "update_infinity_moment": [(X, X, 0.9, 1e-8), (HALF, HALF, 0.5, 0.1)],
    "update_moment": [(X, Y, 0.9, 1), (X, Y, 0.9, 2), (HALF, HALF, 0.5, 2), (COMPLEX, X, 0.9, 1)],
    "update_moment_per_elem_norm": [(X, Y, 0.9, 2), (COMPLEX, Y, 0.9, 2), (COMPLEX, Y, 0.9, 3)],
    "vdot": [(X, Y), (COMPLEX, COMPLEX)],
    "where": [(True, X, Y), (jnp.asarray(False), X, Y)],
    "zeros_like": [(X,), (HALF,), (X, jnp.int32)],
}
CASES = [(name, args) for name, calls in CALLS.items() for args in calls]


def test_every_name_of_optax_is_here_with_its_arguments():
    assert not [name for name in NAMES if not hasattr(tree, name)]
    for name in NAMES:
        ours, theirs = (
            [(p.name, p.kind) for p in inspect.signature(getattr(m, name)).parameters.values()]
            for m in (tree, optax.tree)
        )
        assert ours == theirs, name


@pytest.mark.parametrize(("name", "args"), CASES, ids=[f"{n}{i}" for i, (n, _) in enumerate(CASES)])
def test_a_function_follows_optax(name, args):
    with standard():
        want = getattr(optax.tree, name)(*args)
    got = getattr(tree, name)(*args)
    if name == "dtype":
        assert got == want
        return
    loose = {"rtol": 2e-2} if any(x is HALF for x in args) else {"rtol": 1e-5}
    same(got, want, **loose)


@pytest.mark.parametrize(
    "name", ["norm", "sum", "max", "min", "size", "zeros_like", "scale", "add"]
)
def test_a_function_gives_the_same_under_jit(name):
    args = {"scale": (0.5, X), "add": (X, Y)}.get(name, (X,))
    same(jax.jit(getattr(tree, name))(*args), getattr(tree, name)(*args))


@pytest.mark.parametrize("empty", [{}, (), {"a": None}, {"a": MaskedNode()}])
def test_empty_trees_are_accepted(empty):
    for name in ("norm", "sum"):
        assert getattr(tree, name)(empty) == 0
    assert tree.norm(empty, math.inf) == 0 and tree.norm(empty, 1, True) == 0
    assert tree.vdot(empty, empty) == 0 and tree.size(empty) == 0
    assert tree.max(empty) == -math.inf and tree.min(empty) == math.inf
    assert tree.allclose(empty, empty)
    assert tree.dtype(empty) == jnp.float32
    key = jax.random.key(0)
    for got in (
        tree.add(empty, empty),
        tree.scale(2.0, empty),
        tree.zeros_like(empty),
        tree.random_like(key, empty),
        tree.split_key_like(key, empty),
        tree.bias_correction(empty, 0.9, jnp.int32(1)),
    ):
        assert jax.tree.structure(got) == jax.tree.structure(empty)


@pytest.mark.parametrize("hole", [None, MaskedNode(), optax.MaskedNode()], ids=repr)
def test_a_hole_in_any_tree_is_a_hole_in_the_result(hole):
    x, y = {"a": jnp.ones(2), "b": hole}, {"a": jnp.ones(2), "b": jnp.ones(3)}
    for got in (
        tree.add(x, y),
        tree.add(y, x),
        tree.sub(x, y),
        tree.add_scale(y, 2.0, x),
        tree.where(True, x, y),
        tree.update_moment(x, y, 0.9, 2),
        tree.update_infinity_moment(x, y, 0.9, 1e-8),
        tree.update_moment_per_elem_norm(x, y, 0.9, 2),
        tree.cast_like(x, y),
        tree.zeros_like(x),
    ):
        assert got["b"] == hole and type(got["b"]) is type(hole)
        assert got["a"].shape == (2,)
    assert tree.cast_like(y, x)["b"] is y["b"]
    assert tree.vdot(x, y) == 2
    assert tree.allclose(x, x) and not tree.allclose(x, y)


def test_a_whole_subtree_may_be_a_hole():
    got = tree.add({"a": None, "b": jnp.ones(1)}, {"a": {"c": jnp.ones(2)}, "b": jnp.ones(1)})
    assert got["a"] is None and got["b"] == 2


def test_reductions_of_16_bit_trees_do_not_saturate():
    many = [jnp.ones((), jnp.bfloat16)] * 600
    assert tree.sum(many) == 600 and tree.sum(many, True) == 600 and tree.norm(many, 1) == 600
    assert tree.vdot(many, many) == 600 and tree.norm(many, squared=True) == 600
    large = {"a": jnp.full(10, 3e4, jnp.float16)}
    np.testing.assert_allclose(tree.norm(large), 3e4 * math.sqrt(10), rtol=1e-6)
    np.testing.assert_allclose(tree.vdot(large, large), 9e9, rtol=1e-3)
    assert tree.sum(large) > 65504
    for name in ("sum", "norm"):
        assert getattr(tree, name)(large).dtype == jnp.float32


def test_mixed_dtypes_promote_as_jax_does_by_default():
    half, full = {"a": jnp.ones(2, jnp.bfloat16)}, {"a": jnp.ones(2)}
    whole = {"a": jnp.arange(2)}
    assert tree.dtype(tree.add(half, full)) == jnp.float32
    assert tree.dtype(tree.scale(jnp.float32(2), half)) == jnp.float32
    assert tree.dtype(tree.scale(2.0, half)) == jnp.bfloat16
    assert tree.dtype(tree.scale(0.5, whole)) == jnp.float32
    assert tree.dtype(tree.div(whole, {"a": jnp.arange(1, 3)})) == jnp.float32
    assert tree.dtype(tree.update_moment(half, full, 0.9, 2)) == jnp.float32
    assert tree.dtype(tree.clip(whole, 0.5)) == jnp.float32
    assert tree.vdot(half, full) == 2
    assert tree.allclose(half, full)
    assert tree.max({"a": jnp.ones(1, jnp.bfloat16), "b": jnp.full(1, 2.0)}) == 2
    assert tree.max(whole).dtype == jnp.int32


def test_numbers_and_numpy_arrays_are_leaves_too():
    x = {"a": 1.5, "b": np.ones(2, np.float32), "c": np.float64(2.0)}
    same(tree.scale(2, x), {"a": 3.0, "b": np.full(2, 2, np.float32), "c": np.float64(4)})
    assert tree.sum(x) == 5.5 and tree.size(x) == 4
    assert tree.bias_correction(x, 0.5, 1)["b"].dtype == jnp.float32
    assert tree.cast(x, jnp.bfloat16)["a"].dtype == jnp.bfloat16
    assert tree.zeros_like(x)["a"] == 0


def test_full_like_keeps_the_leafs_own_dtype():
    assert tree.dtype(tree.zeros_like(HALF)) == jnp.bfloat16
    assert tree.dtype(tree.full_like(HALF, jnp.float32(2))) == jnp.bfloat16


def test_bias_correction_is_exact_near_1():
    got = tree.bias_correction({"a": jnp.full(1, 1e-3)}, 0.999, jnp.int32(1))["a"]
    np.testing.assert_allclose(got, 1.0, rtol=1e-6)


def test_containers_of_flax_are_kept():
    frozen = FrozenDict({"a": jnp.ones(2), "b": {"c": jnp.ones(3)}})
    assert isinstance(tree.add(frozen, frozen), FrozenDict)
    assert tree.sum(tree.scale(2.0, frozen)) == 10
    state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param)
    assert type(tree.zeros_like(state)) is type(state)
    assert tree.size(state) == 9 and tree.norm(tree.sub(state, state)) == 0
    assert tree.random_like(jax.random.key(0), state)["kernel"].shape == (2, 3)


def test_the_dtype_of_a_mixed_tree_is_chosen_or_refused():
    mixed = {"a": jnp.ones(2), "b": jnp.ones(2, jnp.bfloat16)}
    assert tree.dtype(mixed, "promote") == jnp.float32 == tree.dtype(mixed, "highest")
    assert tree.dtype(mixed, "lowest") == jnp.bfloat16
    with pytest.raises(ValueError, match=r"dtype: \['b'\] has dtype bfloat16, but \['a'\] has flo"):
        tree.dtype(mixed)
    unordered = {"a": jnp.ones(2, jnp.float16), "b": jnp.ones(2, jnp.bfloat16)}
    assert tree.dtype(unordered, "promote") == jnp.float32
    with pytest.raises(ValueError, match="neither of float16 and bfloat16 promotes to the other"):
        tree.dtype(unordered, "highest")
    with pytest.raises(ValueError, match=r"'highest' or 'lowest', got 'hihgest'\."):
        tree.dtype(mixed, "hihgest")


def test_reductions_refuse_wrong_arguments():
    with pytest.raises(ValueError, match=r"norm: ord must be 1, 2, inf, 'inf' or None, got 3\."):
        tree.norm(X, 3)
    with pytest.raises(ValueError, match=r"vdot: \['a'\] has shape \(2, 3\) in the first tree and"):
        tree.vdot({"a": jnp.ones((2, 3))}, {"a": jnp.ones(6)})


# ------------------------------------------------------------------------------------ get and set

PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}


def test_get_finds_fields_keys_and_classes():
    state = chain(trace(0.9), scale_by_adam(), scale_by_learning_rate(0.1)).init(PARAMS)
    assert tree.get(state, "mu") is state[1].mu
    assert tree.get(state, "ScaleByAdamState") is state[1]
    assert tree.get(state, "trace") is state[0].trace
    assert tree.get(state, "nothing") is None and tree.get(state, "nothing", 3) == 3
    named = named_chain(("first", trace(0.9)), ("second", adam(0.1))).init(PARAMS)
    assert tree.get(named, "first") is named["first"]
    assert tree.get(TraceState({}), "TraceState") == TraceState({})
    train = TrainState.create(apply_fn=None, params=PARAMS, tx=optax.adam(0.1))
    assert tree.get(train, "params") is PARAMS  # an attribute
    assert tree.get(train, "nu") is train.opt_state[0].nu


def test_get_sees_injected_hyperparameters():
    state = inject_hyperparams(adamw)(learning_rate=1e-3).init(PARAMS)
    np.testing.assert_allclose(tree.get(state, "learning_rate"), 1e-3)
    with standard():
        theirs = optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3).init(PARAMS)
    np.testing.assert_allclose(tree.get(theirs, "learning_rate"), 1e-3)


def test_get_refuses_to_choose():
    state = chain(trace(0.9), trace(0.5)).init(PARAMS)
    with pytest.raises(KeyError) as error:
        tree.get(state, "trace")
    said = error.value.args[0]
    assert said == (
        "get: 2 values are called 'trace': [0].trace, [1].trace. Choose one with filtering=, "
        "or take all with get_all_with_path."
    )
    first = tree.get(state, "trace", filtering=lambda path, value: path[0].idx == 0)
    assert first is state[0].trace


def test_paths_know_the_class_of_a_field():
    state = chain(trace(0.9), scale_by_adam()).init(PARAMS)
    ((path, value),) = tree.get_all_with_path(state, "mu")
    assert value is state[1].mu
    assert path[1] == tree.NamedTupleKey("ScaleByAdamState", "mu")
    assert str(path[1]) == "ScaleByAdamState.mu"
    assert jax.tree_util.keystr(path) == "[1]ScaleByAdamState.mu"
    ((path, _),) = tree.get_all_with_path(state, "ScaleByAdamState")
    assert path == (jax.tree_util.SequenceKey(1),)


@pytest.mark.parametrize("key", ["count", "mu", "w", "ScaleByAdamState", "learning_rate", "absent"])
def test_get_all_with_path_follows_optax(key):
    with standard():
        tx = optax.chain(
            optax.add_noise(1.0, 0.9, key=0),
            optax.inject_hyperparams(optax.adam)(optax.constant_schedule(0.1)),
        )
        state = tx.init(PARAMS)
    ours, theirs = (m.get_all_with_path(state, key) for m in (tree, optax.tree))
    spelled = [[jax.tree_util.keystr(path) for path, _ in found] for found in (ours, theirs)]
    assert spelled[0] == spelled[1]
    assert len(ours) > 0 or key == "absent"


def test_nested_names_are_found_and_set_in_optaxs_order():
    nested = [{"a": {"b": 1.0, "rate": 2.0}, "rate": {"c": 3.0, "rate": 4}}, {"rate": 5.0}]
    ours, theirs = (m.get_all_with_path(nested, "rate") for m in (tree, optax.tree))
    assert ours == theirs and ours[1][1] == 5.0
    for wanted in (float, int, dict):
        new, expected = (
            m.set(nested, lambda _, x, wanted=wanted: isinstance(x, wanted), rate=7.0)
            for m in (tree, optax.tree)
        )
        assert new == expected != nested


def test_set_replaces_everywhere():
    state = chain(trace(0.9), scale_by_adam(), trace(0.5)).init(PARAMS)
    new = tree.set(state, trace=PARAMS, count=jnp.int32(7))
    assert new[0].trace is PARAMS and new[2].trace is PARAMS and new[1].count == 7
    assert new[1].mu is state[1].mu and state[1].count == 0
    one = tree.set(state, lambda path, value: path[0].idx == 2, trace=PARAMS)
    assert one[0].trace is state[0].trace and one[2].trace is PARAMS
    assert tree.set(state, ScaleByAdamState=EmptyState())[1] == EmptyState()
    both = optax.tree.set(state, trace=PARAMS)
    assert jax.tree.structure(both) == jax.tree.structure(new)


@pytest.mark.parametrize("library", ["ours", "optax"])
def test_set_keeps_dtype_weak_type_and_compiled_step(library):
    if library == "ours":
        tx = inject_hyperparams(adamw)(learning_rate=1e-3)
    else:
        tx = optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3)
    with standard():
        state = tx.init(PARAMS)
        traced = []

        @jax.jit
        def step(params, state):
            traced.append(None)
            updates, state = tx.update(params, state, params)
            return optax.apply_updates(params, updates), state

        _, state = step(PARAMS, state)
        _, state = step(PARAMS, state)
        before = len(traced)
        for rate in (1, 0.5, np.float64(0.25)):
            state = tree.set(state, learning_rate=rate)
            found = tree.get(state, "learning_rate")
            assert found == rate and found.dtype == jnp.float32 and found.shape == ()
            _, state = step(PARAMS, state)
        assert len(traced) == before
    weak = {"x": jnp.asarray(1.0)}
    assert weak["x"].weak_type and tree.set(weak, x=2)["x"].weak_type
    assert tree.set({"x": jnp.ones((), jnp.bfloat16)}, x=2.5)["x"].dtype == jnp.bfloat16


def test_set_writes_a_number_into_every_array_of_a_part():
    state = scale_by_adam().init(PARAMS)
    new = tree.set(state, mu=2, nu=0.5)
    same(new.mu, jax.tree.map(lambda x: jnp.full_like(x, 2), state.mu))
    same(new.nu, jax.tree.map(lambda x: jnp.full_like(x, 0.5), state.nu))
    mesh = jax.make_mesh((jax.device_count(),), ("x",), (jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.P())
    placed = jax.device_put(jnp.ones(8), sharding)
    assert tree.set({"a": placed}, a=3.0)["a"].sharding == sharding
    assert isinstance(tree.set({"a": np.ones(2)}, a=3)["a"], np.ndarray)
    assert tree.set({"a": 1.0}, a=2)["a"] == 2
    assert tree.set({"a": None}, a=2)["a"] == 2


def test_set_works_in_a_jitted_function_and_in_nnx():
    state = inject_hyperparams(sgd)(learning_rate=0.1).init(PARAMS)
    new = jax.jit(lambda s, x: tree.set(s, learning_rate=x * 2))(state, jnp.float32(1))
    assert tree.get(new, "learning_rate") == 2
    new = jax.jit(lambda s: tree.set(s, learning_rate=3))(state)
    assert tree.get(new, "learning_rate") == 3
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    opt = nnx.Optimizer(model, inject_hyperparams(adam)(learning_rate=0.1), wrt=nnx.Param)
    new = tree.set(opt.opt_state, learning_rate=0.5)
    assert jax.tree.structure(new) == jax.tree.structure(opt.opt_state)
    assert tree.get(new, "learning_rate")[...] == 0.5


def test_set_refuses_wrong_arguments():
    state = inject_hyperparams(adamw)(learning_rate=1e-3).init(PARAMS)
    with pytest.raises(KeyError) as error:
        tree.set(state, learning_rat=1.0)
    assert error.value.args[0].startswith(
        "set: nothing is called 'learning_rat'. Did you mean 'learning_rate'?"
    )
    with pytest.raises(KeyError, match="set: filtering rejects every value called 'count'"):
        tree.set(state, lambda path, value: False, count=0)
    refused = r"has dtype int32, which cannot hold"
    for bad in (0.5, 2**40, math.nan, 1j):
        with pytest.raises(ValueError, match=refused):
            tree.set(state, count=bad)
    with pytest.raises(ValueError, match=r"set: rng_key has dtype key.*, which cannot hold 0\."):
        tree.set(
            add_noise(1.0, 0.5, jax.random.key(0)).init(PARAMS)._replace(rng_key=jax.random.key(0)),
            rng_key=0,
        )


# ------------------------------------------------------------------------------------- map_params

SPECS = {"w": "spec of w", "b": "spec of b"}
MASK = {"w": True, "b": False}


def specs(tx, params=PARAMS, rest=SPECS, state=None, **options):
    """The state of `tx` with the specs of the parameters, and "-" elsewhere."""
    with standard():
        state = tx.init(params) if state is None else state
    return tree.map_params(
        tx, lambda _, spec: spec, state, rest, transform_non_params=lambda _: "-", **options
    )


def by_index(params):
    """A mask that looks into the parameters by name."""
    return {k: v.ndim > 1 for k, v in dict(params).items()}


IN = {"w": "spec of w", "b": MaskedNode()}
OUT = {"w": MaskedNode(), "b": "spec of b"}


def test_map_params_marks_the_slots_of_our_transforms():
    adam_specs = ScaleByAdamState("-", SPECS, SPECS)
    assert specs(adam(0.1)) == (adam_specs, ())
    assert specs(chain(trace(0.9), adam(lambda t: 0.1)))[1] == (adam_specs, ("-",))
    assert specs(named_chain(("a", trace(0.9)), ("b", sgd(0.1))))["a"] == (SPECS,)
    assert specs(zero_nans()).found_nan == SPECS
    assert specs(add_noise(1.0, 0.5, 0)) == ("-", "-")
    assert specs(masked(trace(0.9), MASK)) == ((IN,),)
    assert specs(masked(trace(0.9), ndim_at_least(2))) == ((IN,),)
    assert specs(masked(trace(0.9), lambda p: jax.tree.map(lambda x: x.ndim > 1, p))) == ((IN,),)
    assert specs(masked(trace(0.9), by_index)) == ((IN,),)
    for labels in (
        {"w": "x", "b": "y"},
        label_by(("x", ndim_at_least(2)), ("y", True)),
        lambda p: {"w": "x", "b": "y"},
    ):
        found = specs(partition({"x": trace(0.9), "y": trace(0.5)}, labels))
        assert found.inner_states == {"x": ((IN,),), "y": ((OUT,),)}
    steps = specs(MultiSteps(adam(0.1), 4, should_skip_update_fn=skip_not_finite))
    assert steps.acc_grads == SPECS and steps.inner_opt_state[0] == adam_specs
    assert steps.mini_step == "-" and set(steps.skip_state.values()) == {"-"}
    ahead = specs(lookahead(adam(0.1), 5, 0.5))
    assert ahead == ((adam_specs, ()), "-", SPECS)
    injected = specs(inject_hyperparams(adam)(0.1))
    assert injected.inner_state[0] == adam_specs
    assert set(injected.hyperparams.values()) == {"-"} and injected.count == "-"
    assert specs(apply_if_finite(adam(0.1), 3)).inner_state[0] == adam_specs


def test_map_params_takes_parameters_that_are_one_array():
    for tx in (MultiSteps(adam(0.1), 2), lookahead(adam(0.1), 5, 0.5)):
        found = specs(tx, jnp.ones(3), "spec")
        assert jax.tree.leaves(found).count("spec") == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.adamw(optax.constant_schedule(0.1)),
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.lion(0.1)),
        lambda: optax.sgd(0.1, momentum=0.9),
        lambda: optax.inject_hyperparams(optax.adam)(0.1),
        lambda: optax.MultiSteps(optax.adam(0.1), 2),
        lambda: optax.apply_if_finite(optax.rmsprop(0.1), 2),
        lambda: optax.adafactor(0.1),
    ],
)
def test_map_params_follows_optax(make):
    tx = make()
    with standard():
        state = tx.init(PARAMS)
        f, other = lambda _, spec: spec, lambda _: "-"
        want = optax.tree.map_params(tx, f, state, SPECS, transform_non_params=other)
        assert tree.map_params(tx, f, state, SPECS, transform_non_params=other) == want
        # An init will do, and what is not like the parameters stays by default.
        doubled = tree.map_params(tx.init, lambda x: x * 2, state)
        same(doubled, optax.tree.map_params(tx.init, lambda x: x * 2, state))


@pytest.mark.parametrize("labels", [{"w": "x", "b": "y"}, lambda p: {"w": "x", "b": "y"}])
def test_map_params_handles_optaxs_masks_and_mixtures(labels):
    with standard():
        theirs = optax.partition({"x": optax.trace(0.9), "y": optax.trace(0.5)}, labels)
        found = specs(theirs).inner_states["x"].inner_state.trace
        assert found == {"w": "spec of w", "b": optax.MaskedNode()}
        mixed = chain(trace(0.9), theirs, masked(optax.trace(0.9), MASK))
        ours, optaxs, inside = specs(mixed)
        assert ours == (SPECS,) and inside == ((IN,),)
        assert optaxs.inner_states["y"].inner_state.trace["b"] == "spec of b"
        around = specs(optax.chain(masked(trace(0.9), MASK), optax.trace(0.9)))
        assert around == (((IN,),), (SPECS,))


def test_map_params_shows_holes_only_on_request():
    tx = masked(trace(0.9), MASK)
    state = tx.init(PARAMS)
    seen = []
    tree.map_params(tx, lambda x, spec: seen.append((type(x), spec)), state, SPECS)
    assert [spec for _, spec in seen] == ["spec of w"]
    seen.clear()

    def hole(x):
        return isinstance(x, MaskedNode)

    tree.map_params(tx, lambda x, spec: seen.append((type(x), spec)), state, SPECS, is_leaf=hole)
    assert seen[0] == (MaskedNode, "spec of b") and len(seen) == 2


def test_map_params_takes_partition_specs_and_none():
    p = jax.P
    for rest in ({"w": p("x", None), "b": p()}, {"w": None, "b": None}):
        found = specs(adam(0.1), rest=rest)
        assert found[0].mu == rest and found[0].count == "-"


def test_map_params_works_in_nnx_and_frozen_dict():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    for tx in (adam(0.1), optax.adam(0.1), inject_hyperparams(adam)(0.1)):
        with standard():
            opt = nnx.Optimizer(model, tx, wrt=nnx.Param)
        doubled = tree.map_params(tx, lambda x: x + 1, opt.opt_state)
        assert jax.tree.structure(doubled) == jax.tree.structure(opt.opt_state)
        assert tree.sum(doubled) == tree.sum(opt.opt_state) + 18
    frozen = FrozenDict(PARAMS)
    assert specs(adam(0.1), frozen, FrozenDict(SPECS))[0].mu == FrozenDict(SPECS)


class OwnState(NamedTuple):
    count: jax.Array
    mu: Slot


@transform
class own_rule(ArrayRule):
    """A rule whose init looks into its parameters by name."""

    def init(self, params):
        return OwnState(jnp.zeros((), jnp.int32), {k: slots_like(params[k]) for k in ("w", "b")})

    def rule(self, g, m, p):
        return g, m


class OpaqueState(NamedTuple):
    count: Any
    mu: Any


def test_map_params_handles_states_of_other_libraries():
    # Without annotations, init is asked; it may make of the parameters what it likes.
    plain = interop.GradientTransformation(
        lambda p: {
            "m": jax.tree.map(jnp.zeros_like, p),
            "n": jnp.zeros(()),
            "each": [x.ravel() for x in jax.tree.leaves(p)],
        },
        lambda u, s, p=None: (u, s),
    )
    assert specs(plain) == {"m": SPECS, "n": "-", "each": ["-", "-"]}
    assert specs(interop.GradientTransformation(lambda p: p, lambda u, s, p=None: (u, s))) == SPECS
    # With annotations, init need not bear a placeholder.
    assert specs(own_rule()) == ("-", SPECS)
    assert specs(chain(adam(0.1), own_rule()))[1] == ("-", SPECS)
    wrapped = specs(inject_hyperparams(lambda learning_rate: chain(own_rule()))(0.1))
    assert wrapped.inner_state == (("-", SPECS),) and wrapped.hyperparams == {"learning_rate": "-"}
    # With neither, nothing is guessed.
    opaque = interop.GradientTransformation(
        lambda p: OpaqueState(jnp.zeros(()), {"w": p["w"], "b": p["b"]}),
        lambda u, s, p=None: (u, s),
    )
    with pytest.raises(TypeError, match=r"cannot tell whether \[1\]\.count is like the param") as e:
        specs(chain(own_rule(), opaque))
    assert "gradxform.types.Slot" in str(e.value) and e.value.__cause__ is not None


def test_map_params_handles_states_of_other_libraries_inside_lookahead():
    other = interop.GradientTransformation(
        lambda p: {"sum": jax.tree.map(jnp.zeros_like, p), "n": jnp.zeros(())},
        lambda u, s, p=None: (u, s),
    )
    tx = lookahead(other, 3, 0.5)
    pairs = LookaheadParams.init_synced({"w": jnp.ones(2)})
    for initable in (tx, tx.init):
        marked = tree.map_params(initable, lambda _: "slot", tx.init(pairs))
        assert marked.fast_state["sum"] == {"w": "slot"}
        np.testing.assert_array_equal(marked.fast_state["n"], 0)


def test_map_params_refuses_wrong_arguments():
    with pytest.raises(TypeError, match="map_params: needs a transform or its init first, got 3"):
        tree.map_params(3, lambda x: x, ())
    with pytest.raises(TypeError, match="map_params: needs a transform or its init first, got <cl"):
        tree.map_params(scale_by_adam, lambda x: x, ())
    with pytest.raises(
        ValueError, match=r"leaf \[0\]\.count, which init of .* does not return\. Was"
    ):
        specs(optax.sgd(0.1), state=optax.adam(0.1).init(PARAMS))


def test_map_params_works_without_optax(monkeypatch):
    monkeypatch.delitem(params_in_state.sys.modules, "optax")
    assert specs(masked(trace(0.9), MASK)) == ((IN,),)
