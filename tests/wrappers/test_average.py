"""The averages of the parameters are those of NumPy references, whatever stands around them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx
import gradxform.distributed as gd
from gradxform.leaves import is_hole
from tests import references as ref
from tests.catalogue import gradients, params
from tests.catalogue.case import ADAM, SGD, with_lr

pytestmark = pytest.mark.numeric

STEPS = 9
FIRST = 6  # what `step` is at the first update
LENGTHS = (0.15, 0.25)
HALF = gx.lookahead(gx.sgd(0.1), 2, 0.5)


def wide(tree):
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]


def path_of(reference, tree, grads):
    """The parameters and the states of a reference, after every step."""
    ps, reference = wide(tree), ref.as_tree(reference)
    state, path = reference.start([p.copy() for p in ps]), []
    for t, g in enumerate(grads, 1):
        us, state = reference.step(wide(g), state, ps, t)
        ps = [p + u for p, u in zip(ps, us, strict=True)]
        path.append((ps, state))
    return path


def walk(tx, tree, grads, with_step=False):
    """The parameters and the states of a transform, after every step."""

    @jax.jit
    def step(g, state, tree, n):
        updates, state = tx.update(g, state, tree, **({"step": FIRST + n} if with_step else {}))
        return gx.apply_updates(tree, updates), state

    state, path = tx.init(tree), []
    for n, g in enumerate(grads):
        tree, state = step(g, state, tree, jnp.asarray(n, jnp.int32))
        path.append((tree, state))
    return path


def check(ours, expected, rtol=2e-6):
    for x, y in zip(jax.tree.leaves(ours), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=rtol * np.max(np.abs(y), initial=1))


ADAM_STEP = with_lr(0.1, ADAM)
ADAM_TX = gx.adam(0.1)
PLAIN = functools.partial(ref.moving_average, ADAM_STEP)
# A wrapper, its reference, and how the reference's state holds the average.
AVERAGES = {
    "constant": (gx.moving_average(ADAM_TX, 0.7), PLAIN(0.7), lambda a: a),
    "count": (gx.moving_average(ADAM_TX, 0.4, "count"), PLAIN(0.4, lambda t: t), lambda a: a),
    "step": (
        gx.moving_average(ADAM_TX, 0.6, "step"),
        PLAIN(0.6, lambda t: FIRST + t),
        lambda a: a,
    ),
    "integer": (gx.moving_average(ADAM_TX, 0.9, 3), PLAIN(0.9, lambda t: 3), lambda a: a),
    "debiased": (
        gx.moving_average(ADAM_TX, 0.7, debias=True),
        ref.debiased_average(ADAM_STEP, 0.7),
        ref.mean_of_terms,
    ),
    "debiased count": (
        gx.moving_average(ADAM_TX, 0.4, "count", True),
        ref.debiased_average(ADAM_STEP, 0.4, lambda t: t),
        ref.mean_of_terms,
    ),
    "from the start": (
        gx.stochastic_weight_average(ADAM_TX, period=2),
        ref.equal_average(ADAM_STEP, 0, 2),
        lambda seen: sum(seen) / len(seen),
    ),
    "later": (
        gx.stochastic_weight_average(ADAM_TX, 3, 2),
        ref.equal_average(ADAM_STEP, 3, 2),
        lambda seen: sum(seen) / len(seen),
    ),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_follows_its_reference(name):
    tx, reference, of = AVERAGES[name]
    tree = params()
    grads = gradients(tree, STEPS)
    np.testing.assert_array_equal(gx.eval_params(tx.init(tree), tree)["w"], tree["w"])
    ours, theirs = walk(tx, tree, grads, name == "step"), path_of(reference, tree, grads)
    for (p, state), (expected, (_, averages)) in zip(ours, theirs, strict=True):
        check(p, expected)
        check(gx.eval_params(state, p), map(of, averages))


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("num_updates", [None, "count"])
@pytest.mark.parametrize("start, every", [(0, 1), (3, 1), (0, 2), (2, 3)])
def test_a_moving_average_begins_later_and_moves_at_some_steps(
    start, every, num_updates, debias, elsewhere
):
    """Also where something else moves the parameters after each step."""
    tx = gx.moving_average(gx.sgd(0.1), 0.6, num_updates, debias, start=start, every=every)
    tree, step = {"w": params()["w"]}, jax.jit(tx.update)
    p, state, total, weight = tree, tx.init(tree), 0.0, 0.0
    average = np.asarray(tree["w"], np.float64)
    for t, g in enumerate(gradients(tree, 9), 1):
        updates, state = step(g, state, p)
        p = gx.apply_updates(p, updates)
        if elsewhere:
            there = jax.tree.map(lambda x, t=t: x + t, p)
            p, state = there, tx.moved(state, p, there)
        now = np.asarray(p["w"], np.float64)
        if t <= start:
            average = now
        elif (t - start) % every == 0:
            k = (t - start) // every
            d = 0.6 if num_updates is None else min(0.6, (1 + k) / (10 + k))
            total, weight = d * total + (1 - d) * now, d * weight + (1 - d)
            average = total / weight if debias else average - (1 - d) * (average - now)
        check(gx.eval_params(state, p), [average])


def test_without_a_step_the_warm_up_counts():
    tree, by_step = params(), gx.moving_average(ADAM_TX, 0.4, "step")
    grads = gradients(tree, 3)
    for (_, a), (_, b) in zip(
        walk(by_step, tree, grads),
        walk(gx.moving_average(ADAM_TX, 0.4, "count"), tree, grads),
        strict=True,
    ):
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_power_average_follows_its_reference(length):
    tree = params()
    grads = gradients(tree, STEPS)
    tx = gx.power_moving_average(ADAM_TX, LENGTHS)
    path = [wide(tree)] + [ps for ps, _ in path_of(ADAM_STEP, tree, grads)]
    gamma = gamma_of(length)
    assert ref.relative_length(gamma) == pytest.approx(length, rel=1e-9)
    for t, (p, state) in enumerate(walk(tx, tree, grads), 1):
        columns = zip(*path[1 : t + 1], strict=True)
        expected = [ref.power_average(np.stack(column), gamma) for column in columns]
        check(gx.eval_params(state, p, length=length), expected)


def gamma_of(length):
    """The exponent of a relative length, by bisection."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if ref.relative_length(middle) > length else (low, middle)
    return low


