"""Transforms in the forms in which code for Optax writes and calls them."""

import copy
import dataclasses
import functools
import pickle
import sys
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
from gradxform.commands import main
from gradxform.commands.port import differences
from gradxform.interop import GradientTransformation, GradientTransformationExtraArgs
from tests.public import names_of

pytestmark = pytest.mark.numeric

optax = pytest.importorskip("optax")

PARAMS = {"b": jnp.asarray([0.5]), "w": jnp.asarray([1.0, -2.0])}
GRADS = jax.tree.map(lambda p: 0.5 * p + 0.1, PARAMS)
KINDS = [GradientTransformation, GradientTransformationExtraArgs]


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


# ------------------------------------------------------------------------------ of two functions


def count_init(params):
    return jnp.zeros((), jnp.int32)


def double(updates, state, params=None):
    return jax.tree.map(lambda g: 2 * g, updates), state + 1


def negate(updates, state, params=None):
    return jax.tree.map(jnp.negative, updates), state + 1


DOUBLED = jax.tree.map(lambda g: 2 * g, GRADS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_functions_are_passed_in_order_or_by_name(kind):
    tx = kind(init=count_init, update=double)
    assert tx == kind(count_init, double) == kind(count_init, update=double)
    assert tx == kind(init_fn=count_init, update_fn=double)
    assert tx.init(PARAMS) == 0
    assert_same(tx.update(GRADS, jnp.asarray(4)), (DOUBLED, jnp.asarray(5)))
    assert eval(repr(tx)) == tx
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert gx.replace(tx, update_fn=negate) == kind(count_init, negate)


@pytest.mark.parametrize("kind", KINDS)
def test_registered_functions_round_trip_through_a_config(kind):
    gx.register("test_optax_forms:count_init", count_init)
    gx.register("test_optax_forms:double", double)
    tx = kind(init=count_init, update=double)
    assert gx.from_config(gx.to_config(tx)) == tx
    by_hand = {
        "init": {"function": "test_optax_forms:count_init"},
        "update": {"function": "test_optax_forms:double"},
    }
    assert gx.from_config({"name": kind.__name__, **by_hand}) == tx


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_function_is_an_error(kind):
    with pytest.raises(TypeError, match=r"update_fn must be a function, got None\."):
        kind(count_init)
    with pytest.raises(TypeError, match=r"init_fn must be a function, got None\."):
        kind(update=double)


class Doubling:
    """An object that is called as an update function is."""

    def __call__(self, updates, state, params=None):
        return double(updates, state, params)


def scaled(factor, updates, state, params=None, *, value=1.0):
    return jax.tree.map(lambda g: factor * value * g, updates), state


CALLABLES = {
    "function": double,
    "partial": functools.partial(scaled, 2),
    "Partial": jax.tree_util.Partial(scaled, 2),
    "object": Doubling(),
    "method": Doubling().__call__,
    "bound": gx.scale(2.0).update,
    "jitted": jax.jit(double),
}


@pytest.mark.parametrize("name", list(CALLABLES))
def test_whatever_can_be_called_is_a_function(name):
    tx = gx.GradientTransformation(functools.partial(count_init), CALLABLES[name])
    assert hash(tx) == hash(gx.GradientTransformation(tx.init_fn, tx.update_fn))
    state = tx.init(PARAMS)
    assert_same(tx.update(GRADS, state)[0], DOUBLED)
    inside = gx.chain(tx, gx.identity())
    updates, _ = jax.jit(inside.update)(GRADS, inside.init(PARAMS), PARAMS, value=jnp.asarray(1.0))
    assert_same(updates, DOUBLED)


@dataclasses.dataclass
class Factor:
    """An object with an array, which cannot be hashed."""

    factor: jax.Array

    def __call__(self, updates, state, params=None):
        return scaled(self.factor, updates, state, params)


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(scaled, jnp.asarray([2.0])),
        jax.tree_util.Partial(scaled, jnp.asarray([2.0])),
        Factor(jnp.asarray([2.0])),
    ],
    ids=["partial", "Partial", "object"],
)
def test_a_function_that_holds_arrays_is_equal_to_itself_only(function):
    tx, again = (gx.GradientTransformation(count_init, function) for _ in range(2))
    assert tx == again and hash(tx) == hash(again)
    assert tx != gx.GradientTransformation(count_init, copy.copy(function))
    inside = gx.chain(tx, gx.identity())
    updates, _ = jax.jit(inside.update)(GRADS, inside.init(PARAMS), PARAMS)
    assert_same(updates, DOUBLED)
    with pytest.raises(TypeError, match="valeu"):
        gx.chain(tx, gx.scale_by_polyak()).update(GRADS, inside.init(PARAMS), PARAMS, valeu=1.0)


