"""`reduce_on_plateau` at losses that change, of either sign."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradxform as gx
from tests import references as ref

pytestmark = pytest.mark.numeric

FALLING = [8.0, 4.0, 3.9, 1.9, 1.8, 1.7, 0.5, 0.49, 0.48]
LOSSES = {
    "above 0": FALLING,
    "below 0": [x - 9.0 for x in FALLING],
    "rising below 0": [-9.0, -8.0, -6.0, -5.0, -2.0, -1.0],
    "through 0": [x - 1.0 for x in FALLING],
}
OPTIONS = {"rtol": (1, 0.3, 0.0), "atol": (2, 0.0, 0.7), "both": (1, 0.1, 0.2)}


def factors(tx, losses):
    """The factor after every loss."""
    grads = {"w": jnp.ones(2)}
    state, seen = tx.init(grads), []
    with jax.numpy_dtype_promotion("standard"):  # for Optax
        for loss in losses:
            updates, state = tx.update(grads, state, value=jnp.asarray(loss, jnp.float32))
            seen.append(float(updates["w"][0]))
    return seen


@pytest.mark.parametrize("patience, rtol, atol", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES)
def test_a_better_loss_is_lower_by_a_part_of_its_size(losses, patience, rtol, atol):
    rule = ref.plateau(0.5, patience, rtol, atol, value=lambda t: losses[t - 1])
    state, expected = rule.start([np.ones(2)]), []
    for t in range(1, len(losses) + 1):
        (u,), state = rule.step([np.ones(2)], state, None, t)
        expected.append(u[0])
    np.testing.assert_allclose(
        factors(gx.reduce_on_plateau(0.5, patience, rtol, atol), losses), expected, rtol=1e-6
    )


def test_a_worse_loss_below_0_reduces_the_rate():
    rising = factors(gx.reduce_on_plateau(0.5, 1, 0.5), [-4.0, -3.0, -2.0])
    assert rising == [1.0, 0.5, 0.25]
    np.testing.assert_array_equal(
        factors(optax.contrib.reduce_on_plateau(0.5, 1, 0.5), [-4.0, -3.0, -2.9]), [1.0, 1.0, 1.0]
    )


def test_losses_above_0_are_judged_as_in_optax():
    ours, theirs = gx.reduce_on_plateau, optax.contrib.reduce_on_plateau
    for options in OPTIONS.values():
        assert factors(ours(0.5, *options), FALLING) == factors(theirs(0.5, *options), FALLING)
