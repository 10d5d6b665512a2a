"""The states of rules: their kinds, their slots, and states from elsewhere."""

from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.slots import zeros_like

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
GRADS = jax.tree.map(lambda p: 0.5 * p, PARAMS)


class PlainState(NamedTuple):
    mu: gx.Slot


class CountingState(NamedTuple):
    count: Any
    mu: gx.Slot


@gx.transform(name="test:averaging")
class averaging(gx.ArrayRule):
    """A rule with two kinds of state, neither of which it declares."""

    counts: bool = False

    def init(self, params):
        mu = zeros_like(params)
        return CountingState(jnp.zeros((), jnp.int32), mu) if self.counts else PlainState(mu)

    def rule(self, g, m, p):
        m = (m + g) / 2
        return m, m


def test_a_state_of_each_rule_is_checked_whichever_init_ran_last():
    plain, counting = averaging(), averaging(counts=True)
    states = plain.init(PARAMS), counting.init(PARAMS)
    for tx, state in zip((plain, counting), states, strict=True):
        _, new = tx.update(GRADS, state, PARAMS)
        np.testing.assert_array_equal(new.mu["b"], 0.25)
    with pytest.raises(TypeError, match=r"averaging: the state must be of kind PlainState"):
        plain.update(GRADS, states[1], PARAMS)


def test_a_state_from_elsewhere_is_checked_without_an_init():
    state = PlainState(zeros_like(PARAMS))
    tx = averaging(counts=False)
    assert tx.update(GRADS, state, PARAMS)[1].mu["w"].shape == (2, 3)
    with pytest.raises(TypeError, match=r"must be of kind CountingState, got PlainState"):
        averaging(counts=True).update(GRADS, state, PARAMS)


def unresolvable():
    """A rule whose state has annotations that mean nothing at run time, one by one."""

    class State(NamedTuple):
        count: "OnlyForTypeCheckers"  # noqa: F821
        mu: "gx.Slot"
        tail: "Any"

    @gx.transform(name="test:unresolvable")
    class rule_of_strings(gx.ArrayRule):
        def init(self, params):
            return State(jnp.zeros((), jnp.int32), zeros_like(params), ())

        def rule(self, g, m, p):
            return m + g, m + g

    return rule_of_strings()


def test_a_rule_whose_annotations_cannot_be_resolved_finds_its_slots():
    tx = unresolvable()
    updates, state = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    np.testing.assert_array_equal(updates["w"], 0.5)
    np.testing.assert_array_equal(state.mu["w"], 0.5)
    specs = gx.tree.map_params(tx, lambda _: "slot", state, transform_non_params=lambda _: "other")
    assert specs.mu == {"w": "slot", "b": "slot"} and specs.count == "other"


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("adam", (0.1,)),
        ("rmsprop", (0.1,)),
        ("sgd", (0.1, 0.9)),
        ("lion", (0.1,)),
        ("lamb", (0.1,)),
    ],
)
def test_a_state_of_optax_is_taken_as_it_is(name, arguments):
    ours, theirs = getattr(gx, name)(*arguments), getattr(optax, name)(*arguments)
    with jax.numpy_dtype_promotion("standard"):
        _, live = theirs.update(GRADS, theirs.init(PARAMS), PARAMS)
        wanted, after = theirs.update(GRADS, live, PARAMS)
    updates, state = ours.update(GRADS, live, PARAMS)
    # Optax rounds 1 - b^t, by some 1e-5 of itself in the first steps.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=5e-5), updates, wanted)
    assert jax.tree.structure(state[0]) == jax.tree.structure(after[0])
    assert type(state[0]) is type(live[0])


@pytest.mark.parametrize(
    "tx",
    [
        gx.clip_by_global_norm(1.0),
        gx.clip(1.0),
        gx.identity(),
        gx.scale(2.0),
        gx.scale_by_learning_rate(0.1),
        gx.add_decayed_weights(0.1),
        gx.stateless(lambda updates, params: updates),
        gx.stateless_with_tree_map(lambda g, p: g),
    ],
    ids=lambda tx: type(tx).__name__,
)
@pytest.mark.parametrize("state", [None, (), {}, gx.ScaleByScheduleState(jnp.zeros((), jnp.int32))])
def test_a_transform_without_memory_takes_any_state(tx, state):
    updates, new = tx.update(GRADS, state, PARAMS)
    assert new == gx.EmptyState() and type(new) is gx.EmptyState
    assert jax.tree.structure(updates) == jax.tree.structure(GRADS)


FALLING = gx.linear_schedule(0.1, 0.0, 10)


def test_structure_follows_type_and_never_value():
    def kinds(decay, mask=None):
        return gx.add_decayed_weights(decay, mask).init(PARAMS)

    empty = gx.EmptyState()
    assert kinds(0.0) == kinds(0.1) == empty
    assert kinds(gx.constant_schedule(0.0)).count == 0
    rate = gx.scale_by_learning_rate
    assert rate(0.0).init(PARAMS) == rate(1.0).init(PARAMS) == empty
    assert rate(gx.constant_schedule(0.1)).init(PARAMS).count == 0
    traced = []
    jax.vmap(lambda lr: traced.append(rate(lr).init(PARAMS)) or lr)(jnp.ones(2))
    assert traced == [empty]


