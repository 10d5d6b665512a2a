"""A cooldown begins where somebody decides it, in a run that goes on from its saved state."""

import math
import re

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

pytestmark = pytest.mark.numeric

START, STEPS = 7, 9
PARAMS = {"w": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "b": jnp.ones(3)}
GRADS = [jax.tree.map(lambda p, t=t: jnp.cos(t + p), PARAMS) for t in range(20)]
# What a run may have followed until then.
FOLLOWED = {
    "a plateau": gx.warmup_constant_schedule(0.0, 0.1, 3),
    "a schedule that planned another end": gx.warmup_stable_decay_schedule(0.0, 0.1, 3, 50, 100),
    "a schedule that cools down": gx.warmup_stable_decay_schedule(0.0, 0.1, 3, 5, 10),
    "a plain function": lambda count: 0.1 / (1 + 0.1 * jnp.asarray(count, jnp.float32)),
}


def trained(tx, params, state, grads):
    update = jax.jit(tx.update)
    for g in grads:
        updates, state = update(g, state, params)
        params = gx.apply_updates(params, updates)
    return params, state


def cooled(schedule, count):
    """The values of the cooldown, in float64."""
    if count < START:
        return float(schedule(count))
    return float(schedule(START)) * (1 - math.sqrt(min((count - START) / STEPS, 1)))


@pytest.mark.parametrize("inject", [False, True])
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_resumed_run_cools_down_from_where_it_stopped(name, inject):
    schedule = FOLLOWED[name]
    adamw = gx.inject_hyperparams(gx.adamw) if inject else gx.adamw
    tx = adamw(schedule, weight_decay=0.1)
    params, state = trained(tx, PARAMS, tx.init(PARAMS), GRADS[:START])
    saved = flax.serialization.to_bytes((params, state))

    count = gx.current_step(state)
    new_tx = adamw(gx.cooldown_from(schedule, count, STEPS), weight_decay=0.1)
    if name != "a plain function":
        assert gx.from_json(gx.to_json(new_tx)) == new_tx
    empty = (PARAMS, new_tx.init(PARAMS))
    assert jax.tree.structure(empty[1]) == jax.tree.structure(state)
    params, state = flax.serialization.from_bytes(empty, saved)
    assert jax.tree.structure(state) == jax.tree.structure(empty[1])

    # The same run, begun anew with a number that is set at every step.
    told = gx.inject_hyperparams(gx.adamw)(0.0, weight_decay=0.1)
    expected, other = PARAMS, told.init(PARAMS)
    for n, g in enumerate(GRADS):
        other.hyperparams["learning_rate"] = jnp.float32(cooled(schedule, n))
        updates, other = told.update(g, other, expected)
        expected = gx.apply_updates(expected, updates)
    found, state = trained(new_tx, params, state, GRADS[START:])
    for key in PARAMS:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-5, atol=1e-6)
    if inject:
        assert gx.metrics(state)["learning_rate"] == 0.0


def test_before_its_start_a_cooldown_is_the_schedule_bit_for_bit():
    counts = np.arange(START + 1)
    # Where a compiler multiplies by a reciprocal, 41 / 41 is not 1.
    for shape in ("1-sqrt", gx.linear_schedule(41.0, 0.0, STEPS)):
        for schedule in FOLLOWED.values():
            cooldown = gx.cooldown_from(schedule, START, STEPS, shape, end_value=0.013)
            np.testing.assert_array_equal(cooldown(counts), schedule(counts))
            np.testing.assert_array_equal(jax.jit(cooldown)(counts), jax.jit(schedule)(counts))