def test_stateless_transforms_take_functions_that_hold_arrays():
    two = jnp.asarray([2.0])
    whole = functools.partial(lambda k, u, p: jax.tree.map(lambda g: k * g, u), two)
    one = functools.partial(lambda k, g, p: k * g, two)
    for tx in (gx.stateless(whole), gx.stateless_with_tree_map(one)):
        assert_same(tx.update(GRADS, tx.init(PARAMS))[0], DOUBLED)


def test_extra_arguments_reach_a_partial():
    tx = gx.chain(gx.GradientTransformation(count_init, functools.partial(scaled, 1)))
    updates, _ = tx.update(GRADS, tx.init(PARAMS), value=2.0, other=3.0)
    assert_same(updates, DOUBLED)


def functions_that_tell(seen):
    """Update functions that write down what they get beside the updates and the state."""

    def neither(updates, state):
        seen.append({})
        return updates, state

    def third(updates, state, p):
        seen.append({"p": p})
        return updates, state

    def any_position(*args):
        seen.append(dict(zip(("updates", "state", "params"), args, strict=False)))
        del seen[-1]["updates"], seen[-1]["state"]
        return args[:2]

    def by_name(updates, state, *, params=None):
        seen.append({"params": params})
        return updates, state

    def logging(updates, state, *, logger=None, **extra):
        seen.append({"logger": logger, **extra})
        return updates, state

    return [neither, third, any_position, by_name, logging]


TOLD = [
    ({}, {}, {}),
    ({"p": None}, {"p": 1.0}, {"p": 1.0}),
    ({"params": None}, {"params": 1.0}, {"params": 1.0}),
    ({"params": None}, {"params": 1.0}, {"params": 1.0}),
    (
        {"logger": None},
        {"logger": None, "params": 1.0},
        {"logger": "me", "value": 2.0, "params": 1.0},
    ),
]


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a chain"])
@pytest.mark.parametrize("which", range(len(TOLD)))
def test_an_update_function_gets_the_arguments_that_it_takes(which, inside):
    seen = []
    tx = gx.GradientTransformation(lambda p: (), functions_that_tell(seen)[which])
    tx = gx.chain(tx, gx.identity()) if inside else tx
    state = tx.init(1.0)
    tx.update(3.0, state)
    tx.update(3.0, state, 1.0)
    tx.update(3.0, state, params=1.0, logger="me", value=2.0)
    assert tuple(seen) == TOLD[which]


# -------------------------------------------------------------------------------- a pair, as there

PAIRS = {
    "rule": gx.scale(2.0),
    "chain": gx.adam(0.1),
    "wrapper": gx.masked(gx.adam(0.1), {"w": True, "b": False}),
    "functions": gx.GradientTransformation(count_init, double),
    "more functions": gx.GradientTransformationExtraArgs(count_init, double),
}


@pytest.mark.parametrize("name", list(PAIRS))
def test_every_transform_is_a_pair(name):
    tx = PAIRS[name]
    assert len(tx) == 2
    assert tx
    assert (tx[0], tx[1]) == tx[:] == tuple(tx) == (tx.init, tx.update)
    assert tx[-1] == tx.update
    assert tx._fields == optax.GradientTransformation._fields
    assert list(tx._asdict()) == ["init", "update"]
    with pytest.raises(IndexError):
        tx[2]
    want = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    assert_same(tx[1](GRADS, tx[0](PARAMS), PARAMS), want)
    again = tx._asdict()
    assert_same(again["update"](GRADS, again["init"](PARAMS), PARAMS), want)


@pytest.mark.parametrize("name", list(PAIRS))
def test_one_function_of_a_pair_is_replaced(name):
    tx = PAIRS[name]

    def logged(updates, state, params=None):
        updates, state = tx.update(updates, state, params)
        return jax.tree.map(jnp.negative, updates), state

    made = tx._replace(update=logged)
    assert isinstance(made, gx.GradientTransformation)
    assert made == tx._replace(update=logged)
    want, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    updates, _ = jax.jit(made.update)(GRADS, made.init(PARAMS), PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, -b, rtol=1e-6), updates, want)
    assert tx._replace(init=count_init).init(PARAMS) == 0
    assert_same(tx._replace(**tx._asdict()).init(PARAMS), tx.init(PARAMS))
    with pytest.raises(TypeError):
        tx._replace(apply=logged)