@pytest.mark.parametrize("decay", [0.5, gx.constant_schedule(0.5)])
def test_a_masked_decay_keeps_its_place_in_a_run(decay):
    tx = gx.chain(gx.trace(0.9), gx.add_decayed_weights(decay, gx.ndim_at_least(2)), gx.scale(-1.0))
    state = tx.init(PARAMS)
    assert type(state[1]).__name__ == "MaskedState"
    updates, state = tx.update(GRADS, state, PARAMS)
    np.testing.assert_array_equal(updates["w"], -1.0)
    np.testing.assert_array_equal(updates["b"], -0.5)
    assert len(tx._plan) == 1
    if callable(decay):
        assert state[1].inner_state.count == 1
    else:
        assert state[1].inner_state == gx.EmptyState()


def test_the_one_count_of_a_state_is_the_step():
    tx = gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(0.1, weight_decay=0.1))
    state = tx.init(PARAMS)
    for _ in range(3):
        _, state = tx.update(GRADS, state, PARAMS)
    assert gx.tree.get(state, "count") == 3


def test_a_schedule_says_that_a_constant_had_no_count():
    state = gx.sgd(0.1).init(PARAMS)
    with pytest.raises(TypeError, match=r"must be of kind ScaleByScheduleState, got EmptyState"):
        gx.sgd(FALLING).update(GRADS, state, PARAMS)


@pytest.mark.parametrize("made", [dict, OrderedDict])
def test_named_chain_keeps_the_kind_of_its_state(made):
    tx = gx.named_chain(("z", gx.trace(0.9)), ("a", gx.chain(gx.named_chain(("m", gx.scale(2.0))))))
    state = tx.init(PARAMS)
    assert type(state) is OrderedDict and list(state) == ["z", "a"]
    given = made(state)
    _, new = tx.update(GRADS, given, PARAMS)
    assert jax.tree.structure(new) == jax.tree.structure(given)


def test_external_step_keeps_the_kind_of_its_state():
    tx = gx.external_step(gx.named_chain(("a", gx.adam(0.1)), ("b", gx.scale(1.0))))
    state = tx.init(PARAMS)
    _, new = tx.update(GRADS, state, PARAMS, step=7)
    assert jax.tree.structure(new) == jax.tree.structure(state) and new["a"][0].count == 8


def test_agn_keeps_the_kind_of_its_states():
    tx = gd.agn(gx.named_chain(("z", gx.adam(0.1)), ("a", gx.scale(1.0))), "replica", period=1)
    params = jax.tree.map(lambda p: jnp.stack([p, p]), PARAMS)

    def step(params):
        state = tx.init(params)
        _, new = tx.step(params, state, params)
        return state, new

    state, new = jax.vmap(step, axis_name="replica")(params)
    assert jax.tree.structure(new) == jax.tree.structure(state)


OPTAX_RUNS = {
    "adam": lambda m: m.adam(0.1),
    "adamw": lambda m: m.adamw(m.constant_schedule(0.1), mask={"w": True, "b": False}),
    "clip": lambda m: m.chain(m.clip_by_global_norm(1.0), m.lion(0.1)),
    "MultiSteps": lambda m: m.MultiSteps(m.adam(0.1), 2),
    "apply_if_finite": lambda m: m.apply_if_finite(m.sgd(0.1), 2),
    "inject": lambda m: m.inject_hyperparams(m.adam)(0.1),
    "partition": lambda m: m.partition({"a": m.sgd(0.1, 0.9)}, {"w": "a", "b": "a"}),
    "noisy": lambda m: m.noisy_sgd(0.1, key=0),
}


@pytest.mark.parametrize("name", OPTAX_RUNS)
def test_a_state_of_optax_is_carried_by_a_loop(name):
    tx, state = OPTAX_RUNS[name](gx), OPTAX_RUNS[name](optax).init(PARAMS)

    def step(state, g):
        return tx.update(g, state, PARAMS)[1], None

    after = jax.eval_shape(lambda s: jax.lax.scan(step, s, GRADS_OF_STEPS)[0], state)
    assert jax.tree.structure(after) == jax.tree.structure(state)


GRADS_OF_STEPS = jax.tree.map(lambda g: jnp.stack([g, g]), GRADS)


def test_a_masked_branch_without_arrays_is_one_node():
    params = {"h": jnp.ones((2, 3)), "e": {}}
    for make in (
        lambda m: m.masked(m.trace(0.9), lambda p: {"h": True, "e": False}),
        lambda m: m.partition({"a": m.trace(0.9), "b": m.trace(0.5)}, {"h": "a", "e": "b"}),
    ):
        ours, theirs = make(gx).init(params), make(optax).init(params)
        assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
        updates, new = make(gx).update(params, ours, params)
        assert jax.tree.structure(new) == jax.tree.structure(ours)
        assert jax.tree.structure(updates) == jax.tree.structure(params)