def saved_run(steps, every, kept, wanted):
    """Snapshots of a random walk, and the averages of the lengths that are wanted at its end."""
    tx = gx.power_moving_average(gx.scale(1.0), (*kept, *wanted))
    tree = {"w": jnp.zeros((5,)), "deep": {"b": jnp.ones((2, 3), jnp.bfloat16)}}
    moves = np.random.default_rng(0).normal(size=(steps, 5)).astype(np.float32)
    state, saved, ends = tx.init(tree), [], {}

    @jax.jit
    def step(move, state, tree):
        g = {"w": move, "deep": {"b": jnp.full((2, 3), 0.01, jnp.bfloat16)}}
        updates, state = tx.update(g, state, tree)
        return gx.apply_updates(tree, updates), state

    for t, move in enumerate(moves, 1):
        tree, state = step(jnp.asarray(move), state, tree)
        if t % every == 0:
            saved += [s for s in gx.power_snapshots(((), state)) if s.length in kept]
            ends[t] = {k: gx.eval_params(state, length=k) for k in wanted}
    return saved, ends


@pytest.fixture(scope="module")
def run_of_power_averages():
    return saved_run(400, 20, (0.05, 0.10), (0.03, 0.075, 0.15, 0.25))


@pytest.mark.parametrize(
    ("length", "rtol"), [(0.075, 5e-3), (0.15, 5e-3), (0.25, 2e-2), (0.03, 0.1)]
)
def test_a_length_that_was_not_kept_is_reconstructed(run_of_power_averages, length, rtol):
    saved, ends = run_of_power_averages
    got = gx.reconstruct_average(saved, length)
    size = np.ptp(np.asarray([s.average["w"] for s in saved]))
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(ends[400][length]), strict=True):
        assert isinstance(x, np.ndarray) and x.dtype == np.float32
        np.testing.assert_allclose(x, y, rtol=0, atol=rtol * size)
    # A length that is only the nearest of those kept is off by more.
    nearest = next(s.average["w"] for s in saved[-2:] if s.length == 0.1)
    assert length < 0.1 or np.abs(nearest - ends[400][length]["w"]).max() > 2 * rtol * size


