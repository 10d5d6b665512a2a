"""A run changes its optimizer: what its state becomes, and what is refused."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from gradxform.testing.promise import settings
from tests.catalogue import CASES
from tests.interop.optax_calls import as_optax_wants
from tests.telling import with_new_parts
from tests.trees import assert_close, assert_identical

pytestmark = pytest.mark.numeric

PARAMS = {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}, "head": jnp.ones((2, 4))}
FALLING = gx.linear_schedule(0.5, 0.1, 40)
CLIP = gx.clip_by_global_norm(1.0)


def gradients(params, n):
    return jax.tree.map(
        lambda p: jnp.cos(p + n * jnp.arange(1.0, p.size + 1).reshape(p.shape)), params
    )


def after(tx: Any, steps=5, params: Any = PARAMS, state: Any = None, first=0) -> Any:
    """Parameters and state after some steps."""
    with as_optax_wants():
        state = tx.init(params) if state is None else state
        update = jax.jit(tx.update)
        for n in range(first, first + steps):
            updates, state = update(gradients(params, n), state, params)
            params = gx.apply_updates(params, updates)
    return params, state


def as_numbers(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def migrated(tx: Any, new_tx: Any, **options: Any) -> Any:
    """The state of a run after 5 steps, migrated, with that state and the report."""
    params, state = after(tx)
    new, report = gx.migrate_state(state, tx, new_tx, params, **options)
    assert jax.tree.structure(new) == jax.tree.structure(new_tx.init(params))
    for x, like in zip(jax.tree.leaves(new), jax.tree.leaves(new_tx.init(params)), strict=True):
        assert (x.shape, x.dtype) == (like.shape, like.dtype)
        assert not getattr(x, "weak_type", False)
    arrays = map(as_numbers, jax.tree.leaves((new, params)))
    pointers = [x.unsafe_buffer_pointer() for x in arrays if x.size]
    assert len(set(pointers)) == len(pointers)
    _, after_it = after(new_tx, 1, params, new, first=5)
    assert jax.tree.structure(after_it) == jax.tree.structure(new)
    return new, state, report


def fates(report):
    """What became of every slot, as a dict."""
    return {
        ("old " if s.fate == "dropped" else "") + s.slot: s.source or s.fate for s in report.slots
    }


def numbered(state):
    """A state in which every entry is another number, so that none can take another's place."""
    entries = itertools.count(1)

    def one(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = one(jax.random.key_data(x))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        values = np.asarray(list(itertools.islice(entries, x.size)), np.int64)
        return jnp.asarray(values.reshape(x.shape).astype(x.dtype))

    return jax.tree.map(one, state)


# --------------------------------------------------------------------------------- every transform


@pytest.mark.parametrize("name", with_new_parts(CASES))
def test_to_the_same_transform_nothing_changes_and_through_a_chain_and_back_neither(name):
    case = CASES[name]
    with settings(case):
        tx, params = case.tx, case.params()
        state = numbered(tx.init(params))
        same, report = gx.migrate_state(state, tx, tx, params)
        assert_identical(same, state)
        assert report.is_identity
        # By value, in case it is compared with an equal transform that another call made.
        longer = gx.chain(gx.identity(), tx)
        there, report = gx.migrate_state(state, tx, longer, params)
        assert_identical(there, (gx.EmptyState(), state))
        assert not report.begun and not report.dropped
        back, _ = gx.migrate_state(there, longer, tx, params)
        assert_identical(back, state)


WRAPPERS = {
    "MultiSteps": lambda tx: gx.MultiSteps(tx, 2),
    "masked": lambda tx: gx.masked(tx, gx.ndim_at_least(0)),
    "partition": lambda tx: gx.partition({"all": tx}, "all"),
    "lookahead": lambda tx: gx.lookahead(tx, 3, 0.5),
    "apply_if_finite": lambda tx: gx.apply_if_finite(tx, 3),
    "named_chain": lambda tx: gx.named_chain(("clip", CLIP), ("opt", tx)),
    "sparse_semantics": lambda tx: gx.sparse_semantics(tx, "dense"),
    "as_optax": gx.as_optax,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_put_around_and_taken_off(name):
    tx = gx.adamw(FALLING)
    wrapper = WRAPPERS[name](tx)
    params, state = after(tx)
    there, report = gx.migrate_state(state, tx, wrapper, params)
    assert len(report.taken) == 4 and not report.dropped
    assert all(s.slot.endswith(str(s.source)) for s in report.taken)
    back, report = gx.migrate_state(there, wrapper, tx, params)
    assert_identical(back, state)
    assert len(report.taken) == 4


def test_hyperparameters_come_into_the_state_and_leave_it():
    tx, injected = gx.adamw(0.1), gx.inject_hyperparams(gx.adamw)(0.1)
    new, state, report = migrated(tx, injected)
    assert_identical(new.inner_state, state)
    assert int(new.count) == 5 and [s.slot for s in report.continued] == ["count"]
    back, _, _ = migrated(injected, tx)
    assert int(back[0].count) == 5


# ---------------------------------------------------------------------- what goes on from what


def test_a_link_is_added_and_a_number_becomes_a_schedule():
    tx, new_tx = gx.adamw(0.1), gx.chain(CLIP, gx.adamw(FALLING))
    new, state, report = migrated(tx, new_tx)
    assert_identical(new[1][0], state[0])
    assert int(new[1][2].count) == 5
    assert fates(report) == {
        "1.0.count": "0.count",
        "1.0.mu": "0.mu",
        "1.0.nu": "0.nu",
        "1.2.count": "0.count",
    }
    assert [s.slot for s in report.continued] == ["1.2.count"]


def test_a_run_goes_on_as_if_nothing_had_happened():
    """What the added parts do here is nothing, so that the run must be the old one."""
    tx = gx.adamw(0.1)
    new_tx = gx.chain(
        gx.clip_by_global_norm(jnp.inf),
        gx.apply_if_finite(gx.inject_hyperparams(gx.adamw)(gx.constant_schedule(0.1)), 3),
    )
    params, state = after(tx)
    new, _ = gx.migrate_state(state, tx, new_tx, params)
    want, _ = after(tx, params=params, state=state, first=5)
    got, _ = after(new_tx, params=params, state=new, first=5)
    assert_close(got, want)


def test_a_schedule_goes_on_where_the_run_is():
    tx, new_tx = gx.sgd(FALLING), gx.sgd(FALLING, momentum=0.0)
    params, state = after(tx)
    new, _ = gx.migrate_state(state, tx, new_tx, params)
    got, _ = after(new_tx, params=params, state=new, first=5)
    want, _ = after(tx, params=params, state=state, first=5)
    assert_close(got, want)


def test_averages_of_the_same_go_on_in_another_rule():
    adam, nadam = gx.scale_by_adam(), gx.scale_by_nadam()
    new, state, report = migrated(adam, nadam)
    assert_identical(new[:3], state[:3])
    assert [(s.slot, s.fate) for s in report.continued] == [
        ("mu_product", "computed from the rest")
    ]
    _, begun = after(nadam)
    assert_close(new.mu_product, begun.mu_product)
    _, _, report = migrated(gx.scale_by_amsgrad(), gx.scale_by_rms())
    assert fates(report)["nu"] == "nu"
    _, _, report = migrated(adam, gx.scale_by_lion())
    assert fates(report) == {"count": "count", "mu": "mu", "old nu": "dropped"}
    new, _, report = migrated(gx.scale_by_stddev(bias_correction=False), gx.scale_by_adam(), step=5)
    assert fates(report)["count"] == "the run's step" and int(new.count) == 5


def test_a_rule_resumes_with_its_hyperparameters_in_the_state():
    inject = gx.inject_hyperparams
    tx, new_tx = inject(gx.scale_by_adam)(b1=0.8), inject(gx.scale_by_nadam)(b1=0.8)
    new, _, _ = migrated(tx, new_tx)
    _, begun = after(new_tx)
    assert_close(new.inner_state.mu_product, begun.inner_state.mu_product)


ANEW = [
    (gx.scale_by_adam(), gx.scale_by_adamax()),  # nu is a maximum
    (gx.scale_by_adam(), gx.scale_by_belief()),  # nu is of deviations
    (gx.scale_by_adam(), gx.scale_by_adopt()),  # mu is of normalized gradients
    (gx.scale_by_adam(), gx.scale_by_laprop()),
    (gx.scale_by_yogi(), gx.scale_by_adam()),
    (gx.scale_by_rms(), gx.scale_by_adam()),  # without a first moment
    (gx.trace(0.9), gx.ema(0.9)),  # a sum, not an average
    (optax.scale_by_adamax(), gx.scale_by_adam()),
    (gx.chain(optax.scale_by_yogi()), gx.chain(optax.scale_by_adam())),
]


@pytest.mark.parametrize("tx, new_tx", ANEW, ids=lambda tx: getattr(type(tx), "__name__", "optax"))
def test_slots_that_mean_something_else_begin_anew_with_their_count(tx, new_tx):
    new, _, report = migrated(tx, new_tx)
    assert not report.taken and not report.continued
    assert_identical(new, new_tx.init(PARAMS))


def test_a_part_that_occurs_twice_is_paired_in_order_or_by_name():
    tx = gx.chain(gx.trace(0.5), gx.trace(0.9))
    new, state, _ = migrated(tx, gx.chain(gx.trace(0.5), CLIP, gx.trace(0.9)))
    assert_identical((new[0], new[2]), state)
    named = gx.named_chain(("a", gx.trace(0.5)), ("b", gx.trace(0.9)))
    new, state, report = migrated(
        named, gx.named_chain(("b", gx.trace(0.9)), ("c", gx.trace(0.1)), ("a", gx.trace(0.5)))
    )
    assert_identical((new["a"], new["b"]), (state["a"], state["b"]))
    assert fates(report)["c.trace"] == "begun anew"
    new, state, _ = migrated(tx, gx.trace(0.9), match={"the root": "1"})
    assert_identical(new, state[1])
    new, state, report = migrated(
        gx.chain(gx.trace(0.9)), tx, match={"0.trace": None, "1.trace": "0.trace"}
    )
    assert_identical(new[1], state[0])
    assert fates(report) == {"0.trace": "begun anew", "1.trace": "0.trace"}


def test_what_a_match_does_not_find_in_the_old_state_begins_anew():
    adam, amsgrad = gx.chain(gx.scale_by_adam()), gx.chain(gx.scale_by_amsgrad())
    new, state, report = migrated(adam, amsgrad, match={"0": "0"})
    assert_identical(new[0].nu, state[0].nu)
    assert fates(report)["0.nu_max"] == "begun anew"
    assert_identical(new[0].nu_max, amsgrad.init(PARAMS)[0].nu_max)


def test_two_parts_of_a_group_do_not_both_go_on_from_its_one():
    labels = {"w": "a", "b": "b"}
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    one = gx.partition({"a": gx.trace(0.9), "b": gx.sgd(0.1)}, labels)
    twice = gx.chain(gx.trace(0.9), gx.scale(0.5), gx.trace(0.8))
    two = gx.partition({"a": twice, "b": gx.sgd(0.1)}, labels)
    _, state = one.update(params, one.init(params), params)
    with pytest.raises(ValueError, match=r"1 state of trace in the old state.*but 2 in the new"):
        gx.migrate_state(state, one, two, params)


def test_parameters_move_between_groups():
    adam = gx.scale_by_adam()

    def grouped(head, rest="a", b: Any = adam):
        labels = {"dense": rest, "head": head}
        return gx.partition({"a": adam, "b": b}, labels)

    # one transform for all becomes two groups, and two groups one
    new, state, _ = migrated(adam, grouped("b"))
    groups = new.inner_states
    assert_identical(groups["b"].inner_state.nu["head"], state.nu["head"])
    assert_identical(groups["a"].inner_state.mu["dense"], state.mu["dense"])
    assert int(groups["a"].inner_state.count) == int(groups["b"].inner_state.count) == 5
    new, state, _ = migrated(grouped("b"), adam)
    assert_identical(new.mu["head"], state.inner_states["b"].inner_state.mu["head"])
    assert int(new.count) == 5
    # one parameter moves
    new, state, report = migrated(grouped("b"), grouped("a"))
    moved = new.inner_states["a"].inner_state
    assert_identical(moved.nu["head"], state.inner_states["b"].inner_state.nu["head"])
    assert_identical(moved.nu["dense"], state.inner_states["a"].inner_state.nu["dense"])
    assert fates(report)["inner_states.a.inner_state.nu.head"].startswith("inner_states.b")
    # groups get other names, and other transforms
    new, state, _ = migrated(
        grouped("b"), gx.partition({"x": adam, "y": adam}, {"dense": "y", "head": "x"})
    )
    assert_identical(new.inner_states["x"].inner_state, state.inner_states["b"].inner_state)
    new, state, _ = migrated(grouped("b"), grouped("b", b=gx.trace(0.9)))
    assert_identical(new.inner_states["a"], state.inner_states["a"])
    assert not np.any(new.inner_states["b"].inner_state.trace["head"])


def test_copies_of_the_parameters_begin_where_they_are():
    tx = gx.adam(0.1)
    params, state = after(tx)
    new_tx = gx.lookahead(tx, 5, 0.5)
    new, report = gx.migrate_state(state, tx, new_tx, params)
    assert_identical(new.slow, params)
    assert [s.slot for s in report.begun] == ["steps_since_sync", "slow"]
    # A copy that is there goes on.
    params, new = after(new_tx, 2, params, new)
    again, _ = gx.migrate_state(new, new_tx, gx.lookahead(gx.nadam(0.1), 5, 0.5), params)
    assert_identical(again.slow, new.slow)
    assert int(again.steps_since_sync) == 2


def test_a_hyperparameter_in_the_state_stays_unless_the_new_call_says_another():
    inject = gx.inject_hyperparams(gx.adamw)
    tx = inject(0.1, weight_decay=0.1)
    params, state = after(tx)
    state = gx.tree.set(state, learning_rate=0.03)
    same, _ = gx.migrate_state(state, tx, gx.chain(CLIP, tx), params)
    assert float(same[1].hyperparams["learning_rate"]) == pytest.approx(0.03)
    other, report = gx.migrate_state(state, tx, inject(0.1, weight_decay=0.2), params)
    assert float(other.hyperparams["learning_rate"]) == pytest.approx(0.03)
    assert float(other.hyperparams["weight_decay"]) == pytest.approx(0.2)
    assert fates(report)["hyperparams.weight_decay"] == "begun anew"
    new, _ = gx.migrate_state(state, tx, inject(FALLING, weight_decay=0.1), params)
    assert int(new.hyperparams_states["learning_rate"].count) == 5
    _, _, report = migrated(gx.add_noise(0.1, 0.5, key=1), gx.add_noise(0.1, 0.5, key=2))
    assert fates(report)["rng_key"] == "begun anew"


def test_a_count_that_is_new_is_the_outermost_or_as_said():
    tx = gx.MultiSteps(gx.sgd(0.1), 2)
    new, _, report = migrated(tx, gx.sgd(FALLING))
    assert int(new[1].count) == 2 and report.continued[0].source == "gradient_step"
    # A schedule inside counts the steps of what is inside; one outside, all of them.
    new, _, report = migrated(
        gx.chain(gx.ema(0.5), tx),
        gx.chain(gx.ema(0.5), gx.MultiSteps(gx.sgd(FALLING), 2), gx.scale_by_schedule(FALLING)),
    )
    assert [(s.slot, s.source) for s in report.continued] == [
        ("1.inner_opt_state.1.count", "1.gradient_step"),
        ("2.count", "0.count"),
    ]
    assert (int(new[1].inner_opt_state[1].count), int(new[2].count)) == (2, 5)
    new, _, _ = migrated(gx.adam(0.1), gx.MultiSteps(gx.adam(FALLING), 2))
    assert int(new.gradient_step) == int(new.inner_opt_state[1].count) == 5
    new, _, _ = migrated(gx.sgd(0.1), gx.sgd(FALLING), step=7)
    assert int(new[1].count) == 7
    new, _, _ = migrated(gx.adam(0.1), gx.adam(FALLING), match={"1.count": None})
    assert int(new[1].count) == 0
    new, _, report = migrated(gx.adan(0.1), gx.adan(FALLING))
    assert report.continued[0].source == "0.t"
    every = gx.apply_every(3)  # its count is not of steps
    with pytest.raises(ValueError, match="does not count its steps"):
        migrated(every, gx.chain(every, gx.scale_by_schedule(FALLING)))
    # What a count corrects begins with it.
    new, _, _ = migrated(gx.sgd(FALLING), gx.adam(FALLING))
    assert (int(new[0].count), int(new[1].count)) == (0, 5)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: gx.chain(tx, gx.reduce_on_plateau()),
        lambda tx: gx.chain(gx.zclip(warmup_steps=2), tx),
        lambda tx: gx.skip_loss_spikes(tx, warmup_steps=2),
    ],
)
def test_statistics_that_begin_have_a_count_of_0(wrap):
    tx, new_tx = gx.adam(0.1), wrap(gx.adam(FALLING))
    params, state = after(tx)
    new, report = gx.migrate_state(state, tx, new_tx, params)
    (at,) = (s.slot for s in report.begun if s.slot.split(".")[-1] == "count")
    assert at in ("0.count", "1.count", "count")
    assert gx.current_step(new) == 5
    back, _ = gx.migrate_state(new, new_tx, gx.adam(FALLING), params)
    assert back[1].count == 5


