"""A run of Optax continues here, and a run of ours continues in Optax.

By live states, pickles, msgpack, Orbax, and the plain dicts that a checkpoint without a target is.
"""

import itertools
import pickle
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

import gradxform as gx
from gradxform import interop
from tests.interop.optax_calls import (
    CALLS,
    MISTAKEN,
    OPTAX,
    Call,
    as_optax_wants,
    drawn,
    falling,
    labels_of,
    matrices,
    params_of,
)

pytestmark = pytest.mark.numeric

BEFORE, AFTER = 30, 3
# Bias corrections, which differ by 6e-6 in the first thousand steps, are 1 after so many.
LATE = 100_000
USUAL = [call for call in CALLS if call.usual]
SAME = [call for call in USUAL if call.reason is None]
# The calls that also take a live state of the other library: its classes do not depend on numbers.
LIVE = {call.name: call for call in reversed(SAME)}


def gradient_function(call):
    """Gradients of each step: a drift, which lasts, and a wave that turns signs."""
    lead = (3,) if call.arrays == "examples" else ()
    drift, wave = drawn(call.arrays, 1, *lead), drawn(call.arrays, 2, *lead)
    return lambda n: jax.tree.map(lambda a, b: 0.3 * a + b * jnp.sin(n + 1.0), drift, wave)


class Run:
    """A run of one library; its program is compiled once."""

    def __init__(self, call, tx, library):
        self.params = params_of(call, library)
        self.init, self.update = tx.init, tx.update
        grads = gradient_function(call)

        @jax.jit
        def steps(params, state, first, last):
            def step(n, carry):
                params, state, _ = carry
                g = grads(jnp.asarray(n, jnp.float32))
                updates, state = tx.update(g, state, params, **call.extra)
                return jax.tree.map(jnp.add, params, updates), state, updates

            return jax.lax.fori_loop(first, last, step, (params, state, params))

        @jax.jit
        def one(params, state):
            return tx.update(grads(jnp.float32(BEFORE)), state, params, **call.extra)[0]

        self.steps, self.one = steps, one

    def begun(self, late=True):
        """Parameters and state after some steps, or after as many as the counts say."""
        params, state, _ = self.steps(self.params, self.init(self.params), 0, BEFORE)
        if late and gx.tree.get_all_with_path(state, "count"):
            state = gx.tree.set(state, count=jnp.asarray(LATE, jnp.int32))
        return params, state

    def updates(self, params, state, after=AFTER):
        """The last of some updates from there."""
        return self.steps(params, state, BEFORE, BEFORE + after)[2]


def both(call):
    return Run(call, call.ours(), gx), Run(call, call.theirs(), OPTAX)