def test_an_earlier_step_is_reconstructed(run_of_power_averages):
    saved, ends = run_of_power_averages
    got = gx.reconstruct_average(reversed(saved), 0.075, step=200)
    size = np.ptp(np.asarray([s.average["w"] for s in saved]))
    np.testing.assert_allclose(got["w"], ends[200][0.075]["w"], rtol=0, atol=1e-2 * size)


def test_a_length_that_was_kept_is_returned(run_of_power_averages):
    saved, _ = run_of_power_averages
    got = gx.reconstruct_average(saved, 0.1)
    np.testing.assert_allclose(got["w"], saved[-1].average["w"], rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------- moves, masks, and rows


@pytest.mark.parametrize(
    "of",
    [
        lambda inner: gx.moving_average(inner, 0.8),
        lambda inner: gx.moving_average(inner, 0.4, "count", True),
        lambda inner: gx.stochastic_weight_average(inner, 2, 2),
        lambda inner: gx.power_moving_average(inner, (0.1,)),
    ],
)
def test_who_moves_the_parameters_may_stand_inside_or_around(of):
    """What lookahead pulls back is in the average, as if the step had led there."""
    tree = params()
    grads = gradients(tree, STEPS)
    inside, around = of(HALF), gx.lookahead(of(gx.sgd(0.1)), 2, 0.5)
    for (p, a), (q, b) in zip(walk(inside, tree, grads), walk(around, tree, grads), strict=True):
        check(q, wide(p))
        kept = jax.tree.leaves([getattr(a, k, ()) for k in ("average", "averages")])
        fast = jax.tree.leaves([getattr(b.fast_state, k, ()) for k in ("average", "averages")])
        check(fast, wide(kept))


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("period", [2, 3])
def test_an_average_stays_where_parameters_move_between_its_steps(start, period):
    """It is the mean of the places at its steps, wherever something else moves them meanwhile."""
    tree, tx = params(), gx.stochastic_weight_average(gx.sgd(0.1), start, period)
    p, state, seen = tree, tx.init(tree), [wide(tree)]
    for t, g in enumerate(gradients(tree, 7), 1):
        updates, state = tx.update(g, state, p)
        p = gx.apply_updates(p, updates)
        elsewhere = jax.tree.map(lambda x, t=t: x + t, p)
        p, state = elsewhere, tx.moved(state, p, elsewhere)
        if t <= start:
            seen = [wide(p)]
        elif (t - start) % period == 0:
            seen.append(wide(p))
        check(gx.eval_params(state, p), [np.mean(x, 0) for x in zip(*seen, strict=True)])


@pytest.mark.parametrize(
    "around",
    [
        gx.cautious,
        lambda inner: gx.chain(inner, gx.scale(0.5)),
        lambda inner: gx.chain(gx.chain(gx.trace(0.9), inner), gx.snapshot("n", gx.global_norm)),
        lambda inner: gx.named_chain(
            ("average", gx.apply_if_finite(inner, 1)), ("decay", gx.add_decayed_weights(0.1))
        ),
        lambda inner: gx.sum_of(inner, gx.sgd(0.5)),
    ],
)
def test_what_changes_the_updates_of_an_average_is_in_it(around):
    tree = params()
    path = walk(around(gx.moving_average(ADAM_TX, 0.5)), tree, gradients(tree, STEPS))
    expected = wide(tree)
    for p, state in path:
        expected = [(a + x) / 2 for a, x in zip(expected, wide(p), strict=True)]
        check(gx.eval_params(state, p), expected)


def test_updates_that_pass_a_condition_move_what_follows_the_parameters():
    """Copies of 16-bit parameters do not go back to where they were."""
    tree = {"w": jnp.ones(2, jnp.bfloat16)}
    tx = gx.conditionally_transform(
        gx.moving_average(gx.sgd(0.25), 0.5), lambda step: step % 2 == 0
    )
    (p, first), (q, second) = walk(tx, tree, [tree, tree])
    assert float(p["w"][0]) == 0.75 and float(q["w"][0]) == 1.75
    assert float(first.inner_state.average["w"][0]) == 0.875
    assert float(second.inner_state.average["w"][0]) == 1.375  # as if that step had led to q


def test_inside_sam_the_average_is_over_whole_periods():
    tree = params()
    grads = gradients(tree, 4)
    tx = gx.sam(gx.moving_average(ADAM_TX, 0.5), gx.sgd(0.1))
    path = walk(tx, tree, grads)
    expected = wide(tree)
    for p, state in path[1::2]:
        expected = [(a + x) / 2 for a, x in zip(expected, wide(p), strict=True)]
        check(gx.eval_params(state, p), expected)


def test_copies_inside_are_told_of_moves():
    """The masters of a part inside follow what something around does."""
    tree = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params())
    tx = gx.moving_average(gd.zero1(gx.sgd(0.1), "data"), 0.5)
    state = jax.vmap(lambda _: tx.init(tree), axis_name="data")(jnp.zeros(1))

    def move(state):
        return tx.moved(state, tree, jax.tree.map(lambda p: p + 1, tree))

    moved = jax.vmap(move, axis_name="data")(state)
    for old, new in zip(
        jax.tree.leaves((state.inner_state.master, state.average)),
        jax.tree.leaves((moved.inner_state.master, moved.average)),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(new) - np.asarray(old), 1.0, atol=0.02)


