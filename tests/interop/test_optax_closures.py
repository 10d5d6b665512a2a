"""A transform as closures, in whose cells Equinox finds its rates: one compilation for all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradxform as gx

eqx = pytest.importorskip("equinox")
optax = pytest.importorskip("optax")
closure_to_pytree = pytest.importorskip("equinox.internal").closure_to_pytree

pytestmark = pytest.mark.numeric
PARAMS = {"w": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(0.5)}
RATES = [0.1, 0.2, 0.3, 0.1]


def runs(made):
    """How often a step is compiled for some transforms, and the updates of each."""
    count = 0

    @eqx.filter_jit
    def step(tx, params):
        nonlocal count
        count += 1
        _, state = tx.update(params, tx.init(params), params)
        return tx.update(params, state, params)[0]

    updates = [step(closure_to_pytree(tx), PARAMS) for tx in made]
    return count, updates


OPTIMIZERS = {
    "sgd": lambda rate: gx.sgd(rate, momentum=0.9),
    "adamw": lambda rate: gx.chain(gx.clip_by_global_norm(1.0), gx.adamw(rate)),
    "schedule": lambda rate: gx.lion(gx.cosine_decay_schedule(rate, 10)),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_all_rates_share_one_compiled_step(name):
    field = "init_value" if name == "schedule" else "learning_rate"
    made = [OPTIMIZERS[name](jnp.asarray(rate)) for rate in RATES]
    count, got = runs([gx.as_optax_closures(tx, field) for tx in made])
    assert count == 1
    for tx, updates in zip(made, got, strict=True):
        _, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
        want = tx.update(PARAMS, state, PARAMS)[0]
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), updates, want
        )


def test_a_bare_transform_is_compiled_once_a_value():
    """It is static, but equal ones share a step, which Optax's do not."""
    assert runs([gx.sgd(jnp.asarray(rate)) for rate in RATES])[0] == 3
    assert runs([gx.as_optax_closures(gx.sgd(rate)) for rate in RATES])[0] == 3


def test_the_pair_is_optax_with_optax_states_and_extra_arguments():
    tx = gx.as_optax_closures(gx.adam(0.1), "learning_rate", "b1")
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    assert isinstance(tx.init(PARAMS)[0], optax.ScaleByAdamState)
    leaves = [x for x in jax.tree.leaves(closure_to_pytree(tx)) if isinstance(x, jax.Array)]
    assert sorted(map(float, leaves)) == pytest.approx([0.1, 0.1, 0.9, 0.9])  # of both functions
    taking = gx.as_optax_closures(gx.contrib.reduce_on_plateau(0.5))
    taking.update(PARAMS, taking.init(PARAMS), PARAMS, value=jnp.asarray(1.0))


def test_what_is_no_float_is_refused():
    with pytest.raises(
        ValueError, match=r"no field 'learning_rat' .* only learning_rate\. Did you"
    ):
        gx.as_optax_closures(gx.sgd(0.1), "learning_rat")
    with pytest.raises(
        ValueError, match=r"no field 'x' of the transform holds a float, only none\."
    ):
        gx.as_optax_closures(gx.identity(), "x")
    with pytest.raises(
        TypeError, match=r"as_optax_closures: .* is not a transform of this library"
    ):
        gx.as_optax_closures(optax.sgd(0.1), "learning_rate")