def test_functions_keep_their_class_when_one_is_replaced():
    for kind in KINDS:
        assert kind(count_init, double)._replace(update=negate) == kind(count_init, negate)
    assert gx.adam(0.1)._replace() == gx.GradientTransformationExtraArgs(*gx.adam(0.1))


def test_extra_arguments_support_is_a_class_too():
    plain = gx.GradientTransformation(count_init, double)
    made = gx.with_extra_args_support(plain)
    assert isinstance(made, gx.GradientTransformationExtraArgs)
    assert_same(made.update(GRADS, made.init(PARAMS), value=1.0)[0], DOUBLED)
    assert gx.with_extra_args_support(made) is made
    assert gx.with_extra_args_support(gx.adam(0.1)) == gx.adam(0.1)


def test_a_plain_transformation_does_not_say_that_it_takes_extra_arguments():
    plain = gx.GradientTransformation(count_init, double)
    assert not isinstance(plain, gx.GradientTransformationExtraArgs)
    assert isinstance(plain, gx.GradientTransformation)
    assert isinstance(gx.adam(0.1), gx.GradientTransformationExtraArgs)
    more = gx.GradientTransformationExtraArgs(count_init, double)
    assert isinstance(more, gx.GradientTransformationExtraArgs)
    assert isinstance(more, gx.GradientTransformation)

    class Mine(GradientTransformation):
        """A class of one's own."""

    assert isinstance(Mine(count_init, double), gx.GradientTransformation)
    assert not isinstance(Mine(count_init, double), gx.GradientTransformationExtraArgs)
    assert not isinstance(gx.adam(0.1), Mine)
    assert isinstance(Mine(count_init, double), Mine)


@pytest.mark.parametrize("missing", ["init", "update"])
def test_a_pair_without_one_of_its_functions_is_refused(missing):
    functions = {"init": lambda self, params: (), "update": lambda self, u, s, p=None: (u, s)}
    del functions[missing]
    with pytest.raises(TypeError, match=f"Half: a transform must define {missing}"):
        gx.transform(type("Half", (gx.GradientTransformation,), functions))


def test_a_base_of_transforms_cannot_be_called():
    for base in (gx.Transform, gx.ArrayRule):
        with pytest.raises(TypeError, match="abstract"):
            base()


# --------------------------------------------------------------------------- parts without state

STATELESS = {
    "identity": gx.identity(),
    "set_to_zero": gx.set_to_zero(),
    "scale": gx.scale(2.0),
    "clip": gx.clip(0.3),
    "clip_by_global_norm": gx.clip_by_global_norm(0.3),
    "clip_by_block_rms": gx.clip_by_block_rms(0.3),
    "adaptive_grad_clip": gx.adaptive_grad_clip(0.01),
    "centralize": gx.centralize(),
    "normalize_by_update_norm": gx.normalize_by_update_norm(),
    "scale_by_trust_ratio": gx.scale_by_trust_ratio(),
    "scale_by_param_block_rms": gx.scale_by_param_block_rms(),
    "stateless": gx.stateless(lambda updates, params: updates),
    "stateless_with_tree_map": gx.stateless_with_tree_map(lambda u, p: 2 * u),
    "densify": gx.densify(),
}


@pytest.mark.parametrize("state", [None, (), 3, {"a": 1}, optax.EmptyState()], ids=repr)
@pytest.mark.parametrize("name", list(STATELESS))
def test_a_part_without_state_takes_any_and_returns_the_empty_one(name, state):
    tx = STATELESS[name]
    want, empty = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    assert empty == gx.EmptyState()
    assert type(empty) is gx.EmptyState
    # Optax's own stays, so that a loop may carry it.
    kind = optax.EmptyState if isinstance(state, optax.EmptyState) else gx.EmptyState
    updates, new = tx.update(GRADS, state, PARAMS)
    assert type(new) is kind
    assert_same(updates, want)
    (chained,) = gx.chain(tx).update(GRADS, (state,), PARAMS)[1]
    assert type(chained) is kind


def test_a_norm_is_clipped_without_init():
    updates, _ = gx.clip_by_global_norm(0.1).update(GRADS, None)
    want, _ = optax.clip_by_global_norm(0.1).update(GRADS, None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), updates, want)