def test_an_average_moves_with_parameters_that_replicas_average():
    tx = gd.model_average(gx.moving_average(gx.sgd(0.1), 0.5), "replica", period=1)
    tree = {"w": jnp.asarray([1.0, 2.0])}
    grads = jnp.asarray([[1.0, 0.0], [0.0, 1.0]])

    def step(g):
        updates, state = tx.update({"w": g}, tx.init(tree), tree)
        return gx.apply_updates(tree, updates), state

    new, state = jax.vmap(step, axis_name="replica")(grads)
    expected = 0.5 * (tree["w"] + new["w"][0])
    np.testing.assert_allclose(state.inner.average["w"], [expected, expected], rtol=1e-6)


def test_every_entry_of_a_table_is_averaged():
    """A row that a step does not touch still approaches where it is."""
    tree = {"emb": jnp.zeros((4, 2)), "w": jnp.ones(3)}
    dense = {"emb": jnp.zeros((4, 2)).at[1].set(1.0), "w": jnp.ones(3)}
    first = {"emb": jnp.ones((4, 2)), "w": jnp.ones(3)}
    rows = {"emb": gx.RowSparse([1, 1], jnp.full((2, 2), 0.5), 4), "w": jnp.ones(3)}
    tx = gx.moving_average(gx.sgd(0.1), 0.5)
    *_, (p, a) = walk(tx, tree, [first, dense, dense])
    tree, state = walk(tx, tree, [first])[0]
    for _ in range(2):
        updates, state = tx.update(rows, state, tree)
        tree = gx.apply_updates(tree, updates)
    check(tree, wide(p))
    check(state.average, wide(a.average))
    assert float(state.average["emb"][0, 0]) == pytest.approx(-0.0875)


def test_a_parameter_without_a_gradient_is_left_out():
    tree = params()
    tx = gx.moving_average(gx.sgd(0.1), 0.5)
    _, state = walk(tx, tree, gradients(tree, 1))[0]
    g = {**gradients(tree, 1)[0], "w": None}
    _, after = tx.update(g, state, tree)
    assert after.average["w"] is state.average["w"]
    assert np.any(after.average["b"] != state.average["b"])


def test_averages_of_16_bits_are_wide():
    tree = {"w": jnp.ones(2, jnp.bfloat16)}
    for tx in (
        gx.moving_average(gx.scale(1.0), 0.999),
        gx.stochastic_weight_average(gx.scale(1.0)),
        gx.power_moving_average(gx.scale(1.0), (0.1,)),
    ):
        (p, state), *_ = walk(tx, tree, [{"w": jnp.full(2, 0.5, jnp.bfloat16)}])
        [average] = jax.tree.leaves([getattr(state, k, ()) for k in ("average", "averages")])
        expected = {"moving_average": 1.0005, "stochastic_weight_average": 1.25}
        assert average.dtype == jnp.float32
        assert float(average[0]) == pytest.approx(expected.get(type(tx).__name__, 1.5), rel=1e-6)
        assert gx.eval_params(state, p)["w"].dtype == jnp.bfloat16


