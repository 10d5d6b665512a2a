"""Transforms that break one promise each, for tests/testing/test_testing.py."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gradxform as gx
from gradxform import testing
from gradxform.base import call_update
from gradxform.slots import zeros_like

# Two leaves are enough to tell which one is wrong; eight rows can be divided over eight devices.
PARAMS = {"a": jnp.linspace(0.5, 1.0, 8), "b": jnp.ones((8, 2))}


class State(NamedTuple):
    mu: Any


class SlotState(NamedTuple):
    mu: gx.Slot


def momentum_of(params):
    return State(zeros_like(params))


def averaged(mu, updates):
    return jax.tree.map(lambda m, g: 0.9 * m + g.astype(m.dtype), mu, updates)


def like(updates, grads):
    return jax.tree.map(lambda u, g: u.astype(g.dtype), updates, grads)


class Momentum(gx.Transform):
    """A right one, in the parts that are broken below."""

    def init(self, params):
        return momentum_of(params)

    def step(self, updates, mu):
        return mu

    def update(self, updates, state, params=None, **extra):
        mu = jax.tree.map(
            lambda m, g: m if g is None else 0.9 * m + g.astype(m.dtype),
            state.mu,
            updates,
            is_leaf=lambda x: x is None,
        )
        out = jax.tree.map(
            lambda m, g: None if g is None else m.astype(g.dtype),
            self.step(updates, mu),
            updates,
            is_leaf=lambda x: x is None,
        )
        return out, State(mu)


@gx.transform(name="tests:right")
class right(Momentum):
    locality = "entry"


@gx.transform(name="tests:state_changes_dtype")
class state_changes_dtype(Momentum):
    def update(self, updates, state, params=None, **extra):
        updates, state = super().update(updates, state, params)
        return updates, State({**state.mu, "b": state.mu["b"].astype(jnp.float16)})


@gx.transform(name="tests:slots_on_one_device")
class slots_on_one_device(Momentum):
    def init(self, params):
        return State(jax.tree.map(lambda p: jnp.zeros(p.shape), params))


@gx.transform(name="tests:weak_type")
class weak_type(Momentum):
    def init(self, params):
        return State({**zeros_like(params), "b": jnp.asarray(0.0)})

    def update(self, updates, state, params=None, **extra):
        return updates, state


@gx.transform(name="tests:state_grows")
class state_grows(Momentum):
    def update(self, updates, state, params=None, **extra):
        return updates, State({**state.mu, "c": jnp.zeros(())})


@gx.transform(name="tests:updates_change_dtype")
class updates_change_dtype(Momentum):
    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(lambda g: g.astype(jnp.float32), updates), state


@gx.transform(name="tests:nan_on_zeros")
class nan_on_zeros(gx.ArrayRule):
    def rule(self, g, p):
        return g / jnp.sqrt(jnp.sum(g * g)) if g.ndim == 2 else g


@gx.transform(name="tests:root_of_zero")
class root_of_zero(gx.ArrayRule):
    def rule(self, g, p):
        return g / (jnp.sqrt(g * g) + 1e-8) if g.ndim == 2 else g


@gx.transform(name="tests:stops_a_derivative")
class stops_a_derivative(gx.ArrayRule):
    def rule(self, g, p):
        return g * jax.lax.stop_gradient(g) if g.ndim == 2 else g


class InnerState(NamedTuple):
    inner_state: Any


@gx.transform(name="tests:divides_by_the_mean_norm")
class divides_by_the_mean_norm(gx.Transform):
    """Divide the inner updates by the mean of their norms, and forget to tell what is inside."""

    inner: Any = gx.sgd(0.1)

    holds = (("inner", "inner_state"),)

    def init(self, params):
        return InnerState(self.inner.init(params))

    def update(self, updates, state, params=None, **extra):
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        norms = [jnp.linalg.norm(u.astype(jnp.float32)) for u in jax.tree.leaves(updates)]
        mean = sum(norms) / len(norms) + 1e-6
        divided = jax.tree.map(lambda u: (u / mean).astype(u.dtype), updates)
        return divided, InnerState(inner_state)


class Around(gx.Transform):
    """Pass everything on, in the wrappers below."""

    inner: Any

    def init(self, params):
        return InnerState(self.inner.init(params))

    def update(self, updates, state, params=None, **extra):
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        return updates, InnerState(inner_state)


@gx.transform(name="tests:keeps_moves_to_itself")
class keeps_moves_to_itself(Around):
    """Pass everything on, and forget to say what it holds."""

    inner: Any = gx.sgd(0.1)


@gx.transform(name="tests:taints_a_state")
class taints_a_state(gx.Transform):
    """Leave a step out by a factor of 0, in what it keeps for the inner transform."""

    inner: Any = gx.sgd(0.1)

    holds = (("inner", "inner_state"),)

    def init(self, params):
        return InnerState(self.inner.init(params))

    def update(self, updates, state, params=None, **extra):
        zero = sum(jnp.sum(g) for g in jax.tree.leaves(updates)).astype(jnp.float32) * 0.0
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        inner_state = jax.tree.map(
            lambda x: x + zero if jnp.issubdtype(x.dtype, jnp.floating) else x, inner_state
        )
        return updates, InnerState(inner_state)


@gx.transform(name="tests:takes_two_steps")
class takes_two_steps(Around):
    """Run the inner transform on what it returns, and call that a step."""

    inner: Any = gx.sgd(0.1)

    def update(self, updates, state, params=None, **extra):
        for _ in range(2):
            updates, state = super().update(updates, state, params, **extra)
        return updates, state


@gx.transform(name="tests:narrows_updates")
class narrows_updates(Around):
    """Return updates of 16 bits, which round what comes after."""

    inner: Any = gx.sgd(0.1)

    def update(self, updates, state, params=None, **extra):
        updates, state = super().update(updates, state, params, **extra)
        return jax.tree.map(lambda u: u.astype(jnp.bfloat16), updates), state


@gx.transform(name="tests:names_no_axis")
class names_no_axis(Momentum):
    def step(self, updates, mu):
        return jax.lax.pmean(mu, "replica")


@gx.transform(name="tests:binds_an_axis")
class binds_an_axis(Around):
    """Run what it holds as the only replica along an axis."""

    inner: Any = names_no_axis()

    def update(self, updates, state, params=None, **extra):
        def run(_):
            return super(binds_an_axis, self).update(updates, state, params, **extra)

        stacked = jax.vmap(run, axis_name="replica")(jnp.zeros(1))
        return jax.tree.map(lambda x: x[0], stacked)


@gx.transform(name="tests:signs_of_real_parts")
class signs_of_real_parts(gx.ArrayRule):
    handles_complex = True

    def rule(self, g, p):
        return (jnp.sign(jnp.real(g)).astype(g.dtype),)


@gx.transform(name="tests:only_looks")
class only_looks(gx.ArrayRule):
    """A part that passes updates on, and does not say so."""

    def rule(self, g, p):
        return (g,)


@gx.transform(name="tests:averages_silently")
class averages_silently(gx.ArrayRule):
    State = SlotState

    def rule(self, g, mu, p):
        mu = 0.9 * mu + 0.1 * g
        return mu, mu


@gx.transform(name="tests:goes_to_one_place")
class goes_to_one_place(gx.ArrayRule):
    needs_params = True

    def rule(self, g, p):
        return (0.5 - p,)


@gx.transform(name="tests:pulls_to_its_start")
class pulls_to_its_start(gx.ArrayRule):
    State = SlotState
    needs_params = True

    def init(self, params):
        return SlotState(jax.tree.map(jnp.copy, params))

    def rule(self, g, mu, p):
        return 0.1 * (mu - p) - 0.1 * g, mu


@gx.transform(name="tests:begins_as_params_untold")
class begins_as_params_untold(gx.ArrayRule):
    """Keeps a copy of the parameters, and does not say which slot it is."""

    State = SlotState
    needs_params = True

    def init(self, params):
        return SlotState(jax.tree.map(jnp.copy, params))

    def rule(self, g, mu, p):
        return g, 0.9 * mu + 0.1 * p


@gx.transform(name="tests:casts_to_real")
class casts_to_real(Momentum):
    """Casts whatever it gets to a real dtype, with `lax`, which only warns."""

    handles_complex = True

    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(lambda g: jax.lax.convert_element_type(g, jnp.float32), updates), state


@gx.transform(name="tests:branches_on_its_number")
class branches_on_its_number(gx.ArrayRule):
    decay: float = 0.9

    def rule(self, g, p):
        return self.decay * g if self.decay > 0.5 else g


class AveragesUntoldState(NamedTuple):
    count: Any
    average: Any
    inner_state: Any


@gx.transform(name="tests:averages_untold")
class averages_untold(gx.Transform):
    """Averages the parameters after each inner step, and does not hear what becomes of the step."""

    inner: Any

    holds = (("inner", "inner_state"),)

    def init(self, params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AveragesUntoldState(jnp.zeros((), jnp.int32), zeros, self.inner.init(params))

    def update(self, updates, state, params=None, **extra):
        updates, inner_state = call_update(self.inner, updates, state.inner_state, params, extra)
        count = state.count + 1
        average = jax.tree.map(
            lambda a, p: a + (p - a) / count.astype(a.dtype),
            state.average,
            gx.apply_updates(params, updates),
        )
        return updates, AveragesUntoldState(count, average, inner_state)


@gx.transform(name="tests:boxes_by_number")
class boxes_by_number(Momentum):
    """Lists its slots, in which nobody knows whose a box is."""

    def init(self, params):
        boxes = jax.tree.leaves(params, is_leaf=lambda x: hasattr(x, "names"))
        return State([jax.tree.map(lambda x: jnp.zeros(x.shape[:1]), box) for box in boxes])


@gx.transform(name="tests:shares_with_params")
class shares_with_params(Momentum):
    def init(self, params):
        return State({**zeros_like(params), "b": params["b"]})


@gx.transform(name="tests:shares_between_slots")
class shares_between_slots(Momentum):
    def init(self, params):
        mu = zeros_like(params)
        return State({"one": mu, "two": {**zeros_like(params), "b": mu["b"]}})

    def update(self, updates, state, params=None, **extra):
        return updates, state


@gx.transform(name="tests:prints_anyhow")
class prints_anyhow(Momentum):
    def __repr__(self):
        return "prints_something()"


@gx.transform(name="tests:forgets_a_field")
class forgets_a_field(Momentum):
    rate: float = 0.1

    def __repr__(self):
        return "forgets_a_field()"


@gx.transform(name="tests:not_for_json")
class not_for_json(Momentum):
    names: Any = frozenset({"a"})


@gx.transform(name="tests:fills_holes")
class fills_holes(Momentum):
    def update(self, updates, state, params=None, **extra):
        filled = jax.tree.map(
            lambda g, p: jnp.zeros_like(p) if g is None else g,
            updates,
            zeros_like(PARAMS) if params is None else params,
            is_leaf=lambda x: x is None,
        )
        return filled, state


@gx.transform(name="tests:cannot_take_holes")
class cannot_take_holes(Momentum):
    def update(self, updates, state, params=None, **extra):
        mu = averaged(state.mu, updates)
        return like(mu, updates), State(mu)


@gx.transform(name="tests:moves_frozen_slots")
class moves_frozen_slots(Momentum):
    def update(self, updates, state, params=None, **extra):
        out, _ = super().update(updates, state, params)
        return out, State(jax.tree.map(lambda m: m + 1, state.mu))


@gx.transform(name="tests:leaks_by_a_closure")
class leaks_by_a_closure(Momentum):
    def step(self, updates, mu):
        clipped = jax.custom_jvp(lambda x: jax.tree.map(jnp.minimum, x, mu))
        clipped.defjvp(lambda xs, ts: (jax.tree.map(jnp.minimum, *xs, mu), ts[0]))
        return clipped(mu)


@gx.transform(name="tests:wrong_sign")
class wrong_sign(gx.ArrayRule):
    locality = "array"  # it knows where in the array it is

    def init(self, params):
        return SlotState(zeros_like(params))

    def rule(self, g, m, p):
        m = 0.9 * m + g
        return jnp.where(jnp.arange(m.size).reshape(m.shape) == 3, -m, m), m


@gx.transform(name="tests:looks_for_tracers")
class looks_for_tracers(Momentum):
    def update(self, updates, state, params=None, **extra):
        scale = 1.0 if isinstance(updates["b"], jax.core.Tracer) else 2.0
        return {**updates, "b": updates["b"] * scale}, state


CALLS = []


@gx.transform(name="tests:remembers_in_python")
class remembers_in_python(Momentum):
    def update(self, updates, state, params=None, **extra):
        CALLS.append(1)
        return {**updates, "a": updates["a"] * len(CALLS)}, state


@gx.transform(name="tests:branches_on_a_number")
class branches_on_a_number(Momentum):
    def update(self, updates, state, params=None, **extra):
        return (updates if updates["a"].sum() > 0 else dict(updates)), state


@gx.transform(name="tests:narrow_slots")
class narrow_slots(Momentum):
    def init(self, params):
        return State({**zeros_like(params), "b": jax.tree.map(jnp.zeros_like, params["b"])})


@gx.transform(name="tests:names_a_width")
class names_a_width(Momentum):
    def init(self, params):
        return State({**zeros_like(params), "b": jnp.zeros(params["b"].shape, jnp.float32)})

    def update(self, updates, state, params=None, **extra):
        slots = jax.tree.map(lambda m: m + jnp.zeros_like(m, jnp.result_type(float)), state.mu)
        return updates, State(slots)


@gx.transform(name="tests:rounds_early")
class rounds_early(Momentum):
    def update(self, updates, state, params=None, **extra):
        if updates["b"].dtype == jnp.bfloat16:
            updates = {**updates, "b": updates["b"] + updates["b"] - updates["b"] * 1.9}
        return updates, state


@gx.transform(name="tests:positional_only")
class positional_only(Momentum):
    handles_rows = True  # else it is not called directly

    def update(self, updates, state, params=None, /, **extra):
        return updates if params is None else jax.tree.map(jnp.add, updates, params), state


@gx.transform(name="tests:no_extras")
class no_extras(Momentum):
    def update(self, updates, state, params=None):
        return updates, state


@gx.transform(name="tests:calls_back")
class calls_back(Momentum):
    def update(self, updates, state, params=None, **extra):
        b = updates["b"]
        return {**updates, "b": jax.pure_callback(np.asarray, b, b)}, state


@gx.transform(name="tests:looks_at_its_shard")
class looks_at_its_shard(Momentum):
    def init(self, params):
        if isinstance(params["b"], jax.core.Tracer):
            return momentum_of(params)
        mean = jnp.mean(params["a"].addressable_shards[0].data)
        return State({**zeros_like(params), "a": jnp.full_like(params["a"], float(mean))})


@gx.transform(name="tests:keeps_nothing_of_shapes")
class keeps_nothing_of_shapes(Momentum):
    def init(self, params):
        return momentum_of(params if isinstance(params["a"], jax.Array) else {})


@gx.transform(name="tests:infinite_when_huge")
class infinite_when_huge(gx.ArrayRule):
    def rule(self, g, p):
        return g * g if g.ndim == 2 else g


@gx.transform(name="tests:looks_further_than_it_says")
class looks_further_than_it_says(gx.ArrayRule):
    locality = "entry"

    def rule(self, g, p):
        return g - jnp.mean(g)


@gx.transform(name="tests:reads_params_unasked")
class reads_params_unasked(gx.ArrayRule):
    def rule(self, g, p):
        return g + p


@gx.transform(name="tests:silent_without_params")
class silent_without_params(Momentum):
    def update(self, updates, state, params=None, **extra):
        return updates if params is None else jax.tree.map(jnp.add, updates, params), state


class Total(NamedTuple):
    total: Any


@gx.transform(name="tests:sums_what_cancels")
class sums_what_cancels(Momentum):
    """Sum three terms, in another order where it is traced."""

    wrong_by: float = 0.0

    def init(self, params):
        return Total(jnp.zeros((), jnp.float32))

    def update(self, updates, state, params=None, **extra):
        a, b, c = (updates["a"][i].astype(jnp.float32) for i in range(3))
        if isinstance(a, jax.core.Tracer):
            return updates, Total(state.total + ((a + c) + (1 + self.wrong_by) * b))
        return updates, Total(state.total + ((a + b) + c))


def _momentum(g, slots, p, t):
    m = 0.9 * slots[0] + g
    return m, (m,)


REFERENCE = testing.Reference(testing.zeros(1), _momentum)
CARRY, JIT = "state_is_a_scan_carry", "jit_changes_nothing"
ASKS = "asks_for_params_by_name"
VALUE, NARROW = "is_a_value", "narrow_parameters_have_wide_slots"
# (transform, promise, leaf, expected, got), the last two as parts of what is reported.
BROKEN = [
    (state_changes_dtype(), CARRY, "state.mu['b']", "float32[8,2]", "float16[8,2]"),
    (weak_type(), CARRY, "state.mu['b']", "a dtype", "a weakly typed number"),
    (state_grows(), CARRY, "state.mu['c']", "none", "a leaf"),
    (updates_change_dtype(), CARRY, "updates['a']", "bfloat16[8]", "float32[8]"),
    (nan_on_zeros(), "extremes_stay_finite", "updates['b']", "finite numbers of zero", "NaN"),
    (infinite_when_huge(), "extremes_stay_finite", "updates['b']", "of huge", "an infinity"),
    (root_of_zero(), "derivatives_are_finite", "gradients['b']", "gradients of 0", "NaN"),
    (stops_a_derivative(), "derivatives_equal_differences", "updates['b']", "the limit", ""),
    (
        divides_by_the_mean_norm(),
        "what_is_inside_knows_the_parameters",
        "the copy['a']",
        "the parameters",
        "",
    ),
    (
        divides_by_the_mean_norm(),
        "moves_are_known_on_both_sides",
        "the copy, lookahead around['a']",
        "the parameters",
        "",
    ),
    (
        keeps_moves_to_itself(),
        "what_is_inside_is_told_of_moves",
        "the copy['a']",
        "the parameters",
        "",
    ),
    (
        keeps_moves_to_itself(),
        "says_whose_its_states_are",
        "the owner of the state at ['inner_state']['0']",
        "identity",
        "nobody",
    ),
    (
        takes_two_steps(),
        "what_is_inside_takes_the_inner_steps",
        "the count inside",
        "one or none",
        "2 steps",
    ),
    (
        narrows_updates(),
        "what_comes_after_takes_its_updates",
        "the snapshot after it, ['a']",
        "clipped",
        "",
    ),
    (
        binds_an_axis(),
        "names_the_axes_that_it_needs",
        "",
        "all axes along which it exchanges",
        "exchanges = ()",
    ),
    (
        taints_a_state(),
        "a_nan_goes_no_further_than_a_guard",
        "the state inside the guard, ['copy']['a']",
        "numbers",
        "a NaN",
    ),
    (
        signs_of_real_parts(),
        "turns_with_complex_numbers_or_refuses",
        "updates[0]['a']",
        "turned as the gradients are",
        "entries off",
    ),
    (only_looks(), "says_what_its_updates_are", "", "keeps_updates", "the updates that it gets"),
    (averages_silently(), "says_what_its_state_holds", "state", "{'mu': 'g'}", "()"),
    (
        averages_untold(gx.sgd(0.1)),
        "says_where_its_steps_lead",
        "",
        "True: average follows the run",
        "records_params = False",
    ),
    (goes_to_one_place(), "says_where_its_steps_lead", "", "True", "undoes_moves = False"),
    (
        pulls_to_its_start(),
        "copies_move_with_the_parameters",
        "state.mu['a']",
        "has moved them",
        "before",
    ),
    (
        begins_as_params_untold(),
        "says_which_slots_are_copies",
        "",
        "('mu',)",
        "copies = ()",
    ),
    (casts_to_real(), "drops_no_imaginary_part", "", "no error", "ComplexWarning"),
    (
        branches_on_its_number(),
        "its_numbers_can_be_in_the_state",
        "",
        "no error",
        "TracerBoolConversionError",
    ),
    (
        boxes_by_number(),
        "boxes_name_the_axes_of_their_slots",
        "state.mu[0]",
        "(None,)",
        "the names ('a 0',)",
    ),
    (shares_with_params(), "owns_its_buffers", "state.mu['b']", "its own", "that of params['b']"),
    (
        shares_between_slots(),
        "owns_its_buffers",
        "state.mu['two']['b']",
        "its own",
        "that of state.mu['one']['b']",
    ),
    (prints_anyhow(), VALUE, "", "no error", "NameError: name 'prints_something'"),
    (forgets_a_field(0.2), VALUE, "", "after eval(repr(tx))", "forgets_a_field()"),
    (not_for_json(), "goes_to_json_and_back", "", "no error", "not_for_json.names: frozenset"),
    (fills_holes(), "holes_pass", "updates['a']", "none", "a leaf"),
    (cannot_take_holes(), "holes_pass", "", "no error", "AttributeError"),
    (moves_frozen_slots(), "holes_pass", "state.mu['a']", "the old one", "another value"),
    (leaks_by_a_closure(), "leaks_no_traced_arrays", "", "no error", "Leaked trace"),
    (wrong_sign(), "follows_its_reference", "updates['a'][3]", "by the reference", "1 of 8"),
    (looks_for_tracers(), JIT, "params['b']", "without jit", "16 of 16 entries off"),
    (remembers_in_python(), JIT, "params['a']", "without jit", "entries off"),
    (branches_on_a_number(), JIT, "", "no error", "TracerBoolConversionError"),
    (narrow_slots(), NARROW, "state.mu['b']", "float32", "bfloat16"),
    (names_a_width(), "scalars_are_as_wide_as_the_leaves", "", "no error", "TypePromotionError"),
    (rounds_early(), NARROW, "updates['b']", "in float32", "entries off"),
    (keeps_nothing_of_shapes(), "takes_abstract_parameters", "state.mu['a']", "a leaf", "none"),
    (positional_only(), "takes_params_by_keyword", "updates['a']", "by position", "8 of 8"),
    (no_extras(), "takes_params_by_keyword", "", "no error", "nobody_asked"),
    (calls_back(), "vmaps_over_gradients", "", "no error", "NotImplementedError"),
    (
        looks_further_than_it_says(),
        "touches_rows_or_refuses",
        "params['b']",
        "with dense gradients",
        "of 16 entries off",
    ),
    (
        looks_further_than_it_says(),
        "looks_no_further_than_it_says",
        "updates['a']",
        "for a locality of 'entry'",
        "where another entry is another number",
    ),
    (reads_params_unasked(), ASKS, "", "which part needs the parameters", "TypeError"),
    (silent_without_params(), ASKS, "updates['a']", "with parameters", "8 of 8"),
    (sums_what_cancels(1e-3), JIT, "state.total", "without jit", "."),
    (looks_at_its_shard(), "sharded_equals_unsharded", "params['a']", "on one device", "8 of 8"),
    (slots_on_one_device(), "runs_on_explicit_meshes", "state.mu['a']", "('x',)", "(None,)"),
]
