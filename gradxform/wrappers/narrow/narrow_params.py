"""Parameters of 16 bits or fewer that learn: wide copies, rounding by chance, compensation."""

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gradxform.base import transform
from gradxform.errors import name_of
from gradxform.leaves import Path, dtype_of, is_hole, path_str, with_paths
from gradxform.leaves.storage import Chance, Compensated, Master, NarrowForm, Remainder
from gradxform.transforms.tree_rules import live_key
from gradxform.types import Array, Key, Slot, Updates
from gradxform.wrappers.narrow.assigned_params import NarrowParams


class MasterWeightsState(NamedTuple):
    """State of `master_weights`."""

    inner_state: Any  # the inner state, of float32 parameters
    # The copies in float32, or the lower bits in uint16 or uint8. One 0 where none is needed.
    master: Slot


@transform
class master_weights(NarrowParams):
    """Optimize copies in float32 of parameters in 16 bits or fewer.

    Update rule, with m the copy of a parameter p, and u the inner update for m:

        m <- m + u;    p <- m, rounded to the dtype of p

    In bfloat16, a step below 1/512 of a parameter is rounded away. Here it counts: the run is that
    of float32 parameters, except that the loss sees rounded ones. The inner transform gets the
    copies as its parameters, and gradients in float32. Parameters in float32 or wider, complex and
    integer ones pass as they are.

    A copy takes 4 bytes. With `remainders=True`, or 16, it is made of p and the 16 bits that a
    bfloat16 lacks of a float32, and takes 2. Both forms have the same copies, bit for bit; of two
    bfloat16 that are equally near, p is the larger in magnitude with `remainders`, and the even one
    without. With `remainders=8` it is made of p and the upper 8 of these bits, rounded, and takes
    1: each step rounds a copy m by at most 2^-16 |m| (1.5e-5), and smaller steps are lost.

    The updates are in float32, so that their sums with the parameters are exact. A later part of a
    chain that changes them is refused. If something else moves a parameter between two steps, the
    copy follows.

    Args:
      inner: the optimizer.
      remainders: False, or how many of the missing bits to keep in place of a copy: True or 16, or
        8; all real parameters must then be bfloat16.

    Raises:
      ValueError: for another number of bits; at init, with `remainders`, for a real parameter that
        is not bfloat16; at update, if no parameters are given, or the state is that of others.

    Reference: Micikevicius et al., Mixed Precision Training, 2018, Section 3.1.
    """

    inner: Any
    remainders: bool | int = False

    State = MasterWeightsState
    slot = "master"

    def __post_init__(self) -> None:
        super().__post_init__()
        bits = self.remainders
        if not isinstance(bits, bool) and bits not in (8, 16):
            raise ValueError(
                f"{name_of(self)}: remainders must be False, True, 8 or 16 (bits), got {bits}."
            )
        if bits == 16:
            object.__setattr__(self, "remainders", True)

    @property
    def form(self) -> NarrowForm:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How the copies are kept."""
        if not self.remainders:
            return Master()
        return Remainder(16 if self.remainders is True else self.remainders)

    def _check_dtype(self, path: Path, p: Any) -> None:
        dtype = dtype_of(p)
        if self.remainders and jnp.issubdtype(dtype, jnp.floating) and dtype != jnp.bfloat16:
            raise ValueError(
                f"{name_of(self)}: parameter {path_str(path)} is {dtype}, and remainders complete "
                "bfloat16 ones. Leave out remainders, or give the others to another optimizer "
                "with partition(...)."
            )

    def init(self, params):
        """Return the inner state of the copies, and the copies."""
        return MasterWeightsState(*self._first_state(params))


class StochasticRoundingState(NamedTuple):
    """State of `stochastic_rounding`."""

    inner_state: Any  # the inner state, of float32 parameters
    key: Array  # (2,) uint32; a seed, and the number of updates so far


@transform
class stochastic_rounding(NarrowParams):
    """Round parameters in 16 bits or fewer up or down by chance, so that small steps count.

    Update rule, with u the inner update in float32:

        p <- p + u, rounded to a neighbor in the dtype of p

    The upper neighbor is taken with the probability of the place between the two, so that the mean
    is p + u. It takes no memory. The bits follow from the key, the number of the update, the path
    of the parameter and the place of an entry: a resumed run goes on exactly, and replicas that
    start alike stay alike. The noise is that of an entry's last place: average the parameters, or
    let the learning rate fall, to be rid of it.

    The inner transform gets parameters and gradients in float32. Parameters in float32 or wider,
    complex and integer ones pass as they are. The updates are in float32; a later part of a chain
    that changes them is refused.

    Args:
      inner: the optimizer.
      key: the seed: an integer or a PRNG key.

    Raises:
      ValueError: at update, if no parameters are given.
      TypeError: if the key is not one.

    Reference: Gupta et al., Deep Learning with Limited Numerical Precision, 2015, Section 3;
    Zamirai et al., Revisiting BFloat16 Training, 2020.
    """

    inner: Any
    key: Key

    set_by = (("key", "key"),)

    State = StochasticRoundingState
    form = Chance()

    def init(self, params):
        """Return the inner state, and the key."""
        inner_state, _ = self._first_state(params)
        seed = jax.random.bits(live_key(self.key), (), jnp.uint32)
        return StochasticRoundingState(inner_state, jnp.stack([seed, jnp.zeros_like(seed)]))

    def _rounding_keys(self, updates: Updates, state: Any) -> tuple[list[Any], Any]:
        """Return a key for each update, from its path, and the state with the next key."""
        paths = ["/".join(path) for path, g in with_paths(updates) if not is_hole(g)]
        seeds = [np.asarray([zlib.crc32(path.encode()), 0], np.uint32) for path in paths]
        later = state.key + np.asarray([0, 1], np.uint32)
        return [state.key ^ seed for seed in seeds], state._replace(key=later)


class KahanState(NamedTuple):
    """State of `kahan`."""

    inner_state: Any  # the inner state, of float32 parameters
    lost: Slot  # in the dtype of the parameter; what roundings took; one 0 if not needed


@transform
class kahan(NarrowParams):
    """Remember what rounding takes from the steps of parameters in 16 bits or fewer.

    Update rule, from c = 0 and with u the inner update in float32:

        y = u + c;    q = p + y, rounded to the dtype of p
        c <- y - (q - p), rounded to the dtype of p;    p <- q

    Small steps add up in c until they move p. It takes as much memory as the parameters, half of
    what `master_weights` takes in 16 bits, and a step that is added is exact up to 1/512 of it in
    bfloat16. A c that would move p by itself counts as 0: something else has moved p since, as
    pruning does.

    The inner transform gets parameters and gradients in float32. Parameters in float32 or wider,
    complex and integer ones pass as they are. The updates are in float32; a later part of a chain
    that changes them is refused.

    Args:
      inner: the optimizer.

    Raises:
      ValueError: at update, if no parameters are given, or the state is that of others.

    Reference: Kahan, Further Remarks on Reducing Truncation Errors, 1965; Zamirai et al.,
    Revisiting BFloat16 Training, 2020.
    """

    inner: Any

    State = KahanState
    slot = "lost"
    form = Compensated()

    def init(self, params):
        """Return the inner state, and zeros."""
        return KahanState(*self._first_state(params))