def test_a_nan_between_the_steps_of_an_average_does_not_enter_it():
    tree = {"w": jnp.ones(2)}
    tx = gx.stochastic_weight_average(gx.scale(1.0), 0, 2)
    _, state = tx.update({"w": jnp.full(2, jnp.nan)}, tx.init(tree), tree)
    np.testing.assert_array_equal(state.average["w"], tree["w"])


def test_a_step_that_is_skipped_changes_no_average():
    tree = params()
    tx = gx.apply_if_finite(gx.moving_average(gx.sgd(0.1), 0.5), 9)
    bad = jax.tree.map(lambda x: x * jnp.nan, tree)
    (_, one), (_, two) = walk(tx, tree, [*gradients(tree, 1), bad])
    jax.tree.map(np.testing.assert_array_equal, one.inner_state, two.inner_state)


def test_a_live_decay_is_that_of_the_state():
    tree = params()
    tx = gx.inject_hyperparams(gx.moving_average, static_args=("inner",))(gx.sgd(0.1), decay=0.5)
    state = tx.init(tree)
    state = gx.tree.set(state, decay=0.75)
    g = gradients(tree, 1)[0]
    _, state = tx.update(g, state, tree)
    expected = jax.tree.map(lambda p, g: p - 0.025 * g, tree, g)
    check(gx.eval_params(state, tree), wide(expected))


def test_a_live_decay_is_that_of_a_move():
    tree = params()
    tx = gx.inject_hyperparams(gx.moving_average, static_args=("inner",))(gx.sgd(0.1), decay=0.5)
    (p, state), *_ = walk(tx, tree, gradients(tree, 1))
    before = wide(gx.eval_params(state, p))
    state = gx.tree.set(state, decay=0.75)
    moved = tx.moved(state, p, jax.tree.map(lambda x: x + 2, p))
    check(gx.eval_params(moved, p), [x + 0.5 for x in before])


@pytest.mark.parametrize(
    "of",
    [
        lambda inner: gx.moving_average(inner, 0.8),
        lambda inner: gx.moving_average(inner, 0.4, "count", True),
        lambda inner: gx.stochastic_weight_average(inner, 2, 2),
        lambda inner: gx.power_moving_average(inner, (0.1,)),
        lambda inner: gx.overwriting_average(inner, 0.9, from_first_step=False),
    ],
)
def test_before_the_first_step_an_average_is_where_the_parameters_are(of):
    tree, tx = params(), of(gx.sgd(0.1))
    elsewhere = jax.tree.map(lambda x: x + 2, tree)
    state = tx.moved(tx.init(tree), tree, elsewhere)
    check(gx.eval_params(state, elsewhere), wide(elsewhere))


def test_a_live_number_of_updates_is_that_of_the_state():
    tree = params()
    live = gx.inject_hyperparams(gx.moving_average)(gx.sgd(0.1), num_updates=3)
    grads = gradients(tree, 2)
    *_, (_, state) = walk(live, tree, grads)
    *_, (_, expected) = walk(gx.moving_average(gx.sgd(0.1), num_updates=3), tree, grads)
    check(state.inner_state.average, wide(expected.average))


def test_metrics_show_how_much_of_the_average_comes_from_updates():
    tree = params()
    tx = gx.moving_average(gx.scale(-0.1), 0.5, debias=True)
    *_, (_, state) = walk(tx, tree, gradients(tree, 2))
    assert gx.metrics(state) == {"num_updates": 2, "average_weight": 0.75}


def test_a_mask_hides_leaves_from_the_average():
    tree = params()
    tx = gx.masked(gx.moving_average(gx.sgd(0.1), 0.5), gx.ndim_at_least(2))
    _, state = walk(tx, tree, gradients(tree, 1))[0]
    assert is_hole(state.inner_state.average["b"])


def test_a_run_inside_multi_steps_is_averaged_once_a_step():
    tree = params()
    grads = gradients(tree, 4)
    tx = gx.MultiSteps(gx.moving_average(gx.sgd(0.1), 0.5), 2)
    *_, (p, state) = walk(tx, tree, grads)
    means = [jax.tree.map(lambda a, b: (a + b) / 2, *grads[i : i + 2]) for i in (0, 2)]
    *_, (expected, (_, averages)) = path_of(ref.moving_average(SGD, 0.5), tree, means)
    check(p, expected)
    check(gx.eval_params(state, p), averages)