def test_a_dtype_that_changes_is_reported():
    tx, new_tx = gx.scale_by_adam(), gx.scale_by_adam(mu_dtype="bfloat16")
    new, state, report = migrated(tx, new_tx)
    [row] = [s for s in report.slots if s.slot == "mu"]
    assert row.cast_from == ("float32",) and "(was float32)" in str(report)
    assert {shape[2] for shape in row.arrays} == {"bfloat16"}
    assert_identical(new.mu, jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.mu))
    assert not report.is_identity


def test_a_state_of_optax_goes_on_in_either_library():
    theirs, ours = optax.adamw(0.1), gx.adamw(0.1)
    params, state = after(theirs)
    for tx, new_tx in [(ours, gx.nadamw(FALLING)), (theirs, gx.nadamw(FALLING))]:
        new, report = gx.migrate_state(state, tx, new_tx, params)
        assert_identical(tuple(new[0]), tuple(state[0]))
        assert isinstance(new[0], gx.ScaleByAdamState)
        assert not report.dropped
    longer = optax.chain(optax.clip(1.0), optax.adamw(optax.constant_schedule(0.1)))
    new, _ = gx.migrate_state(state, theirs, longer, params)
    assert jax.tree.structure(new) == jax.tree.structure(longer.init(params))
    assert_identical(new[1][0], state[0])
    injected = optax.MultiSteps(optax.inject_hyperparams(optax.adamax)(0.1), 2)
    params, state = after(injected)
    new, report = gx.migrate_state(state, injected, injected, params)
    assert_identical(new, state)
    assert report.is_identity
    with pytest.raises(ValueError, match=r"cannot tell whether inner_opt_state\.inner_state\.0 "):
        gx.migrate_state(state, injected, theirs, params)


