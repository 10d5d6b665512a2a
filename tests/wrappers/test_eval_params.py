"""What to evaluate is found in any state, and takes the place of the parameters for saving."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import gradxform as gx
import gradxform.distributed as gd
from tests.catalogue import gradients, params

pytestmark = pytest.mark.numeric

SGD = gx.sgd(0.1)
MATRICES = gx.ndim_at_least(2)
AVERAGE = gx.moving_average(SGD, 0.5)
POWER = gx.power_moving_average(SGD, (0.1, 0.2))
FREE = gx.schedule_free_sgd(0.1)


def trained(tx, dtype=None, steps=3):
    tree = params() if dtype is None else jax.tree.map(lambda p: p.astype(dtype), params())
    state = tx.init(tree)
    for g in gradients(tree, steps):
        updates, state = jax.jit(tx.update)(g, state, tree)
        tree = gx.apply_updates(tree, updates)
    return tree, state


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


PLACES = {
    "chain": (gx.chain(gx.clip(1.0), AVERAGE), lambda s: s[1].average),
    "named_chain": (gx.named_chain(("a", AVERAGE)), lambda s: s["a"].average),
    "MultiSteps": (gx.MultiSteps(AVERAGE, 1), lambda s: s.inner_opt_state.average),
    "apply_if_finite": (gx.apply_if_finite(AVERAGE, 2), lambda s: s.inner_state.average),
    "lookahead": (gx.lookahead(SGD, 2, 0.5), lambda s: s.slow),
    "equal average": (
        gx.chain(gx.stochastic_weight_average(gx.adam(0.1), 1)),
        lambda s: s[0].average,
    ),
    "hyperparameters": (
        gx.inject_hyperparams(gx.moving_average, static_args=("inner",))(SGD, decay=0.5),
        lambda s: s.inner_state.average,
    ),
    "Optax's chain": (optax.chain(gx.as_optax(AVERAGE)), lambda s: s[0].average),
    "one length": (
        gx.power_moving_average(SGD, (0.1,)),
        lambda s: s.averages["0.1"],
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_an_average_is_found_anywhere(name):
    tx, where = PLACES[name]
    tree, state = trained(tx)
    equal(gx.eval_params(state, tree), where(state))
    equal(gx.eval_params(state), where(state))
    equal(jax.jit(gx.eval_params)(state, tree), where(state))
    assert np.any(gx.eval_params(state, tree)["w"] != tree["w"])


@pytest.mark.parametrize("name", PLACES)
def test_two_swaps_restore_everything(name):
    tx, _ = PLACES[name]
    tree, state = trained(tx)
    average = gx.eval_params(state, tree)
    new, swapped = gx.swap(state, tree)
    equal(new, average)
    equal(gx.eval_params(swapped, new), tree)
    assert jax.tree.structure(swapped) == jax.tree.structure(state)
    equal(gx.swap(swapped, new), (tree, state))


def test_a_length_is_chosen():
    tree, state = trained(gx.chain(POWER))
    for length in (0.1, 0.2):
        equal(gx.eval_params(state, tree, length=length), state[0].averages[str(length)])
        new, swapped = gx.swap(state, tree, length=length)
        equal(swapped[0].averages[str(length)], tree)
        equal(gx.swap(swapped, new, length=length), (tree, state))
    for length in (None, 0.3):
        with pytest.raises(
            ValueError, match=rf"\[0\] has averages of the lengths 0\.1, 0\.2.*{length}"
        ):
            gx.eval_params(state, tree, length=length)
    with pytest.raises(
        ValueError, match=r"length is 0\.1, but ScheduleFreeState does not have an average"
    ):
        gx.eval_params(FREE.init(tree), tree, length=0.1)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_average_of_schedule_free_is_swapped(dtype):
    tree, state = trained(gx.chain(FREE), dtype)
    x = gx.eval_params(state, tree)
    equal(x, gx.schedule_free_eval_params(state[0], tree))
    assert x["w"].dtype == dtype and np.any(x["w"] != tree["w"])
    new, swapped = gx.swap(state, tree)
    equal(new, x)
    equal(gx.eval_params(swapped, new), tree)
    again, back = gx.swap(swapped, new)
    equal(again, tree)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    if dtype == jnp.float32:
        equal(back, state)
    else:  # the average itself is rounded on its way
        np.testing.assert_allclose(back[0].x["w"], state[0].x["w"], rtol=2**-8)


def test_leaves_that_a_mask_hides_are_the_parameters():
    for tx, of in (
        (gx.masked(AVERAGE, MATRICES), lambda s: s.inner_state.average["w"]),
        (gx.masked(FREE, MATRICES), None),
        (gx.masked(AVERAGE, {"w": True, "b": False, "s": False, "deep": False}), None),
    ):
        tree, state = trained(tx)
        got = gx.eval_params(state, tree)
        assert got["b"] is tree["b"] and np.any(got["w"] != tree["w"])
        assert jax.tree.structure(got) == jax.tree.structure(tree)
        new, swapped = gx.swap(state, tree)
        equal(new, got)
        assert new["b"] is tree["b"]
        equal(gx.swap(swapped, new), (tree, state))
        if of is not None:
            equal(got["w"], of(state))
            with pytest.raises(ValueError, match=r"does not have \['b'\], which a mask hides"):
                gx.eval_params(state)


def test_groups_may_have_averages_of_their_own():
    labels = gx.label_by(("matrix", MATRICES), ("rest", True))
    tx = gx.partition({"matrix": AVERAGE, "rest": gx.lookahead(SGD, 2, 0.5)}, labels)
    tree, state = trained(tx)
    got = gx.eval_params(state, tree)
    equal(got["w"], state.inner_states["matrix"].inner_state.average["w"])
    equal(got["b"], state.inner_states["rest"].inner_state.slow["b"])
    new, swapped = gx.swap(state, tree)
    equal(new, got)
    equal(gx.swap(swapped, new), (tree, state))
    with pytest.raises(ValueError, match="LookaheadWithSlowState at"):
        gx.eval_params(state)


def test_two_averages_of_one_parameter_are_refused():
    for tx in (gx.moving_average(FREE), gx.chain(gx.masked(AVERAGE, MATRICES), FREE)):
        tree, state = trained(tx)
        for function in (gx.eval_params, gx.swap):
            with pytest.raises(
                ValueError, match=r"MovingAverageState at .* and ScheduleFreeState at"
            ):
                function(state, tree)
    with pytest.raises(ValueError, match=r"\.inner_state both have .*; pass the state of the one"):
        gx.eval_params(gx.moving_average(gx.lookahead(SGD, 2, 0.5)).init(tree))


def test_an_optimizer_without_an_average_is_evaluated_at_its_parameters():
    """Such as a training script that swaps optimizers expects."""
    tree, state = trained(gx.adam(0.1))
    assert gx.eval_params(state, tree)["w"] is tree["w"]
    new, same = gx.swap(state, tree)
    equal((new, same), (tree, state))
    with pytest.raises(ValueError, match=r"does not contain an average.*Pass the parameters"):
        gx.eval_params(state)


def test_the_result_has_the_dtypes_of_the_parameters():
    tree, state = trained(AVERAGE, jnp.bfloat16)
    assert gx.eval_params(state, tree)["w"].dtype == jnp.bfloat16
    assert gx.eval_params(state)["w"].dtype == jnp.float32


def test_states_of_other_parameters_are_refused():
    state = AVERAGE.init({"w": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"\['w'\] of MovingAverageState.*\(2,\).*\(3,\)"):
        gx.eval_params(state, {"w": jnp.ones(3)})
    with pytest.raises(ValueError, match=r"a leaf \['w'\], the parameters none"):
        gx.eval_params(state, {"v": jnp.ones(2)})


def test_a_pair_is_evaluated_at_its_slow_half():
    pair = gx.LookaheadParams(fast={"w": jnp.ones(2)}, slow={"w": jnp.zeros(2)})
    for lib in (gx, optax):
        state = gx.chain(lib.lookahead(lib.sgd(0.1), 2, 0.5)).init(pair)
        equal(gx.eval_params(state, pair), pair.slow)
    state = gx.lookahead(SGD, 2, 0.5).init(pair)
    new, same = gx.swap(state, pair)
    equal((new.fast, new.slow), (pair.slow, pair.fast))
    equal(gx.swap(same, new)[0], pair)


def test_states_of_optax_are_read():
    tree = params()
    tx = optax.contrib.schedule_free_sgd(0.1)
    state = tx.init(tree)
    with jax.numpy_dtype_promotion("standard"):
        for g in gradients(tree, 3):
            updates, state = tx.update(g, state, tree)
            tree = gx.apply_updates(tree, updates)
        expected = optax.contrib.schedule_free_eval_params(state, tree)
    for got in (gx.eval_params((state,), tree), gx.schedule_free_eval_params(state, tree)):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), got, expected
        )


def test_a_state_of_the_users_takes_part():
    """What the protocol asks for is two methods."""

    class BestState(NamedTuple):
        best: Any

        def evaluated(self, params):
            return {"best": self.best}

        def exchanged(self, name, params):
            return self._replace(best=params)

    tree = params()
    state = (BestState(jax.tree.map(jnp.zeros_like, tree)),)
    equal(gx.eval_params(state, tree), state[0].best)
    new, swapped = gx.swap(state, tree)
    equal(gx.swap(swapped, new), (tree, state))


def test_the_distributed_function_is_the_same():
    assert gd.eval_params is gx.eval_params
    tree = params()
    state = gx.chain(gd.diloco(SGD, "replica")).init(tree)
    equal(gd.eval_params(state, tree), tree)
    new, swapped = gx.swap(state, jax.tree.map(jnp.zeros_like, tree))
    equal(new, tree)
    assert not np.any(swapped[0].anchor["w"])
    without = gd.model_average(SGD, "replica").init(tree)
    assert gd.eval_params(without, tree)["w"] is tree["w"]


@pytest.mark.parametrize("read", [gx.eval_params, gx.swap])
def test_a_length_that_no_state_has_is_an_error(read):
    params = {"w": jnp.ones(2)}
    state = gx.moving_average(gx.sgd(0.1)).init(params)
    with pytest.raises(ValueError, match=rf"^{read.__name__}: length is 0\.1, but "):
        read(state, params, length=0.1)


# ------------------------------------------------------- below what changes the form of the tree

KEEPERS = {
    "moving_average": AVERAGE,
    "stochastic_weight_average": gx.stochastic_weight_average(SGD),
    "power_moving_average": gx.power_moving_average(SGD, (0.1,)),
    "schedule_free": FREE,
    "lookahead": gx.lookahead(SGD, 2, 0.5),
}
ALL_LEAVES = {
    "flatten": gx.flatten,
    "flatten, in a chain": lambda tx: gx.flatten(gx.chain(gx.identity(), tx)),
    "flatten twice": lambda tx: gx.flatten(gx.flatten(tx)),
    "flatten around a mask": lambda tx: gx.flatten(gx.masked(tx, True)),
    "parts of complex numbers": gx.split_real_and_imaginary,
    "flat parts of complex numbers": lambda tx: gx.split_real_and_imaginary(gx.flatten(tx)),
    "kept on the host": lambda tx: gx.flatten(gx.offload_state(tx)),
}


def check_evaluated(around, tree, plain, **options):
    """Require what is evaluated to be that of a plain transform, and swaps to restore it."""
    got = []
    for each in (around, plain):
        p, state = tree, each.init(tree)
        for g in gradients(tree, 2):
            updates, state = each.update(g, state, p)
            p = gx.apply_updates(p, updates)
        got.append((gx.eval_params(state, p, **(options if each is around else {})), p, state))
    (new, p, state), (expected, _, _) = got
    assert jax.tree.structure(new) == jax.tree.structure(tree)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), new, expected)
    assert any(np.any(x != y) for x, y in zip(*map(jax.tree.leaves, (new, p)), strict=True))
    swapped, other = gx.swap(state, p, **options)
    equal(swapped, new)
    equal(gx.eval_params(other, swapped, **options), p)
    equal(gx.swap(other, swapped, **options), (p, state))


def each_with_each(arounds):
    """Every keeper in the first wrapper, and every wrapper around the first keeper."""
    (around, *others), (keeper, *_) = arounds, KEEPERS
    return [(around, k) for k in KEEPERS] + [(other, keeper) for other in others]


@pytest.mark.parametrize("around, keeper", each_with_each(ALL_LEAVES))
def test_what_is_evaluated_has_the_form_of_the_parameters(around, keeper):
    tree, tx = params(), KEEPERS[keeper]
    wrapped = ALL_LEAVES[around](tx)
    check_evaluated(wrapped, tree, tx)
    check_evaluated(wrapped, tree, tx, tx=wrapped)


@pytest.mark.parametrize("keeper", KEEPERS)
def test_what_is_evaluated_is_complex_where_the_parameters_are(keeper):
    tree = {"w": jnp.linspace(0, 1, 6).reshape(2, 3).astype(jnp.complex64) * (1 + 1j)}
    halves, flat = (
        gx.split_real_and_imaginary(tx) for tx in (KEEPERS[keeper], gx.flatten(KEEPERS[keeper]))
    )
    check_evaluated(flat, tree, halves)
    check_evaluated(halves, tree, flat, tx=halves)


LABELS = gx.label_by(("matrix", MATRICES), ("rest", True))
SOME_LEAVES = {
    "masked": lambda tx: gx.masked(tx, MATRICES),
    "partition": lambda tx: gx.partition({"matrix": tx, "rest": SGD}, LABELS),
    "both groups": lambda tx: gx.partition({"matrix": tx, "rest": tx}, LABELS),
    "param_groups": lambda tx: gx.param_groups(
        SGD, [gx.param_group(MATRICES, inner=tx, label="matrices")]
    ),
}


@pytest.mark.parametrize("around, keeper", each_with_each(SOME_LEAVES))
def test_the_transform_says_which_parameters_a_vector_is_of(around, keeper):
    tree, tx = params(), KEEPERS[keeper]
    flat = SOME_LEAVES[around](gx.flatten(tx))
    check_evaluated(flat, tree, SOME_LEAVES[around](tx), tx=flat)
    for read in (gx.eval_params, gx.swap):
        with pytest.raises(ValueError, match=r"keeps one vector, .* tx=tx"):
            read(flat.init(tree), tree)


def test_integers_are_not_in_the_vector():
    tree = {"w": jnp.ones((2, 2)), "n": jnp.arange(3), "b": jnp.ones(2)}
    tx = gx.flatten(AVERAGE)
    new = gx.eval_params(tx.init(tree), tree)
    equal(new, tree)