@pytest.mark.parametrize("shape", [(2, 160, 130), (4, 8), (3,), ()], ids=str)
@pytest.mark.parametrize("make", [gx.adam, gx.adafactor, gx.sm3, gx.novograd, gx.adadelta])
def test_a_state_is_initialized_from_abstract_parameters(make, shape):
    tx = make(0.1)
    abstract = {"w": jax.ShapeDtypeStruct(shape, jnp.bfloat16)}
    state = tx.init(abstract)
    assert_same(state, tx.init({"w": jnp.zeros(shape, jnp.bfloat16)}))


# ------------------------------------------------------------------------------- applying updates

HOLES = {
    "a parameter": ({"w": None, "b": PARAMS["b"]}, GRADS),
    "both": ({"w": None, "b": PARAMS["b"]}, {"w": None, "b": GRADS["b"]}),
    "a tree of updates": ({"w": None, "b": PARAMS["b"]}, {"w": GRADS, "b": GRADS["b"]}),
    "all": (None, GRADS),
    "in a tuple": ((None, PARAMS["b"]), (jnp.ones(5), GRADS["b"])),
}


@pytest.mark.parametrize("name", list(HOLES))
def test_a_parameter_of_none_stays_none(name):
    params, updates = HOLES[name]
    got, want = gx.apply_updates(params, updates), optax.apply_updates(params, updates)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert_same(got, want)


def test_an_update_of_none_leaves_the_parameter():
    new = gx.apply_updates(PARAMS, {"w": None, "b": GRADS["b"]})
    assert_same(new, {"w": PARAMS["w"], "b": PARAMS["b"] + GRADS["b"]})


def test_updates_of_another_structure_are_an_error_despite_holes():
    with pytest.raises(ValueError, match=r"have a leaf \['c'\], the parameters have none"):
        gx.apply_updates({"w": None, "b": PARAMS["b"]}, {**GRADS, "c": GRADS["b"]})


@pytest.mark.parametrize("steps", [0, 3, 4, 8])
def test_periodic_update_equals_that_of_optax(steps):
    old = jax.tree.map(jnp.zeros_like, PARAMS)
    update = jax.jit(gx.periodic_update)
    assert_same(update(PARAMS, old, steps, 4), optax.periodic_update(PARAMS, old, steps, 4))
    without = {"b": PARAMS["b"], "w": None}
    assert gx.periodic_update(without, {**old, "w": None}, steps, 4)["w"] is None


def test_periodic_update_refuses_invalid_arguments():
    with pytest.raises(ValueError, match="update_period must be at least 1, got 0"):
        gx.periodic_update(PARAMS, PARAMS, 0, 0)
    with pytest.raises(ValueError, match=r"\['b'\] has shape \(\), the copy has \(1,\)"):
        gx.periodic_update({**PARAMS, "b": 1.0}, PARAMS, 0, 2)


# -------------------------------------------------------------------------------- uphill, noise


@pytest.mark.parametrize("make", [gx.sgd, gx.adam, gx.shampoo, gx.prodigy, gx.ftrl])
def test_the_error_of_a_negative_learning_rate_says_how_to_maximize(make):
    with pytest.raises(ValueError, match=r"got -0\.1\. To maximize, .*scale\(-1\)"):
        make(-0.1)


def test_the_remedy_of_that_error_goes_uphill():
    tx = gx.chain(gx.scale(-1), gx.sgd(0.1))
    updates, _ = tx.update(GRADS, tx.init(PARAMS))
    want, _ = optax.sgd(-0.1).update(GRADS, optax.sgd(-0.1).init(PARAMS))
    assert_same(updates, want)


NOISY = {
    "add_noise": lambda lib, **key: lib.add_noise(0.1, 0.5, **key),
    "noisy_sgd": lambda lib, **key: lib.noisy_sgd(0.1, **key),
    "differentially_private_aggregate": lambda lib, **key: (
        lib.contrib.differentially_private_aggregate(1.0, 0.1, **key)
    ),
}


@pytest.mark.parametrize("name", list(NOISY))
def test_noise_without_a_key_warns_and_takes_zero(name):
    make = NOISY[name]
    with pytest.warns(UserWarning, match="without a key"):
        tx = make(gx)
    assert tx == make(gx, key=0)
    with pytest.warns(UserWarning):
        make(optax)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pickle.loads(pickle.dumps(tx)) == eval(repr(tx), names_of(gx).copy()) == tx