def test_states_of_functions_go_on_by_class_and_by_name():
    def plain(first):
        def update(updates, state, params=None):
            return updates, jax.tree.map(lambda x: x + 1, state)

        return gx.GradientTransformation(lambda params: first, update)

    tx = gx.chain(plain({"seen": jnp.zeros(3)}), plain(gx.TraceState(jnp.ones(2))))
    longer = gx.chain(CLIP, *tx.transforms)
    new, state, report = migrated(tx, longer)
    assert_identical(new[1:], state)
    assert fates(report) == {"1.seen": "0.seen", "2.trace": "1.trace"}
    # in another order, and where nothing has a class
    new, state, _ = migrated(tx, gx.chain(*tx.transforms[::-1]))
    assert_identical(new, state[::-1])
    tx = gx.chain(plain({"seen": jnp.zeros(3)}), plain({"mass": jnp.ones(2)}))
    new, state, _ = migrated(tx, gx.chain(*tx.transforms[::-1]))
    assert_identical(new, state[::-1])


def test_a_tuple_of_parameters_is_not_a_part_of_a_foreign_state():
    params = gx.LookaheadParams(jnp.ones(2), {"mu": jnp.ones(3), "count": jnp.ones(())})
    tx = optax.scale_by_adam()
    state = numbered(tx.init(params))
    new, report = gx.migrate_state(state, tx, gx.chain(CLIP, gx.scale_by_adam()), params)
    assert_identical(tuple(new[1]), tuple(state))
    assert [(s.slot, len(s.arrays)) for s in report.slots] == [
        ("1.count", 1),
        ("1.mu", 3),
        ("1.nu", 3),
    ]


def test_the_report_is_a_value_and_a_table():
    _, _, report = migrated(gx.adam(0.1), gx.chain(CLIP, gx.lion(FALLING)))
    _, _, again = migrated(gx.adam(0.1), gx.chain(CLIP, gx.lion(FALLING)))
    assert report == again and hash(report) == hash(again)
    lines = str(report).splitlines()
    assert lines[0].split() == ["slot", "comes", "from", "arrays"]
    assert lines[2].split("  ")[0] == "1.0.mu" and "  0.mu  " in lines[2]
    assert lines[2].endswith("  float32[2], float32[3, 2], float32[2, 4]")
    assert lines[-1].split()[:3] == ["old", "0.nu", "dropped"]
    assert jax.jit(lambda x: x)(report) == report
    assert str(report.slots[0]) == "1.0.count  0.count  int32[]"