def assert_close(a, b, tolerance):
    """Equal up to that part of the size of the updates."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.max(np.abs(x - y), initial=0) <= tolerance * np.max(np.abs(y), initial=1e-30)


# Their updates are differences of parameters, or products of matrices: sums in another order.
COARSE = {"lookahead", "scale_by_cocob", "cocob", "scale_by_muon", "muon", "mechanize", "sam"}
COARSE |= {"schedule_free", "schedule_free_adamw", "schedule_free_sgd"}


def tolerance_of(call):
    if "bfloat16" in call.said:
        return np.inf  # Optax computes in it, we round to it
    return 3e-5 if call.name in COARSE else 1e-6


def like(params, run):
    """Parameters as that library has them: a pair has a class."""
    return jax.tree.unflatten(jax.tree.structure(run.params), jax.tree.leaves(params))


def assert_identical(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


def has_keys(state):
    """Whether it holds a PRNG key."""
    return any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(state))


def packs(state):
    """Whether msgpack takes it: Flax packs neither keys nor the dict of a named chain."""
    return not has_keys(state) and not isinstance(state, OrderedDict)


# In Optax these compare the classes of a state before and after, as masks do those of holes.
COMPARING = {
    "MultiSteps",
    "apply_if_finite",
    "conditionally_mask",
    "conditionally_transform",
    "reduce_on_plateau",
    "sam",
    "sophia",
}


def takes_our_classes(call, state):
    """Whether Optax compares no class of this state with its own."""
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, gx.MaskedNode))
    if call.name in COMPARING or any(isinstance(x, gx.MaskedNode) for x in leaves):
        return False
    return "reset_state=True" not in call.said and "inside" not in call.said


@pytest.mark.parametrize("call", SAME, ids=str)
def test_a_run_goes_on_in_the_other_library(call):
    ours, theirs = both(call)
    check_here(call, ours, theirs)
    check_there(call, ours, theirs)


def check_here(call, ours, theirs):
    """Continue a run of Optax here."""
    with as_optax_wants():
        params, state = theirs.begun()
        want = theirs.updates(params, state)
        first = theirs.updates(params, state, 1)
    target = ours.init(ours.params)
    if LIVE[call.name] is call:
        assert_close(ours.one(like(params, ours), state), first, tolerance_of(call))
    fitted = interop.from_optax_state(call.ours(), pickle.loads(pickle.dumps(state)), ours.params)
    assert jax.tree.structure(fitted) == jax.tree.structure(target)
    assert_identical(fitted, state)
    assert_close(ours.updates(like(params, ours), fitted), want, tolerance_of(call))
    if packs(state):
        as_bytes = serialization.to_bytes(state)
        assert_identical(serialization.from_bytes(target, as_bytes), state)
        plain = serialization.msgpack_restore(as_bytes)
        assert_identical(interop.from_optax_state(call.ours(), plain, ours.params), state)


def check_there(call, ours, theirs):
    """Continue a run of ours in Optax."""
    params, state = ours.begun()
    want = ours.updates(params, state)
    first = ours.updates(params, state, 1)
    fitted = interop.to_optax_state(call.ours(), state, ours.params)
    with as_optax_wants():
        params = like(params, theirs)
        is_live = LIVE[call.name] is call and takes_our_classes(call, state)
        live = theirs.one(params, state) if is_live else first
        target = theirs.init(theirs.params)
        got = theirs.updates(params, fitted)
    assert_close(live, first, tolerance_of(call))
    assert_close(got, want, tolerance_of(call))
    assert jax.tree.structure(fitted) == jax.tree.structure(target)
    assert_identical(fitted, state)
    if packs(state):
        restored = serialization.from_bytes(target, serialization.to_bytes(state))
        assert_identical(restored, fitted)


@pytest.mark.parametrize("call", [c for c in USUAL if c.reason is not None], ids=str)
def test_what_lies_differently_is_converted_both_ways(call):
    ours, theirs = both(call)
    with as_optax_wants():
        params, state = theirs.begun(late=call.reason != MISTAKEN)
        want = theirs.updates(params, state)
    target = ours.init(ours.params)
    for given in (state, serialization.to_state_dict(state)):
        fitted = interop.from_optax_state(call.ours(), given, ours.params)
        assert jax.tree.structure(fitted) == jax.tree.structure(target)
        assert_close(ours.updates(like(params, ours), fitted), want, tolerance_of(call))
    back = interop.to_optax_state(call.ours(), fitted, ours.params)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for x, y in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True):
        assert x.shape == y.shape
        if not has_keys(x):
            np.testing.assert_array_equal(x, y)


def chained(lib):
    """A transform with a state of most kinds: schedules, masks, labels, hyperparameters, a key."""
    return lib.chain(
        lib.clip_by_global_norm(0.5),
        lib.add_noise(0.01, 0.5, key=1),
        lib.MultiSteps(
            lib.inject_hyperparams(lib.adamw, static_args="mask")(falling, mask=matrices), 2
        ),
        lib.masked(lib.trace(0.9), {"dense": True, "scale": False}),
        lib.partition({"a": lib.sgd(1.0, 0.5), "b": lib.rmsprop(falling)}, labels_of),
    )


def orbax_all(path, states, targets):
    """Save states by name, in one checkpoint; restore them with targets, and as plain dicts."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, states)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path, targets), checkpointer.restore(path)