@pytest.mark.parametrize("name", list(NOISY))
def test_seed_is_the_old_name_of_key(name):
    make = NOISY[name]
    for library in (gx, optax):
        with pytest.warns(DeprecationWarning, match="seed"):
            tx = make(library, seed=3)
        with pytest.raises(ValueError, match="seed"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make(library, key=3, seed=3)
        assert library is optax or tx == make(gx, key=3)


def test_warnings_of_noise_point_at_the_caller():
    with pytest.warns(UserWarning) as seen:
        gx.add_noise(0.1, 0.5)
    assert seen[0].filename == __file__


@pytest.mark.parametrize("key", [3, jax.random.key(3)], ids=["seed", "key"])
def test_a_key_is_accepted_among_injected_hyperparameters(key):
    tx = gx.inject_hyperparams(gx.noisy_sgd)(0.1, key=key)
    state = tx.init(PARAMS)
    plain = gx.noisy_sgd(0.1, key=key)
    want, _ = plain.update(GRADS, plain.init(PARAMS))
    updates, _ = jax.jit(tx.update)(GRADS, state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), updates, want)


def test_optimistic_adam_warns_as_in_optax():
    for library in (gx, optax):
        with pytest.warns(DeprecationWarning, match="use `optimistic_adam_v2` instead"):
            library.optimistic_adam(0.1)


# ------------------------------------------------------------------ standing in, pairs of weights


def test_map_params_works_where_this_library_is_imported_as_optax(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", gx)
    tx = gx.chain(gx.masked(gx.adam(0.1), {"w": True, "b": False}), gx.ema(0.9))
    state = tx.init(PARAMS)
    marked = gx.tree.map_params(tx, lambda x: 1, state, transform_non_params=lambda x: 0)
    functional = gx.GradientTransformation(tx.init, tx.update)
    assert gx.tree_map_params(functional, lambda x: 1, state) is not None
    assert jax.tree.leaves(marked).count(1) == 2 + 2  # mu and nu of w; the average of both


class FastAndSlow(NamedTuple):
    """Parameters of a network with two branches, which are not a pair of weights."""

    fast: Any
    slow: Any


class Layer(NamedTuple):
    b: Any
    w: Any


@pytest.mark.parametrize("kind", [FastAndSlow, Layer])
def test_lookahead_takes_named_tuples_as_parameters(kind):
    def train(params, grads):
        tx = gx.lookahead(gx.adam(0.1), sync_period=2, slow_step_size=0.5)
        state = tx.init(params)
        for _ in range(3):
            updates, state = tx.update(grads, state, params)
            params = gx.apply_updates(params, updates)
        return params, state.slow

    got, slow = train(kind(*PARAMS.values()), kind(*GRADS.values()))
    assert type(got) is type(slow) is kind
    want, its_slow = train(PARAMS, GRADS)
    assert_same(tuple(got), tuple(want.values()))
    assert_same(tuple(slow), tuple(its_slow.values()))


@pytest.mark.parametrize("pair", [gx.LookaheadParams, optax.LookaheadParams])
def test_lookahead_still_takes_a_pair_of_weights(pair):
    tx = gx.lookahead(gx.sgd(0.1), sync_period=2, slow_step_size=0.5)
    params = pair.init_synced(Layer(*PARAMS.values()))
    updates, state = tx.update(Layer(*GRADS.values()), tx.init(params), params)
    assert type(updates) is pair
    assert type(state) is gx.LookaheadState


def test_a_transform_is_no_tree_and_no_instance_of_optax_class_but_is_led_to_it(capsys):
    # Optax's class is a named tuple without an ABC: an instance is a tree of two functions.
    tx = gx.adam(0.1)
    assert type(optax.GradientTransformation) is type
    assert len(jax.tree.leaves(gx.as_optax(tx))) == 2 and jax.tree.leaves(tx) == [tx]
    assert not isinstance(tx, optax.GradientTransformation) and not isinstance(tx, tuple)
    assert isinstance(gx.as_optax(tx), optax.GradientTransformation)
    with pytest.raises(SystemExit):
        main(["describe", "--help"])
    assert "give it gx.as_optax(tx)" in " ".join(capsys.readouterr().out.split())
    assert "`as_optax(tx)`" in str(gx.describe.__doc__)
    [row] = [r for r in differences.differences() if r.where.startswith("`isinstance(tx, Grad")]
    assert "only `as_optax(tx)`" in row.here