def test_a_run_that_began_with_a_number_counts_from_then_on():
    tx = gx.adamw(0.1)
    params, state = trained(tx, PARAMS, tx.init(PARAMS), GRADS[:START])
    new_tx = gx.adamw(gx.cooldown_from(0.1, gx.current_step(state), STEPS))
    state, report = gx.migrate_state(state, tx, new_tx, params)
    assert not report.begun and not report.dropped
    for n in range(START, START + STEPS + 2):
        want = 0.1 * (1 - math.sqrt(min((n - START) / STEPS, 1)))
        found = float(gx.current_learning_rate(new_tx, state))
        assert found == pytest.approx(want, rel=1e-6, abs=1e-8)
        _, state = new_tx.update(GRADS[0], state, params)


def test_a_cooldown_may_follow_another():
    first = gx.cooldown_from(1.0, 10, 20, "linear")
    second = gx.cooldown_from(first, 20, 10, "linear", 0.1)
    assert [round(float(second(n)), 6) for n in (0, 10, 20, 25, 30, 40)] == [
        1,
        1,
        0.5,
        0.3,
        0.1,
        0.1,
    ]


def test_a_schedule_as_shape_gives_ratios():
    for scale in (1.0, 3e-4):  # shares, or rates
        shape = gx.exponential_decay(scale, 5, 0.5)
        cooldown = gx.cooldown_from(0.8, 10, 20, shape)
        found = [float(cooldown(n)) for n in (0, 10, 15, 20, 30, 99)]
        np.testing.assert_allclose(found, [0.8, 0.8, 0.4, 0.2, 0.05, 0.05], rtol=1e-6)
    wsd = gx.warmup_stable_decay_schedule(0.0, 0.8, 0, 20, 30, shape=shape)
    np.testing.assert_allclose(wsd(np.arange(40)), cooldown(np.arange(40)), rtol=1e-6)


def test_sqrt_is_what_others_call_the_first_shape():
    one = gx.cooldown_from(1.0, 10, 20, "sqrt")
    assert one == gx.cooldown_from(1.0, 10, 20) and one.shape == "1-sqrt"
    args = (0.0, 1.0, 5, 20, 50, 0.0)
    sqrt = gx.warmup_stable_decay_schedule(*args, "sqrt")
    assert sqrt == gx.warmup_stable_decay_schedule(*args)


@pytest.mark.parametrize("field, fraction", [("warmup_steps", 0.155), ("decay_steps", 0.3)])
def test_fractions_of_a_run_are_whole_steps_also_where_the_run_alone_knows_them(field, fraction):
    lengths = {"warmup_steps": 10, "decay_steps": 40, "total_steps": 100}
    steps = gx.warmup_stable_decay_schedule(0.0, 1.0, **(lengths | {field: round(fraction * 100)}))
    counts = np.arange(110)
    want = steps(counts)

    def of(fraction, total):
        given = lengths | {field: fraction, "total_steps": total}
        return gx.warmup_stable_decay_schedule(0.0, 1.0, **given)(counts)

    np.testing.assert_array_equal(of(fraction, 100), want)
    for found in (
        jax.jit(of)(fraction, 100),
        jax.jit(lambda total: of(fraction, total))(100),
        jax.jit(lambda x: of(x, 100))(fraction),
        jax.jit(lambda x: of(x, 100))(round(fraction * 100)),
    ):
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)


class Loss:
    """A schedule with a state."""

    def init(self):
        return jnp.zeros(())

    def update(self, state, *, value=0.0, **extra):
        return state + value

    def __call__(self, state, **extra):
        return state


def test_a_schedule_with_a_state_is_refused():
    words = r"must be a schedule, a function of the count or a number, got .*\. Its state has no"
    for name, make in {
        "cooldown_from: schedule": lambda: gx.cooldown_from(Loss(), START, STEPS),
        "cooldown_from: shape": lambda: gx.cooldown_from(1.0, START, STEPS, Loss()),
        "join_schedules: schedules[0]": lambda: gx.join_schedules((Loss(), 1.0), (5,)),
        "product_schedule: factor 1": lambda: gx.product_schedule(1.0, Loss()),
    }.items():
        with pytest.raises(TypeError, match=f"^{re.escape(name)} {words}"):
            make()
