"""Adding noise to the updates."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gradxform.base import ArrayRule, transform
from gradxform.engine import PerLeaf
from gradxform.leaves import leaves_of
from gradxform.numerics import safe_increment, scalar
from gradxform.slots import zero_count
from gradxform.transforms.tree_rules import key_or_seed, live_key
from gradxform.types import Array, Key, NonNegative
from gradxform.values.fields import set_fields


class AddNoiseState(NamedTuple):
    """State of `add_noise`."""

    count: Array  # int32 scalar; the number of updates so far
    rng_key: Array  # the PRNG key of the next draw


@transform
class add_noise(ArrayRule):
    """Add Gaussian noise whose variance falls with time.

    Update rule, with t = 1, 2, ... and z standard normal, drawn anew for every entry:

        u = g + sqrt(eta / t^gamma) z

    For complex entries z is complex, and the mean of |z|^2 is 1.

    Args:
      eta: the variance of the first step, at least 0.
      gamma: how fast the variance falls, at least 0; the paper uses 0.55.
      key: the seed of the noise: an integer or a PRNG key. Defaults to 0, with a warning. `seed` is
        its old name.

    Reference: Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks,
    2015, equation (1).
    """

    eta: NonNegative
    gamma: NonNegative
    key: Key

    # The rule is per entry, but the keys depend on the number of leaves.
    State = AddNoiseState
    locality = "tree"
    rule_locality = "entry"
    handles_complex = True
    set_by = (("rng_key", "key"),)

    def __init__(self, eta: float, gamma: float, key: Key = None, *, seed: Key | None = None):
        set_fields(self, eta=eta, gamma=gamma, key=key_or_seed(self, key, seed))

    def init(self, params):
        """Return a count of 0 and the key."""
        return AddNoiseState(count=zero_count(), rng_key=live_key(self.key))

    def prepare(self, updates, state, params):
        """Return the advanced state, the standard deviation, and a key for every leaf."""
        count = safe_increment(state.count)
        deviation = jnp.sqrt(self.eta * scalar(count) ** -self.gamma)
        rng_key, step_key = jax.random.split(state.rng_key)
        keys = jax.random.split(step_key, len(leaves_of(updates)))
        state = state._replace(count=count, rng_key=rng_key)
        return state, deviation, PerLeaf(list(keys))

    def rule(self, g, p, deviation, key):
        """Return the update plus noise."""
        return g + deviation * jax.random.normal(key, g.shape, g.dtype)
