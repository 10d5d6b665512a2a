"""Schedules with a state in `inject_hyperparams`: their states, values and extra arguments."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

PARAMS = {"w": jnp.asarray([[1.0, -2.0], [3.0, 0.5]]), "b": jnp.ones(2)}
LOSSES = jnp.asarray([3.0, 2.0, 2.5, 1.0, 1.5, 1.2])


class BestState(NamedTuple):
    best: Any
    rate: Any


@gx.value(name="tests:halve_when_worse")
class halve_when_worse(gx.Value):
    """Halve a rate at every loss that is not the best one so far."""

    first: float = 0.5

    def init(self):
        return BestState(jnp.asarray(jnp.inf), jnp.asarray(self.first))

    def update(self, state, *, value, **extra_args):
        worse = value >= state.best
        rate = jnp.where(worse, 0.5 * state.rate, state.rate)
        return BestState(jnp.minimum(state.best, value), rate)

    def __call__(self, state, **extra_args):
        return state.rate


class Growing:
    """A plain class, with a state of one array."""

    def init(self):
        return jnp.asarray(1.0)

    def update(self, state, **extra_args):
        return 2 * state

    def __call__(self, state, **extra_args):
        return 0.1 * state


def along(tx):
    """The parameters and hyperparameters after every step, by one scan."""

    def step(carry, value):
        params, state = carry
        updates, state = tx.update(params, state, params, value=value)
        params = jax.tree.map(jnp.add, params, updates)
        return (params, state), (params, state.hyperparams)

    return jax.jit(lambda: jax.lax.scan(step, (PARAMS, tx.init(PARAMS)), LOSSES)[1])()


def close(one, other):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), one, other)


@pytest.mark.parametrize("schedule", [halve_when_worse(0.4), Growing()], ids=["value", "class"])
def test_a_stateful_schedule_makes_the_steps_of_optax(schedule):
    ours, theirs = (
        along(lib.inject_hyperparams(lib.sgd)(schedule, momentum=0.5)) for lib in (gx, optax)
    )
    close(ours, theirs)
    rates = ours[1]["learning_rate"]
    if isinstance(schedule, Growing):
        np.testing.assert_allclose(rates, 0.1 * 2.0 ** np.arange(len(LOSSES)), rtol=1e-6)
    else:  # the value of a step is that before its loss is seen
        np.testing.assert_allclose(rates, [0.4, 0.4, 0.4, 0.2, 0.2, 0.1], rtol=1e-6)


def test_states_and_live_numbers_are_beside_each_other():
    tx = gx.inject_hyperparams(gx.adamw)(
        halve_when_worse(), b1=gx.linear_schedule(0.9, 0.5, 4), weight_decay=0.25
    )
    state = tx.init(PARAMS)
    assert isinstance(state, gx.InjectStatefulHyperparamsState)
    assert type(state.hyperparams_states["learning_rate"]) is BestState
    assert state.hyperparams_states["b1"]._fields == ("count",)
    state.hyperparams["weight_decay"] = 0.0
    _, state = tx.update(PARAMS, state, PARAMS, value=1.0)
    _, state = tx.update(PARAMS, state, PARAMS, value=2.0)
    assert float(state.hyperparams["weight_decay"]) == 0.0
    assert int(state.hyperparams_states["b1"].count) == 2
    assert float(state.hyperparams_states["learning_rate"].rate) == 0.25


def test_a_stateful_schedule_of_values_is_a_value():
    tx = gx.inject_hyperparams(gx.sgd)(halve_when_worse(0.25))
    assert gx.from_json(gx.to_json(tx)) == tx
    assert tx == gx.inject_hyperparams(gx.sgd)(halve_when_worse(0.25))
    assert "halve_when_worse(first=0.25)" in repr(tx)


class FromPython(Growing):
    """Its first state is a Python number."""

    def init(self):
        return 1.0


def test_a_first_state_of_python_numbers_has_a_dtype_that_stays():
    tx = gx.inject_hyperparams(gx.sgd)(FromPython())
    first = tx.init(PARAMS).hyperparams_states["learning_rate"]
    assert first.dtype == jnp.float32 and not first.weak_type
    along(tx)  # a scan requires it


def test_a_description_shows_the_first_value():
    tx = gx.inject_hyperparams(gx.sgd)(halve_when_worse(0.25))
    assert "learning_rate=0.25" in str(gx.describe(tx, PARAMS))


def test_the_extra_argument_of_a_schedule_is_routed_through_wrappers():
    inner = gx.inject_hyperparams(gx.sgd)(halve_when_worse())
    tx = gx.chain(gx.trace(0.9), gx.apply_if_finite(inner, 2))
    assert inner.extra_names() == {"value"}
    state = tx.init(PARAMS)
    for value in (1.0, 2.0):
        _, state = tx.update(PARAMS, state, PARAMS, value=value)
    assert float(state[1].inner_state.hyperparams_states["learning_rate"].rate) == 0.25
    with pytest.raises(TypeError, match=r"no part takes the extra argument 'valeu'"):
        tx.update(PARAMS, state, PARAMS, valeu=1.0)


def test_a_wrapped_schedule_is_the_schedule():
    rate = gx.linear_schedule(0.5, 0.1, 4)
    plain, wrapped = (
        along(gx.inject_hyperparams(gx.sgd)(x)) for x in (rate, gx.WrappedSchedule(rate))
    )
    close(plain, wrapped)
    theirs = optax.WrappedSchedule(rate)
    ours = gx.WrappedSchedule(rate)
    state, other = ours.init(), theirs.init()
    for _ in range(3):
        np.testing.assert_allclose(ours(state), theirs(other), rtol=1e-6)
        state, other = ours.update(state), theirs.update(other)
    assert int(state.count) == 3 and state._fields == other._fields
    assert isinstance(ours, gx.StatefulSchedule) and isinstance(
        ours, optax.schedules.StatefulSchedule
    )
    assert not isinstance(rate, gx.StatefulSchedule)


def test_the_deprecated_name_warns_and_works():
    with pytest.warns(DeprecationWarning, match="use inject_hyperparams"):
        tx = gx.inject_stateful_hyperparams(gx.sgd)
    assert tx == gx.inject_hyperparams(gx.sgd)
    assert gx.InjectHyperparamsState._fields == optax.InjectHyperparamsState._fields


class Reshaping(Growing):
    def update(self, state, **extra_args):
        return jnp.ones(3)


class Asking(Growing):
    def __call__(self, state, *, value):
        return value


class Vector(Growing):
    def __call__(self, state, **extra_args):
        return jnp.ones(2)


WHERE = "inject_hyperparams: sgd: learning_rate: "


@pytest.mark.parametrize(
    "schedule, message",
    [
        (Reshaping(), WHERE + "Reshaping changed the shape of"),
        (Asking(), WHERE + "Asking needs the extra argument 'value'; give it a default"),
        (Vector(), WHERE + "Vector: a schedule's value must be one real number"),
        (
            halve_when_worse(),
            WHERE + "tests:halve_when_worse needs the extra argument",
        ),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_broken_stateful_schedule_is_refused_by_name(schedule, message):
    tx = gx.inject_hyperparams(gx.sgd)(schedule)
    with pytest.raises((TypeError, ValueError)) as caught:
        tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    assert str(caught.value).startswith(message)


def test_a_stateful_schedule_is_refused_where_its_state_has_no_place():
    with pytest.raises(TypeError, match=r"must be a number or a schedule, got Wr.*inj"):
        gx.sgd(gx.WrappedSchedule(gx.constant_schedule(0.1)))
    with pytest.raises(TypeError, match=r"with a state needs inject_hyperparams"):
        gx.adam(Growing())


class Adding:
    """A schedule whose first state is an integer, and which adds what the update brings."""

    def init(self):
        return {"total": jnp.zeros((), jnp.int32), "steps": jnp.zeros((), jnp.int32)}

    def update(self, state, *, more, **extra_args):
        return {"total": more + state["total"].astype(more.dtype), "steps": state["steps"] + 1}

    def __call__(self, state, **extra_args):
        return state["total"]


def test_an_integer_of_a_schedules_state_becomes_the_float_that_an_update_brings():
    tx = gx.inject_hyperparams(gx.scale)(Adding())
    state, more = tx.init(PARAMS), jnp.asarray(0.25, jnp.float16)
    for _ in range(3):
        updates, state = jax.jit(tx.update)(PARAMS, state, PARAMS, more=more)
    close(updates, jax.tree.map(lambda x: 0.5 * x, PARAMS))
    kept = state.hyperparams_states["step_size"]
    assert kept["total"] == 0.75 and kept["total"].dtype == jnp.float32
    assert kept["steps"] == 3 and kept["steps"].dtype == jnp.int32


class TakesAny:
    """A schedule that looks for the loss among all extra arguments."""

    def init(self):
        return jnp.asarray(0.5)

    def update(self, state, **extra_args):
        return 0.1 * jnp.asarray(extra_args["value"], jnp.float32)

    def __call__(self, state, **extra_args):
        return state


def test_a_schedule_that_names_no_extra_argument_gets_all():
    tx = gx.chain(gx.inject_hyperparams(gx.sgd)(TakesAny()))
    state = tx.init(PARAMS)
    for value, rate in ((3.0, 0.5), (2.0, 0.3), (1.0, 0.2)):
        updates, state = tx.update(PARAMS, state, PARAMS, value=value)
        close(updates, jax.tree.map(lambda p, r=rate: -r * p, PARAMS))