@pytest.mark.filterwarnings("ignore")  # Orbax and what it imports warn of their own deprecations
def test_orbax_carries_every_state_from_optax_to_us_and_back(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    with as_optax_wants():
        theirs = {f"{i}": c.theirs().init(params_of(c, OPTAX)) for i, c in enumerate(SAME)}
    # It saves no empty arrays, such as galore's projectors of what it does not project.
    theirs = {k: s for k, s in theirs.items() if all(x.size for x in jax.tree.leaves(s))}
    calls = {k: SAME[int(k)] for k in theirs}
    assert len(calls) > 0.95 * len(SAME)
    ours = {k: call.ours().init(params_of(call)) for k, call in calls.items()}
    states = {k: numbered(state) for k, state in theirs.items()}
    mine, plain = orbax_all(tmp_path / "theirs", states, ours)
    for k, call in calls.items():
        assert jax.tree.structure(mine[k]) == jax.tree.structure(ours[k]), call
        assert_identical(mine[k], states[k])
        # What holds no array is not in a checkpoint.
        if jax.tree.leaves(states[k]):
            fitted = interop.from_optax_state(call.ours(), plain[k], params_of(call))
            assert jax.tree.structure(fitted) == jax.tree.structure(ours[k]), call
            assert_identical(fitted, states[k])
    back, plain = orbax_all(tmp_path / "mine", mine, theirs)
    for k, call in calls.items():
        assert jax.tree.structure(back[k]) == jax.tree.structure(theirs[k]), call
        assert_identical(back[k], states[k])
        if jax.tree.leaves(states[k]):
            fitted = interop.to_optax_state(call.ours(), plain[k], params_of(call))
            assert_identical(fitted, states[k])


def numbered(state):
    """A state in which every entry is another number, so that none can take another's place."""
    entries = itertools.count(1)

    def one(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                one(jax.random.key_data(x)), impl=jax.random.key_impl(x)
            )
        values = np.asarray(list(itertools.islice(entries, x.size)), np.int64) % 97
        return jnp.asarray(values.reshape(x.shape).astype(x.dtype))

    return jax.tree.map(one, state)


ORBAX = {
    str(call): call
    for call in (
        Call("chain", "most kinds of states", chained),
        *(c for c in SAME if c.name == "adafactor" and "falling" in c.said),
    )
}


@pytest.mark.filterwarnings("ignore")  # Orbax and what it imports warn of their own deprecations
@pytest.mark.parametrize("name", ORBAX)
def test_orbax_carries_a_state_from_optax_to_us_and_back(name, tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    call = ORBAX[name]
    ours, theirs = both(call)
    with as_optax_wants():
        params, state = theirs.begun()
        want = theirs.updates(params, state)
        their_target = theirs.init(theirs.params)
    params, my_target = like(params, ours), ours.init(ours.params)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theirs", state)
        checkpointer.wait_until_finished()
        mine = checkpointer.restore(tmp_path / "theirs", my_target)
        abstract = checkpointer.restore(tmp_path / "theirs", jax.eval_shape(ours.init, ours.params))
        plain = checkpointer.restore(tmp_path / "theirs")
        checkpointer.save(tmp_path / "mine", mine)
        checkpointer.wait_until_finished()
        back = checkpointer.restore(tmp_path / "mine", their_target)
        plain_back = checkpointer.restore(tmp_path / "mine")
    for restored in (mine, abstract, interop.from_optax_state(call.ours(), plain, ours.params)):
        assert jax.tree.structure(restored) == jax.tree.structure(my_target)
        assert_identical(restored, state)
    assert_close(ours.updates(params, mine), want, tolerance_of(call))
    for restored in (back, interop.to_optax_state(call.ours(), plain_back, ours.params)):
        assert jax.tree.structure(restored) == jax.tree.structure(state)
        assert_identical(restored, state)
